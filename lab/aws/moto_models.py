"""CloudFormation models of an EKS cluster and its node groups, over the `eks` and `ec2` backends that moto has.

Properties go in as the templates write them and come out of the EKS API as EKS would show them. Where moto would
fill in a default that EKS does not have (instance types beside a launch template, an AMI release of 2021), the field
stays empty.

CloudFormation models that moto lacks of things that moto's APIs have: each calls the API that CloudFormation would.

The SDK checks the parameters against its own model of the service, and what was made can be read through the API
afterwards. CloudFormation's names of properties are the API's names of parameters, but for what `_ORDERS` changes.

What moto's CloudFormation lacks for our templates, and nothing beyond it.

Real, in moto's own backends and readable through the APIs afterwards:
    AWS::EKS::Cluster      in moto's `eks`, with a cluster security group in its `ec2` as EKS makes one
    AWS::EKS::Nodegroup    in moto's `eks`; what EKS would leave open (instance types, disk, release) stays open
    AWS::SSM::Parameter    as in moto, but a name is made up where the template gives none
    AWS::IAM::Role         as in moto, which forgets the managed policies: they are attached, and must exist
    alarms, schedules, policies of topics and queues, subscriptions, egress rules: through moto's APIs, see `api_models`

Recorded only, because moto has no such API: resolved properties are kept and can be listed, nothing checks them and
nothing acts on them (no Lambda runs, no kubectl, no helm):
    AWS::EKS::Addon, AWS::EKS::PodIdentityAssociation, AWS::EKS::AccessEntry, AWS::CloudWatch::CompositeAlarm,
    Custom::AWSCDK-EKS-KubernetesResource, Custom::AWSCDK-EKS-HelmChart
and one because moto takes it too literally: AWS::S3::BucketPolicy, which moto enforces without its conditions, so that
"no one without TLS" becomes "no one".

Absent: every other type that moto does not know. It is kept like a recorded one, so that references to it resolve to
something that says what it is (`not-modelled-...`), and counts as *not modelled* in every account of the rehearsal.
Plain moto would leave such a resource out without a word and resolve references to it to nothing.

Importing this changes nothing: `lab.aws.moto_models` puts it in place. The module's name must contain a dot, since moto
files a model under the second part of its module's name.

Puts our CloudFormation models into moto for a while, and lets it say in one line what it cannot do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError, ParamValidationError
from moto.cloudformation import models as cloudformation
from moto.cloudformation import parsing
from moto.cloudformation.exceptions import CloudFormationError, ValidationError
from moto.cloudformation.models import cloudformation_backends
from moto.cloudformation.parsing import ResourceMap, get_model_map
from moto.core.common_models import CloudFormationModel
from moto.core.config import default_user_config
from moto.core.exceptions import ServiceException
from moto.ec2.models import ec2_backends
from moto.eks.models import Cluster, Nodegroup, eks_backends
from moto.iam.models import Role, iam_backends
from moto.ssm.models import Parameter
from moto.utilities.utils import get_partition
from werkzeug.exceptions import HTTPException

from experiment.finding import Outside
from lab.aws.accounting import Outcome


class EksCluster(CloudFormationModel):
    """https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-eks-cluster.html"""

    def __init__(self, cluster: Cluster, security_group_id: str) -> None:
        self.physical_resource_id = cluster.name
        self._attributes = {
            "Arn": cluster.arn,
            "CertificateAuthorityData": cluster.certificate_authority["data"],
            "ClusterSecurityGroupId": security_group_id,
            "EncryptionConfigKeyArn": next(
                (one["provider"]["keyArn"] for one in cluster.encryption_config), ""
            ),
            "Endpoint": cluster.endpoint,
            "Id": cluster.name,
            "OpenIdConnectIssuerUrl": cluster.identity["oidc"]["issuer"],
        }

    @staticmethod
    def cloudformation_name_type() -> str:
        return "Name"

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::EKS::Cluster"

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        return True

    @classmethod
    def create_from_cloudformation_json(
        cls,
        resource_name: str,
        cloudformation_json: dict[str, Any],
        account_id: str,
        region_name: str,
        **_: Any,
    ) -> EksCluster:
        properties = cloudformation_json["Properties"]
        network = _camel(properties["ResourcesVpcConfig"])
        ec2 = ec2_backends[account_id][region_name]
        network["vpcId"] = ec2.get_subnet(network["subnetIds"][0]).vpc_id
        group = ec2.create_security_group(
            f"eks-cluster-sg-{resource_name}", "EKS created security group", vpc_id=network["vpcId"]
        )
        network["clusterSecurityGroupId"] = group.id
        types = _log_types(properties)
        cluster = eks_backends[account_id][region_name].create_cluster(
            name=resource_name,
            role_arn=properties["RoleArn"],
            resources_vpc_config=network,
            version=properties.get("Version"),
            kubernetes_network_config=_camel(properties.get("KubernetesNetworkConfig")),
            logging={"clusterLogging": [{"types": types, "enabled": True}]} if types else None,
            tags={tag["Key"]: tag["Value"] for tag in properties.get("Tags", ())},
            encryption_config=_camel(properties.get("EncryptionConfig")),
        )
        return cls(cluster, group.id)

    def get_cfn_attribute(self, attribute: str) -> str:
        if attribute not in self._attributes:
            raise ValidationError(message=f"AWS::EKS::Cluster has no attribute {attribute} in the rehearsal")
        return self._attributes[attribute]


class EksNodegroup(CloudFormationModel):
    """https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-eks-nodegroup.html"""

    def __init__(self, group: Nodegroup) -> None:
        self.physical_resource_id = f"{group.cluster_name}/{group.nodegroup_name}"
        self._attributes = {
            "Arn": group.arn,
            "ClusterName": group.cluster_name,
            "Id": self.physical_resource_id,
            "NodegroupName": group.nodegroup_name,
        }

    @staticmethod
    def cloudformation_name_type() -> str:
        return "NodegroupName"

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::EKS::Nodegroup"

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        return True

    @classmethod
    def create_from_cloudformation_json(
        cls,
        resource_name: str,
        cloudformation_json: dict[str, Any],
        account_id: str,
        region_name: str,
        **_: Any,
    ) -> EksNodegroup:
        properties = cloudformation_json["Properties"]
        eks = eks_backends[account_id][region_name]
        group = eks.create_nodegroup(
            cluster_name=properties["ClusterName"],
            node_role=properties["NodeRole"],
            nodegroup_name=resource_name,
            subnets=properties["Subnets"],
            scaling_config=_camel(properties.get("ScalingConfig")),
            disk_size=properties.get("DiskSize"),
            instance_types=properties.get("InstanceTypes"),
            ami_type=properties.get("AmiType"),
            remote_access=_camel(properties.get("RemoteAccess")),
            labels=properties.get("Labels"),
            taints=_camel(properties.get("Taints")),
            tags=properties.get("Tags"),
            launch_template=_camel(properties.get("LaunchTemplate")),
            capacity_type=properties.get("CapacityType"),
            version=properties.get("Version") or eks.describe_cluster(properties["ClusterName"]).version,
            release_version=properties.get("ReleaseVersion"),
        )
        group.update_config = _camel(properties.get("UpdateConfig"))
        group.node_repair_config = _camel(properties.get("NodeRepairConfig"))
        _leave_open(group, properties)
        return cls(group)

    def get_cfn_attribute(self, attribute: str) -> str:
        if attribute not in self._attributes:
            raise ValidationError(message=f"AWS::EKS::Nodegroup has no attribute {attribute}")
        return self._attributes[attribute]


def _camel(value: Any) -> Any:
    """CloudFormation writes `SubnetIds` where the EKS API has `subnetIds`; not for maps whose keys are the user's."""
    if isinstance(value, dict):
        return {key[:1].lower() + key[1:]: _camel(one) for key, one in value.items()}
    return [_camel(one) for one in value] if isinstance(value, list) else value


