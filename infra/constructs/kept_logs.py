"""Log groups that forget after a while and go with their stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aws_cdk as cdk
from aws_cdk import aws_logs as logs

if TYPE_CHECKING:
    from constructs import Construct


def log_group(scope: Construct, construct_id: str, *, days: int, name: str | None = None) -> logs.LogGroup:
    """A log group that keeps `days`, one of the numbers that CloudWatch Logs accepts."""
    group = logs.LogGroup(scope, construct_id, log_group_name=name)
    keep_logs(group, days=days)
    return group


def keep_logs(construct: Construct, *, days: int) -> None:
    """Set retention and removal of every log group inside `construct`, also of those that CDK made unasked."""
    for child in construct.node.find_all():
        if isinstance(child, logs.CfnLogGroup):
            child.retention_in_days = days
            child.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
