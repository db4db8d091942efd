"""Adds to moto's CloudFormation the resource types of our templates that it lacks.

Created by the API call that CloudFormation would make, so that the SDK checks the parameters and the APIs show the result:
    EKS clusters (with a security group of their own, as EKS makes one) and node groups, alarms, schedules and their
    groups, policies of topics and queues, subscriptions, egress rules
As in moto, with what it forgets:
    AWS::SSM::Parameter    a name is made up where the template gives none
    AWS::IAM::Role         managed policies are attached, and must exist

Recorded only, because moto has no such API: every other type that moto does not know. The resolved properties are kept, nothing
checks them and nothing acts on them (no Lambda runs, no kubectl, no helm); plain moto would leave them out silently. One of them
for another reason: AWS::S3::BucketPolicy, which moto enforces without its conditions, so that "no one without TLS" becomes "no one".

Nothing is deleted here: the tests of a teardown have what moto leaves behind.

Importing this changes nothing: `extended_moto` puts it in place for a while. The module's name must contain a dot, since
moto files a model under the second part of its module's name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

from moto.cloudformation import parsing
from moto.cloudformation.exceptions import CloudFormationError, ValidationError
from moto.cloudformation.models import Stack
from moto.cloudformation.parsing import ResourceMap, get_model_map
from moto.core.common_models import CloudFormationModel
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models.amis import AmiBackend
from moto.eks.models import eks_backends
from moto.iam.aws_managed_policies import aws_managed_policies_data
from moto.iam.models import AWSManagedPolicy, IAMBackend, iam_backends
from moto.utilities.utils import get_partition

ACCOUNT = DEFAULT_ACCOUNT_ID

Properties = dict[str, Any]
Api = Callable[[str], Any]
"""A client of a service, in the region of the stack."""
ClientOf = Callable[[str, str], Any]
"""A client of a service in a region."""
Created = tuple[str, Mapping[str, str]]
"""The physical id, and the attributes of `Fn::GetAtt`."""
_clients: list[ClientOf] = []


def _egress(properties: Properties, api: Api) -> Created:
    kept = {"IpProtocol", "FromPort", "ToPort"}
    permission = {name: value for name, value in properties.items() if name in kept}
    if "CidrIp" in properties:
        permission["IpRanges"] = [{"CidrIp": properties["CidrIp"]}]
    if "DestinationSecurityGroupId" in properties:
        permission["UserIdGroupPairs"] = [{"GroupId": properties["DestinationSecurityGroupId"]}]
    group = properties["GroupId"]
    api("ec2").authorize_security_group_egress(GroupId=group, IpPermissions=[permission])
    return f"{group}-egress", {}


def _topic_policy(properties: Properties, api: Api) -> Created:
    policy = json.dumps(properties["PolicyDocument"])
    for topic in properties["Topics"]:
        api("sns").set_topic_attributes(TopicArn=topic, AttributeName="Policy", AttributeValue=policy)
    return properties["Topics"][0], {}


def _queue_policy(properties: Properties, api: Api) -> Created:
    policy = {"Policy": json.dumps(properties["PolicyDocument"])}
    for queue in properties["Queues"]:
        api("sqs").set_queue_attributes(QueueUrl=queue, Attributes=policy)
    return properties["Queues"][0], {}


def _by(service: str, method: str, name: str = "") -> Callable[[Properties, Api], Created]:
    """One call with the very properties; the resource has the name that one of them gives, or else its ARN."""

    def make(properties: Properties, api: Api) -> Created:
        answer = getattr(api(service), method)(**properties)
        arn = next((value for key, value in answer.items() if key.endswith("Arn")), "")
        return properties[name] if name else arn, {"Arn": arn}

    return make


def _alarm(properties: Properties, api: Api) -> Created:
    api("cloudwatch").put_metric_alarm(**properties)
    (alarm,) = api("cloudwatch").describe_alarms(AlarmNames=[properties["AlarmName"]])["MetricAlarms"]
    return alarm["AlarmName"], {"Arn": alarm["AlarmArn"]}


def _cluster(properties: Properties, api: Api) -> Created:
    """A cluster with its own group, as EKS makes one: https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-eks-cluster.html"""
    parameters = _as_eks_says(properties)
    parameters["tags"] = {tag["Key"]: tag["Value"] for tag in properties.get("Tags", ())}
    if logging := properties.get("Logging"):
        types = [entry["Type"] for entry in logging["ClusterLogging"].get("EnabledTypes", ())]
        parameters["logging"] = {"clusterLogging": [{"types": types, "enabled": True}]}
    eks, ec2 = api("eks"), api("ec2")
    cluster = eks.create_cluster(**parameters)["cluster"]
    name = cluster["name"]
    subnets = ec2.describe_subnets(SubnetIds=parameters["resourcesVpcConfig"]["subnetIds"][:1])["Subnets"]
    group = {"GroupName": f"eks-cluster-sg-{name}", "Description": "EKS created security group"}
    group_id = ec2.create_security_group(VpcId=subnets[0]["VpcId"], **group)["GroupId"]
    backend = eks_backends[ACCOUNT][eks.meta.region_name]
    network = backend.describe_cluster(name).resources_vpc_config
    network |= {"clusterSecurityGroupId": group_id, "vpcId": subnets[0]["VpcId"]}
    return name, {
        "Arn": cluster["arn"],
        "CertificateAuthorityData": cluster["certificateAuthority"]["data"],
        "ClusterSecurityGroupId": group_id,
        "Endpoint": cluster["endpoint"],
        "Id": name,
        "OpenIdConnectIssuerUrl": cluster["identity"]["oidc"]["issuer"],
    }


def _node_group(properties: Properties, api: Api) -> Created:
    """https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-eks-nodegroup.html"""
    parameters = _as_eks_says(properties)
    parameters.pop("forceUpdateEnabled", None)  # for CloudFormation itself, when it updates
    group = api("eks").create_nodegroup(**parameters)["nodegroup"]
    id_ = f"{group['clusterName']}/{group['nodegroupName']}"
    names = {"ClusterName": group["clusterName"], "NodegroupName": group["nodegroupName"]}
    return id_, {"Arn": group["nodegroupArn"], "Id": id_, **names}


def _as_eks_says(properties: Properties) -> dict[str, Any]:
    """CloudFormation writes `SubnetIds` where the EKS API has `subnetIds`; not in maps whose keys are the user's."""

    def small(value: Any) -> Any:
        if isinstance(value, dict):
            return {f"{key[:1].lower()}{key[1:]}": small(nested) for key, nested in value.items()}
        return [small(nested) for nested in value] if isinstance(value, list) else value

    own = {name: properties[name] for name in ("Labels", "Tags") if name in properties}
    return {**small(properties), **{name.lower(): value for name, value in own.items()}}


