"""What moto's CloudFormation lacks for our templates, and nothing beyond it.

Made by the API call that CloudFormation would make, so that the SDK checks the parameters and the APIs show what was made:
    EKS clusters (with a security group of their own, as EKS makes one) and node groups, alarms, schedules and their
    groups, policies of topics and queues, subscriptions, egress rules
As in moto, with what it forgets:
    AWS::SSM::Parameter    a name is made up where the template gives none
    AWS::IAM::Role         managed policies are attached, and must exist

Recorded only, because moto has no such API: resolved properties are kept and can be listed, nothing checks them and
nothing acts on them (no Lambda runs, no kubectl, no helm): `RECORDED_TYPES`. One of them for another reason:
AWS::S3::BucketPolicy, which moto enforces without its conditions, so that "no one without TLS" becomes "no one".

Absent: every other type that moto does not know. It is kept like a recorded one, as `not-modelled-...`, and counts as *not
modelled*; plain moto would leave it out silently and resolve references to it to nothing.

Importing this changes nothing: `extended_moto` puts it in place for a while. The module's name must contain a dot, since
moto files a model under the second part of its module's name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from enum import Enum
from functools import cache, partial
from typing import Any

from botocore.exceptions import ClientError, ParamValidationError
from moto.cloudformation import models as cloudformation
from moto.cloudformation import parsing
from moto.cloudformation.exceptions import CloudFormationError, ValidationError
from moto.cloudformation.models import cloudformation_backends
from moto.cloudformation.parsing import ResourceMap, get_model_map
from moto.core.common_models import CloudFormationModel
from moto.core.exceptions import ServiceException
from moto.ec2.models.amis import AmiBackend
from moto.eks.models import eks_backends
from moto.iam.aws_managed_policies import aws_managed_policies_data
from moto.iam.models import AWSManagedPolicy, IAMBackend, Role, iam_backends
from moto.ssm.models import Parameter
from moto.utilities.utils import get_partition
from werkzeug.exceptions import HTTPException

from lab.aws.assembly import ACCOUNT
from lab.aws.moto_removal import protection_honoured, removing

KUBERNETES_RESOURCE = "Custom::AWSCDK-EKS-KubernetesResource"
HELM_CHART = "Custom::AWSCDK-EKS-HelmChart"
RECORDED_TYPES = frozenset(
    {
        "AWS::CloudWatch::CompositeAlarm",
        "AWS::EKS::AccessEntry",
        "AWS::EKS::Addon",
        "AWS::EKS::PodIdentityAssociation",
        "AWS::S3::BucketPolicy",
        HELM_CHART,
        KUBERNETES_RESOURCE,
    }
)

Properties = dict[str, Any]
Api = Callable[[str], Any]
"""A client of a service, in the region of the stack."""
ClientOf = Callable[[str, str], Any]
"""The same for a service and a region."""
Made = tuple[str, Mapping[str, str]]
"""Physical id, and what `Fn::GetAtt` may ask for."""
_clients: list[ClientOf] = []


class Outcome(Enum):
    """What became of a resource."""

    CREATED = "created"
    RECORDED = "recorded"
    """Its properties are kept; nothing acted on them."""
    NOT_MODELLED = "not modelled"
    SKIPPED = "skipped"
    """Its condition is false: CloudFormation would not create it either."""


def outcome_of(resource_type: str) -> Outcome:
    """What becomes of a resource of this type when it is created."""
    if resource_type in RECORDED_TYPES:
        return Outcome.RECORDED
    return Outcome.NOT_MODELLED if model_for(resource_type) is Recorded else Outcome.CREATED


def recorded(stack: str, *, region: str) -> Iterator[tuple[str, Properties]]:
    """Type and resolved properties of what a stack left as a record; the server runs in this process."""
    resources = _resources(stack, region)
    for name in resources:
        resource: Any = resources[name]
        if isinstance(resource, Recorded):
            yield resource.resource_type, resource.properties


def false_conditions(stack: str, *, region: str) -> frozenset[str]:
    """Names of the template's conditions that do not hold."""
    conditions = _resources(stack, region).lazy_condition_map
    return frozenset(name for name in conditions if not conditions[name])


