"""Log groups that are deleted with their stack, and keep, encrypt and send their logs as the account wants it."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.constructs.conventions import convention


def log_group(scope: Construct, construct_id: str, *, name: str | None = None) -> logs.LogGroup:
    """A log group of our own."""
    group = logs.LogGroup(scope, construct_id, log_group_name=name)
    keep_logs(group)
    return group


def keep_logs(construct: Construct) -> None:
    """For every log group inside `construct`, those that CDK made by itself included."""
    key, days, destination = (
        convention(construct, name) for name in ("kms_key", "log_days", "log_destination")
    )
    for child in construct.node.find_all():
        if isinstance(child, logs.CfnLogGroup):
            child.retention_in_days = days
            child.kms_key_id = key or None
            child.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
            if destination:
                logs.CfnSubscriptionFilter(
                    child,
                    "Sent",
                    destination_arn=destination,
                    filter_pattern="",  # everything
                    log_group_name=child.ref,
                )