_CREATORS: Mapping[str, tuple[str, Callable[[Properties, Api], Created]]] = {
    "AWS::CloudWatch::Alarm": ("AlarmName", _alarm),
    "AWS::EC2::SecurityGroupEgress": ("", _egress),
    "AWS::EKS::Cluster": ("Name", _cluster),
    "AWS::EKS::Nodegroup": ("NodegroupName", _node_group),
    "AWS::SNS::Subscription": ("", _by("sns", "subscribe")),
    "AWS::SNS::TopicPolicy": ("", _topic_policy),
    "AWS::SQS::QueuePolicy": ("", _queue_policy),
    "AWS::Scheduler::Schedule": ("Name", _by("scheduler", "create_schedule", "Name")),
    "AWS::Scheduler::ScheduleGroup": ("Name", _by("scheduler", "create_schedule_group", "Name")),
}
"""The property that names the resource, for which CloudFormation makes a name up; and what creates the resource."""


@dataclass(eq=False)
class Modelled(CloudFormationModel):
    """A resource without a model in moto: created by a call, or kept as its resolved properties."""

    resource_type: str
    physical_resource_id: str
    properties: Properties
    attributes: Mapping[str, str] | None
    """The attributes of `Fn::GetAtt`; `None` if the resource was not created."""

    @classmethod
    def create_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str, **where: Any
    ) -> Modelled:
        kind, properties = where["ResourceType"], cloudformation_json["Properties"]
        if kind not in _CREATORS:
            return cls(kind, f"recorded-{where['LogicalId']}", properties, None)
        named_by, make = _CREATORS[kind]
        properties = {named_by: resource_name, **properties} if named_by else properties
        physical_id, attributes = make(properties, lambda service: _clients[-1](service, region_name))
        return cls(kind, physical_id, properties, attributes)

    def get_cfn_attribute(self, attribute: str) -> str:
        if self.attributes is None:
            return f"{self.physical_resource_id}-{attribute}"
        if attribute not in self.attributes:
            raise ValidationError(
                message=f"{self.resource_type} has no attribute {attribute} in the rehearsal"
            )
        return self.attributes[attribute]