def _resources(stack: str, region: str) -> ResourceMap:
    return cloudformation_backends[ACCOUNT][region].get_stack(stack).resource_map


def _call(client: Any, method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = getattr(client, method)(**parameters)
    except (ClientError, ParamValidationError) as error:
        raise ValidationError(message=f"{method}: {' '.join(str(error).split())}") from error
    return answer


def _arn(answer: Mapping[str, Any]) -> Mapping[str, str]:
    return next(({"Arn": value} for key, value in answer.items() if key.endswith("Arn")), {})


def _egress(properties: Properties, api: Api) -> Made:
    kept = {"IpProtocol", "FromPort", "ToPort"}
    permission = {name: value for name, value in properties.items() if name in kept}
    if "CidrIp" in properties:
        permission["IpRanges"] = [{"CidrIp": properties["CidrIp"]}]
    if "DestinationSecurityGroupId" in properties:
        permission["UserIdGroupPairs"] = [{"GroupId": properties["DestinationSecurityGroupId"]}]
    rule = {"GroupId": properties["GroupId"], "IpPermissions": [permission]}
    _call(api("ec2"), "authorize_security_group_egress", rule)
    return f"{properties['GroupId']}-egress", {}


def _subscription(properties: Properties, api: Api) -> Made:
    answer = _call(api("sns"), "subscribe", properties)
    return answer["SubscriptionArn"], _arn(answer)


def _topic_policy(properties: Properties, api: Api) -> Made:
    policy = {"AttributeName": "Policy", "AttributeValue": json.dumps(properties["PolicyDocument"])}
    for topic in properties["Topics"]:
        _call(api("sns"), "set_topic_attributes", {"TopicArn": topic, **policy})
    return properties["Topics"][0], {}


def _queue_policy(properties: Properties, api: Api) -> Made:
    policy = {"Attributes": {"Policy": json.dumps(properties["PolicyDocument"])}}
    for queue in properties["Queues"]:
        _call(api("sqs"), "set_queue_attributes", {"QueueUrl": queue, **policy})
    return properties["Queues"][0], {}


def _by(service: str, method: str, name: str) -> Callable[[Properties, Api], Made]:
    """What one call with the very properties makes, under the name that one of them gives."""
    return lambda properties, api: (properties[name], _arn(_call(api(service), method, properties)))


def make_cluster(properties: Properties, api: Api) -> Made:
    """A cluster with its own group, as EKS makes one: https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-eks-cluster.html"""
    parameters = _as_eks_says(properties)
    parameters["tags"] = {tag["Key"]: tag["Value"] for tag in properties.get("Tags", ())}
    if logging := properties.get("Logging"):
        types = [one["Type"] for one in logging["ClusterLogging"].get("EnabledTypes", ())]
        parameters["logging"] = {"clusterLogging": [{"types": types, "enabled": True}]}
    cluster = _call(api("eks"), "create_cluster", parameters)["cluster"]
    name, ec2 = cluster["name"], api("ec2")
    subnets = ec2.describe_subnets(SubnetIds=parameters["resourcesVpcConfig"]["subnetIds"][:1])["Subnets"]
    group = {"GroupName": f"eks-cluster-sg-{name}", "Description": "EKS created security group"}
    made = ec2.create_security_group(VpcId=subnets[0]["VpcId"], **group)["GroupId"]
    _, _, _, region, _, _ = cluster["arn"].split(":")
    network = eks_backends[ACCOUNT][region].describe_cluster(name).resources_vpc_config
    network |= {"clusterSecurityGroupId": made, "vpcId": subnets[0]["VpcId"]}
    return name, {
        "Arn": cluster["arn"],
        "CertificateAuthorityData": cluster["certificateAuthority"]["data"],
        "ClusterSecurityGroupId": made,
        "Endpoint": cluster["endpoint"],
        "Id": name,
        "OpenIdConnectIssuerUrl": cluster["identity"]["oidc"]["issuer"],
    }


def _node_group(properties: Properties, api: Api) -> Made:
    """https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-eks-nodegroup.html"""
    parameters = _as_eks_says(properties)
    parameters.pop("forceUpdateEnabled", None)  # for CloudFormation itself, when it updates
    group = _call(api("eks"), "create_nodegroup", parameters)["nodegroup"]
    id_ = f"{group['clusterName']}/{group['nodegroupName']}"
    names = {"ClusterName": group["clusterName"], "NodegroupName": group["nodegroupName"]}
    return id_, {"Arn": group["nodegroupArn"], "Id": id_, **names}


def _as_eks_says(properties: Properties) -> dict[str, Any]:
    """CloudFormation writes `SubnetIds` where the EKS API has `subnetIds`; not in maps whose keys are the user's."""

    def small(value: Any) -> Any:
        if isinstance(value, dict):
            return {f"{key[:1].lower()}{key[1:]}": small(one) for key, one in value.items()}
        return [small(one) for one in value] if isinstance(value, list) else value

    own = {name: properties[name] for name in ("Labels", "Tags") if name in properties}
    return {**small(properties), **{name.lower(): value for name, value in own.items()}}


def _alarm(properties: Properties, api: Api) -> Made:
    _call(api("cloudwatch"), "put_metric_alarm", properties)
    (found,) = api("cloudwatch").describe_alarms(AlarmNames=[properties["AlarmName"]])["MetricAlarms"]
    return found["AlarmName"], {"Arn": found["AlarmArn"]}


_MADE: Mapping[str, tuple[str, Callable[[Properties, Api], Made]]] = {
    "AWS::CloudWatch::Alarm": ("AlarmName", _alarm),
    "AWS::EC2::SecurityGroupEgress": ("", _egress),
    "AWS::EKS::Cluster": ("Name", make_cluster),
    "AWS::EKS::Nodegroup": ("NodegroupName", _node_group),
    "AWS::SNS::Subscription": ("", _subscription),
    "AWS::SNS::TopicPolicy": ("", _topic_policy),
    "AWS::SQS::QueuePolicy": ("", _queue_policy),
    "AWS::Scheduler::Schedule": ("Name", _by("scheduler", "create_schedule", "Name")),
    "AWS::Scheduler::ScheduleGroup": ("Name", _by("scheduler", "create_schedule_group", "Name")),
}
"""The property that names the resource, for which CloudFormation makes a name up; and what makes the resource."""


class Modelled(CloudFormationModel):
    """A resource of which moto has no model."""

    @classmethod
    def cloudformation_name_type(cls) -> str:
        return ""

    @classmethod
    def cloudformation_type(cls) -> str:
        return f"lab::{cls.__name__}"

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        return True


class Called(Modelled):
    """One that was made by a call."""

    def __init__(self, resource_type: str, physical_id: str, attributes: Mapping[str, str]) -> None:
        self.resource_type = resource_type
        self.physical_resource_id = physical_id
        self._attributes = attributes

    @classmethod
    def create_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str, **where: Any
    ) -> Called:
        named_by, make = _MADE[where["ResourceType"]]
        properties = {named_by: resource_name} if named_by else {}
        properties |= cloudformation_json["Properties"]
        made = make(properties, lambda service: _clients[-1](service, region_name))
        return cls(where["ResourceType"], *made)

    def get_cfn_attribute(self, attribute: str) -> str:
        if attribute not in self._attributes:
            raise ValidationError(
                message=f"{self.resource_type} has no attribute {attribute} in the rehearsal"
            )
        return self._attributes[attribute]


