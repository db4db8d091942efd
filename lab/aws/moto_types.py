"""What moto's CloudFormation lacks for our templates, and nothing beyond it.

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

Importing this changes nothing: `lab.aws.extension` puts it in place. The module's name must contain a dot, since moto
files a model under the second part of its module's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from moto.cloudformation.exceptions import ValidationError
from moto.cloudformation.models import cloudformation_backends
from moto.cloudformation.parsing import ResourceMap, get_model_map
from moto.core.common_models import CloudFormationModel
from moto.iam.models import Role, iam_backends
from moto.ssm.models import Parameter
from moto.utilities.utils import get_partition

from experiment.finding import Outside
from lab.aws.accounting import Outcome
from lab.aws.api_models import API_MODELS
from lab.aws.eks_models import EksCluster, EksNodegroup

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
