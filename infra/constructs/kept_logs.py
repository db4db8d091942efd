"""Log groups that keep logs for three months and are deleted with their stack."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_logs as logs
from constructs import Construct

_DAYS, _RETENTION = 90, logs.RetentionDays.THREE_MONTHS


def log_group(scope: Construct, construct_id: str, *, name: str | None = None) -> logs.LogGroup:
    """A log group of our own."""
    return logs.LogGroup(
        scope,
        construct_id,
        log_group_name=name,
        retention=_RETENTION,
        removal_policy=cdk.RemovalPolicy.DESTROY,
    )


def keep_logs(construct: Construct) -> None:
    """The same for every log group inside `construct` that CDK made by itself."""
    for child in construct.node.find_all():
        if isinstance(child, logs.CfnLogGroup):
            child.retention_in_days = _DAYS
            child.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