class SsmParameter(Parameter):
    """moto's own, which fails on one without a name, where CloudFormation generates it."""

    @classmethod
    def create_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str, **_: Any
    ) -> Parameter:
        cloudformation_json["Properties"].setdefault("Name", resource_name)
        return Parameter.create_from_cloudformation_json(
            resource_name, cloudformation_json, account_id, region_name
        )


class IamRole(Role):
    """moto's own, with the managed policies that its template names: AWS's own, or made before."""

    @classmethod
    def create_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str, **_: Any
    ) -> Role:
        role: Role = Role.create_from_cloudformation_json(
            resource_name, cloudformation_json, account_id, region_name
        )
        backend = iam_backends[account_id][get_partition(region_name)]
        for arn in cloudformation_json["Properties"].get("ManagedPolicyArns", ()):
            backend.attach_role_policy(arn, role.name)
        return role


class Recorded(Modelled):
    """One of which only the resolved properties are kept."""

    def __init__(self, resource_type: str, logical_id: str, properties: Properties) -> None:
        self.resource_type = resource_type
        self.properties = properties
        prefix = "recorded" if resource_type in RECORDED_TYPES else "not-modelled"
        self.physical_resource_id = f"{prefix}-{logical_id}"

    @classmethod
    def create_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str, **where: Any
    ) -> Recorded:
        return cls(where["ResourceType"], where["LogicalId"], cloudformation_json["Properties"])

    def get_cfn_attribute(self, attribute: str) -> str:
        return f"{self.physical_resource_id}-{attribute}"