def _model_for(resource_type: str) -> Any:
    """Replaces the choice of moto, which runs a Lambda function in Docker for every `Custom::` type."""
    return get_model_map().get(resource_type) or Modelled


class ResourceRefusedError(CloudFormationError):
    """One resource could not be created; moto would answer 500 and print a traceback."""

    code = "ValidationError"


_create_as_moto = parsing.parse_and_create_resource


def _create_resource(logical_id: str, resource: dict[str, Any], resources: ResourceMap, **where: Any) -> Any:
    """Create a resource as moto does, with the managed policies of roles and the names of parameters; errors name the resource."""
    kind, properties = resource["Type"], resource.get("Properties", {})
    if kind == "AWS::SSM::Parameter":
        resource = {**resource, "Properties": {"Name": f"CFN-{logical_id}", **properties}}
    try:
        created: Any = _create_as_moto(logical_id, resource, resources, **where)
        if kind == "AWS::IAM::Role" and created:
            backend = iam_backends[where["account_id"]][get_partition(where["region_name"])]
            for arn in parsing.clean_json(properties.get("ManagedPolicyArns", []), resources):
                backend.attach_role_policy(arn, created.name)
        return created
    except ResourceRefusedError:
        raise
    except Exception as error:
        reason = getattr(error, "message", "") or getattr(error, "description", "") or str(error)
        text = " ".join(reason.split()) or repr(error)
        raise ResourceRefusedError(f"{logical_id} ({kind}): {text}") from error


_parse_as_moto = Stack.parse_template


def _parse_template(template: str) -> Any:
    """moto reads templates as YAML, which takes seconds where JSON takes milliseconds."""
    try:
        return json.loads(template)
    except ValueError:
        return _parse_as_moto(template)


@cache
def _known_policies() -> tuple[AWSManagedPolicy, ...]:
    known = json.loads(aws_managed_policies_data).items()
    return tuple(AWSManagedPolicy.from_data(name, ACCOUNT, "aws", data) for name, data in known)


def _policies_of_aws(backend: IAMBackend) -> list[AWSManagedPolicy]:
    """Load the managed policies of AWS once. moto leaves them out, or reads them again for each partition."""
    return [copy(policy) for policy in _known_policies()] if backend.region_name == "aws" else []


@contextmanager
def extended_moto(client_of: ClientOf) -> Iterator[None]:
    """Install the extension for the duration of the context; its calls go through `client_of`."""
    replaced: tuple[tuple[Any, str, Any], ...] = (
        (parsing, "resource_class_from_type", _model_for),
        (parsing, "parse_and_create_resource", _create_resource),
        (IAMBackend, "_init_aws_policies", _policies_of_aws),
        (AmiBackend, "_load_amis", lambda _: None),  # thousands, and no template names one of them
        (Stack, "parse_template", staticmethod(_parse_template)),
    )
    _clients.append(client_of)
    try:
        with ExitStack() as patches:
            for owner, name, replacement in replaced:
                patches.enter_context(patch.object(owner, name, replacement))
            yield
    finally:
        _clients.remove(client_of)
