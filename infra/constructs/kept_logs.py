"""Log groups that are deleted with their stack, and keep, encrypt and send their logs as the account wants it."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.constructs.conventions import conventions
from infra.deployment_file import Lasting


def log_group(scope: Construct, construct_id: str, *, name: str | None = None) -> logs.LogGroup:
    """A log group of our own."""
    group = logs.LogGroup(scope, construct_id, log_group_name=name, removal_policy=cdk.RemovalPolicy.DESTROY)
    resource = group.node.default_child
    assert isinstance(resource, logs.CfnLogGroup)
    _keep(resource, conventions(scope))
    return group


def keep_logs(construct: Construct) -> None:
    """For every log group inside `construct`, those that CDK made by itself included."""
    said = conventions(construct)
    for child in construct.node.find_all():
        if isinstance(child, logs.CfnLogGroup):
            _keep(child, said)
            child.apply_removal_policy(cdk.RemovalPolicy.DESTROY)


def _keep(group: logs.CfnLogGroup, said: Lasting) -> None:
    group.retention_in_days = said.log_days
    if said.kms_key:
        group.kms_key_id = said.kms_key
    if said.log_destination:
        logs.CfnSubscriptionFilter(
            group,
            "Sent",
            destination_arn=said.log_destination,
            filter_pattern="",  # everything
            log_group_name=group.ref,
        )