_MODELS: Mapping[str, Any] = {
    "AWS::IAM::Role": IamRole,
    "AWS::SSM::Parameter": SsmParameter,
    **dict.fromkeys(_MADE, Called),
}


def model_for(resource_type: str) -> type[CloudFormationModel]:
    """Takes the place of moto's choice, which runs a Lambda function in Docker for every `Custom::` type."""
    model: type[CloudFormationModel] | None = _MODELS.get(resource_type) or get_model_map().get(resource_type)
    return model or Recorded


class ResourceRefusedError(CloudFormationError):
    """One resource could not be made; moto would answer 500 and print a traceback."""

    code = "ValidationError"


def _create_resource(
    create: Callable[..., Any], logical_id: str, resource: dict[str, Any], *args: Any, **kwargs: Any
) -> Any:
    """moto's own, with the resource named in what went wrong."""
    try:
        return create(logical_id, resource, *args, **kwargs)
    except ResourceRefusedError:
        raise
    except Exception as error:
        reason = getattr(error, "message", "") or getattr(error, "description", "") or repr(error)
        raise ResourceRefusedError(f"{logical_id} ({resource['Type']}): {reason}") from error


def _create_stack(create: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """moto's own, with an answer of one line whatever went wrong."""
    try:
        return create(*args, **kwargs)
    except (ServiceException, HTTPException):
        raise
    except Exception as error:
        raise ResourceRefusedError(f"outside its resources: {error!r}") from error


def _parse_template(parse: Callable[[str], Any], template: str) -> Any:
    """moto reads templates as YAML, which takes seconds where JSON takes milliseconds."""
    try:
        return json.loads(template)
    except ValueError:
        return parse(template)


def _policies_of_aws(backend: IAMBackend) -> list[AWSManagedPolicy]:
    """moto knows AWS's own policies and leaves them out; asked for them, it reads them again for each partition."""
    return [copy(one) for one in _known_policies()] if backend.region_name == "aws" else []


@cache
def _known_policies() -> tuple[AWSManagedPolicy, ...]:
    known = json.loads(aws_managed_policies_data).items()
    return tuple(AWSManagedPolicy.from_data(name, ACCOUNT, "aws", data) for name, data in known)


@contextmanager
def extended_moto(client_of: ClientOf) -> Iterator[None]:
    """Put the extension in place for a while, its calls going through `client_of`."""
    backend, stack = cloudformation.CloudFormationBackend, cloudformation.Stack
    create_stack = backend.create_stack
    replaced: tuple[tuple[Any, str, Any], ...] = (
        (parsing, "resource_class_from_type", model_for),
        (
            parsing,
            "parse_and_create_resource",
            partial(_create_resource, parsing.parse_and_create_resource),
        ),
        (IAMBackend, "_init_aws_policies", _policies_of_aws),
        (AmiBackend, "_load_amis", lambda _: None),  # thousands, and no template names one of them
        (backend, "create_stack", lambda *args, **kwargs: _create_stack(create_stack, *args, **kwargs)),
        (ResourceMap, "_delete_resource", removing(ResourceMap._delete_resource, client_of)),
        (stack, "parse_template", staticmethod(partial(_parse_template, stack.parse_template))),
    )
    originals = [(owner, name, vars(owner)[name]) for owner, name, _ in replaced]
    _clients.append(client_of)
    try:
        for owner, name, replacement in replaced:
            setattr(owner, name, replacement)
        with protection_honoured():
            yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
        _clients.remove(client_of)
