"""The base of all stacks: name, region, tags, the account's key, log settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.deployment_file import DeployedExperiment, Settings
from trnspec.experiment.naming import PROTECTED, stack_name


class ExperimentStack(cdk.Stack):
    """A stack of one experiment, in its region and in the account of deployment.yaml or the pipeline's stage. Without an account,
    that of the credentials of `cdk deploy` is used. Nothing is looked up at synth, so the same files give the same templates
    everywhere.
    """

    def __init__(self, scope: Construct, part: str, description: str, deployed: DeployedExperiment) -> None:
        self.deployed, self.experiment, self.settings = deployed, deployed.experiment, deployed.settings
        name = stack_name(self.experiment, part)
        super().__init__(
            scope,
            name,  # names that CDK makes of a construct's path, such as a VPC's, then contain the stack
            stack_name=name,
            description=f"{self.experiment.name}: {description}",
            env=cdk.Environment(account=self.settings.account or None, region=self.experiment.cluster.region),
            termination_protection=part in PROTECTED,
        )


class StackOfCluster(ExperimentStack):
    """The stack of the cluster, as the stacks that need its cluster and its network see it."""

    cluster: eks.ICluster  # pyrefly: ignore[uninitialized-instance-variable]  # ClusterStack sets both
    vpc: ec2.IVpc  # pyrefly: ignore[uninitialized-instance-variable]


def tag(scope: Construct, tags: Mapping[str, str]) -> None:
    """Tag the stacks, whose tags CloudFormation copies to their resources, and the groups, which pass theirs on to instances."""
    for key, value in tags.items():
        cdk.Tags.of(scope).add(
            key, value, include_resource_types=["aws:cdk:stack", "AWS::AutoScaling::AutoScalingGroup"]
        )


def configure_log_groups(scope: Construct, settings: Settings) -> None:
    """Configure all log groups in `scope`, also those that CDK creates: they are deleted with their stack, and use the retention, the
    key and the destination of the settings."""
    for node in scope.node.find_all():
        if not isinstance(node, logs.CfnLogGroup):
            continue
        node.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
        node.retention_in_days = settings.log_days
        if settings.kms_key:
            node.kms_key_id = settings.kms_key
        if settings.log_destination:
            logs.CfnSubscriptionFilter(
                node,
                "Sent",
                destination_arn=settings.log_destination,
                filter_pattern="",  # everything
                log_group_name=node.ref,
            )


def encryption_key(scope: Construct, construct_id: str, settings: Settings, **made: Any) -> kms.IKey:
    """Return the key of the settings, or create a rotating key with these properties."""
    if settings.kms_key:
        return kms.Key.from_key_arn(scope, construct_id, settings.kms_key)
    return kms.Key(scope, construct_id, enable_key_rotation=True, **made)  # pyrefly: ignore[bad-return]  # jsii names parameters of interfaces otherwise


def allow(
    actions: str, *resources: str, sid: str | None = None, where: dict[str, Any] | None = None
) -> iam.PolicyStatement:
    """Return an allow statement. `actions` of one service are separated by spaces, as in `s3:GetObject PutObject`; `where` maps the
    operator of a condition to its keys."""
    service, _, verbs = actions.partition(":")
    return iam.PolicyStatement(
        sid=sid,
        actions=[f"{service}:{verb}" for verb in verbs.split()],
        resources=list(resources),
        conditions=where,
    )


def service_role(scope: Construct, construct_id: str, service: str, **properties: Any) -> iam.Role:
    """Return a role that a service of AWS assumes."""
    principal = iam.ServicePrincipal(
        f"{service}.amazonaws.com", conditions=properties.pop("conditions", None)
    )
    return iam.Role(scope, construct_id, assumed_by=principal, **properties)  # pyrefly: ignore[bad-argument-type]  # jsii names parameters of interfaces otherwise


def pod_identity() -> iam.IPrincipal:
    """Return the principal that assumes the roles of pods; it tags its sessions
    (https://docs.aws.amazon.com/eks/latest/userguide/pod-id-role.html)."""
    return iam.ServicePrincipal("pods.eks.amazonaws.com").with_session_tags()  # pyrefly: ignore[bad-return]  # jsii names parameters of interfaces otherwise