def _log_types(properties: dict[str, Any]) -> list[str]:
    logging = properties.get("Logging", {}).get("ClusterLogging", {})
    return [one["Type"] for one in logging.get("EnabledTypes", ())]


def _leave_open(group: Nodegroup, properties: dict[str, Any]) -> None:
    """Take back moto's defaults where EKS has none."""
    invented = {"release_version": "ReleaseVersion", "remote_access": "RemoteAccess"}
    if "LaunchTemplate" in properties:
        invented |= {"instance_types": "InstanceTypes", "disk_size": "DiskSize"}
    for attribute, name in invented.items():
        if name not in properties:
            setattr(group, attribute, None)


Properties = Mapping[str, Any]
ClientOf = Callable[[str, str, str], Any]
"""Makes a client from the name of a service, an account and a region."""
_clients: list[ClientOf] = []


@contextmanager
def calling(client_of: ClientOf) -> Iterator[None]:
    """Let the models call through `client_of` for a while."""
    _clients.append(client_of)
    try:
        yield
    finally:
        _clients.remove(client_of)


@dataclass(frozen=True, kw_only=True)
class Order:
    """How a resource of one type is made."""

    service: str
    call: str
    """The client's method."""
    name: str = ""
    """Property that names the resource; CloudFormation makes a name up where the template gives none."""
    physical_id: Callable[[Properties, Mapping[str, Any]], str]
    """From properties and answer."""
    arguments: Callable[[Properties], list[Mapping[str, Any]]] = lambda properties: [properties]
    """Parameters of each call."""


def _egress(properties: Properties) -> list[Mapping[str, Any]]:
    flat = {name: properties[name] for name in ("IpProtocol", "FromPort", "ToPort") if name in properties}
    where: dict[str, Any] = {}
    if "CidrIp" in properties:
        where["IpRanges"] = [{"CidrIp": properties["CidrIp"]}]
    if "CidrIpv6" in properties:
        where["Ipv6Ranges"] = [{"CidrIpv6": properties["CidrIpv6"]}]
    if "DestinationSecurityGroupId" in properties:
        where["UserIdGroupPairs"] = [{"GroupId": properties["DestinationSecurityGroupId"]}]
    return [{"GroupId": properties["GroupId"], "IpPermissions": [{**flat, **where}]}]


def _topic_policies(properties: Properties) -> list[Mapping[str, Any]]:
    policy = json.dumps(properties["PolicyDocument"])
    return [
        {"TopicArn": topic, "AttributeName": "Policy", "AttributeValue": policy}
        for topic in properties["Topics"]
    ]


def _queue_policies(properties: Properties) -> list[Mapping[str, Any]]:
    policy = json.dumps(properties["PolicyDocument"])
    return [{"QueueUrl": queue, "Attributes": {"Policy": policy}} for queue in properties["Queues"]]


_ORDERS: Mapping[str, Order] = {
    "AWS::CloudWatch::Alarm": Order(
        service="cloudwatch",
        call="put_metric_alarm",
        name="AlarmName",
        physical_id=lambda p, _: p["AlarmName"],
    ),
    "AWS::EC2::SecurityGroupEgress": Order(
        service="ec2",
        call="authorize_security_group_egress",
        physical_id=lambda p, _: f"{p['GroupId']}-egress",
        arguments=_egress,
    ),
    "AWS::SNS::Subscription": Order(
        service="sns", call="subscribe", physical_id=lambda _, answer: answer["SubscriptionArn"]
    ),
    "AWS::SNS::TopicPolicy": Order(
        service="sns",
        call="set_topic_attributes",
        physical_id=lambda p, _: p["Topics"][0],
        arguments=_topic_policies,
    ),
    "AWS::SQS::QueuePolicy": Order(
        service="sqs",
        call="set_queue_attributes",
        physical_id=lambda p, _: p["Queues"][0],
        arguments=_queue_policies,
    ),
    "AWS::Scheduler::Schedule": Order(
        service="scheduler", call="create_schedule", name="Name", physical_id=lambda p, _: p["Name"]
    ),
    "AWS::Scheduler::ScheduleGroup": Order(
        service="scheduler", call="create_schedule_group", name="Name", physical_id=lambda p, _: p["Name"]
    ),
}


class ApiModel(CloudFormationModel):
    """A resource that was made by a call."""

    def __init__(self, resource_type: str, physical_id: str, answer: Mapping[str, Any]) -> None:
        self.type = resource_type
        self.physical_resource_id = physical_id
        self._answer = answer

    @staticmethod
    def cloudformation_name_type() -> str:
        return ""

    @staticmethod
    def cloudformation_type() -> str:
        return "lab::ApiModel"

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        return True

    def get_cfn_attribute(self, attribute: str) -> str:
        """`Arn` where the call answered with one."""
        found = [value for key, value in self._answer.items() if attribute == "Arn" and key.endswith("Arn")]
        if not found:
            raise ValidationError(message=f"{self.type} has no attribute {attribute} in the rehearsal")
        return str(found[0])


def _model_of(resource_type: str, order: Order) -> type[CloudFormationModel]:
    def create_from_cloudformation_json(
        cls: type[ApiModel],
        resource_name: str,
        cloudformation_json: dict[str, Any],
        account_id: str,
        region_name: str,
        **_: Any,
    ) -> ApiModel:
        properties = dict(cloudformation_json["Properties"])
        if order.name:
            properties.setdefault(order.name, resource_name)
        answer: Mapping[str, Any] = {}
        client = _clients[-1](order.service, account_id, region_name)
        for arguments in order.arguments(properties):
            try:
                answer = getattr(client, order.call)(**arguments)
            except (ClientError, ParamValidationError) as error:
                raise ValidationError(message=f"{order.call}: {' '.join(str(error).split())}") from error
        return cls(resource_type, order.physical_id(properties, answer), answer)

    make: Any = create_from_cloudformation_json
    members = {
        "__module__": __name__,
        "cloudformation_type": staticmethod(lambda: resource_type),
        "cloudformation_name_type": staticmethod(lambda: order.name),
        "create_from_cloudformation_json": classmethod(make),
    }
    return type(f"Api{resource_type.replace('::', '')}", (ApiModel,), members)


API_MODELS: Mapping[str, type[CloudFormationModel]] = {
    resource_type: _model_of(resource_type, order) for resource_type, order in _ORDERS.items()
}


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


def outcome_of(resource_type: str) -> Outcome:
    """What can come of a resource of this type, were it created."""
    if resource_type in RECORDED_TYPES:
        return Outcome.RECORDED
    return Outcome.NOT_MODELLED if model_for(resource_type) is Recorded else Outcome.CREATED


def recorded(stack_name: str, *, account: str, region: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(logical id, type, resolved properties) of what a stack left as a record; the server runs in this process."""
    resources = _resources(stack_name, account, region)
    for logical_id in resources:
        resource: Any = resources[logical_id]
        if isinstance(resource, Recorded):
            yield logical_id, resource.resource_type, resource.properties


def false_conditions(stack_name: str, *, account: str, region: str) -> frozenset[str]:
    """Names of the template's conditions that do not hold."""
    resources = _resources(stack_name, account, region)
    return frozenset(name for name in resources.lazy_condition_map if not resources.lazy_condition_map[name])


def _resources(stack_name: str, account: str, region: str) -> ResourceMap:
    resources: ResourceMap = _stack(stack_name, account, region).resource_map
    return resources


def _stack(stack_name: str, account: str, region: str) -> Any:
    try:
        return cloudformation_backends[account][region].get_stack(stack_name)
    except ValidationError:
        raise Outside(
            f"stack {stack_name}: not in this process's moto; records can be read here only, so pass an endpoint "
            "that rehearsal_server() gave in this process"
        ) from None


class SsmParameter(CloudFormationModel):
    """moto's own parameter; moto fails on one without a name, where CloudFormation generates it."""

    @staticmethod
    def cloudformation_name_type() -> str:
        return "Name"

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::SSM::Parameter"

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        return Parameter.has_cfn_attr(attr)

    @classmethod
    def create_from_cloudformation_json(
        cls,
        resource_name: str,
        cloudformation_json: dict[str, Any],
        account_id: str,
        region_name: str,
        **_: Any,
    ) -> Parameter:
        cloudformation_json["Properties"].setdefault("Name", resource_name)
        return Parameter.create_from_cloudformation_json(
            resource_name, cloudformation_json, account_id, region_name
        )


class IamRole(Role):
    """moto's own role, with the managed policies that its template names: AWS's own, or made before."""

    @classmethod
    def create_from_cloudformation_json(
        cls,
        resource_name: str,
        cloudformation_json: dict[str, Any],
        account_id: str,
        region_name: str,
        **_: Any,
    ) -> Role:
        role: Role = Role.create_from_cloudformation_json(
            resource_name, cloudformation_json, account_id, region_name
        )
        backend = iam_backends[account_id][get_partition(region_name)]
        for arn in cloudformation_json["Properties"].get("ManagedPolicyArns", ()):
            backend.attach_role_policy(arn, role.name)
        return role


class Recorded(CloudFormationModel):
    """A resource of which only the resolved properties are kept."""

    def __init__(self, resource_type: str, logical_id: str, properties: Mapping[str, Any]) -> None:
        self.resource_type = resource_type
        self.properties = properties
        prefix = "recorded" if resource_type in RECORDED_TYPES else "not-modelled"
        self.physical_resource_id = f"{prefix}-{logical_id}"

    @staticmethod
    def cloudformation_name_type() -> str:
        return ""

    @staticmethod
    def cloudformation_type() -> str:
        return "lab::Recorded"

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        return True

    @classmethod
    def create_from_cloudformation_json(
        cls,
        resource_name: str,
        cloudformation_json: dict[str, Any],
        account_id: str,
        region_name: str,
        **where: Any,
    ) -> Recorded:
        return cls(where["ResourceType"], where["LogicalId"], cloudformation_json["Properties"])

    def get_cfn_attribute(self, attribute: str) -> str:
        return f"{self.physical_resource_id}-{attribute}"


_MODELLED: Mapping[str, type[CloudFormationModel]] = {
    **{model.cloudformation_type(): model for model in (EksCluster, EksNodegroup, IamRole, SsmParameter)},
    **API_MODELS,
}


def model_for(resource_type: str) -> type[CloudFormationModel]:
    """Takes the place of moto's choice, which runs a Lambda function in Docker for every `Custom::` type."""
    return _MODELLED.get(resource_type) or get_model_map().get(resource_type) or Recorded


class ResourceRefusedError(CloudFormationError):
    """One resource could not be made; moto would answer 500 and print a traceback."""

    code = "ValidationError"


def _naming_the_resource(create: Callable[..., Any]) -> Callable[..., Any]:
    def create_resource(logical_id: str, resource_json: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return create(logical_id, resource_json, *args, **kwargs)
        except ResourceRefusedError:
            raise
        except Exception as error:
            reason = getattr(error, "message", "") or getattr(error, "description", "") or repr(error)
            raise ResourceRefusedError(f"{logical_id} ({resource_json['Type']}): {reason}") from error

    return create_resource


def _answering_in_one_line(create: Callable[..., Any]) -> Callable[..., Any]:
    def create_stack(*args: Any, **kwargs: Any) -> Any:
        try:
            return create(*args, **kwargs)
        except (ServiceException, HTTPException):
            raise
        except Exception as error:
            raise ResourceRefusedError(f"outside its resources: {error!r}") from error

    return create_stack


def _json_first(parse: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    """moto reads templates as YAML, which takes seconds where JSON takes milliseconds."""

    def parse_template(template: str) -> dict[str, Any]:
        try:
            parsed: dict[str, Any] = json.loads(template)
        except ValueError:
            return parse(template)
        return parsed

    return parse_template


@contextmanager
def extended_moto() -> Iterator[None]:
    """Put the extension in place for a while, and AWS's own managed policies with it: moto knows them, and leaves them
    out unless it is asked."""
    backend = cloudformation.CloudFormationBackend
    replaced = (
        (parsing, "resource_class_from_type", model_for),
        (parsing, "parse_and_create_resource", _naming_the_resource(parsing.parse_and_create_resource)),
        (backend, "create_stack", _answering_in_one_line(backend.create_stack)),
        (
            cloudformation.Stack,
            "parse_template",
            staticmethod(_json_first(cloudformation.Stack.parse_template)),
        ),
    )
    originals = [(owner, name, vars(owner)[name]) for owner, name, _ in replaced]
    iam = default_user_config["iam"]
    policies_loaded = iam["load_aws_managed_policies"]
    try:
        iam["load_aws_managed_policies"] = True
        for owner, name, replacement in replaced:
            setattr(owner, name, replacement)
        yield
    finally:
        iam["load_aws_managed_policies"] = policies_loaded
        for owner, name, original in originals:
            setattr(owner, name, original)
