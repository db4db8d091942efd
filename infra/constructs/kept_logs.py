"""Log groups are deleted with their stack, and keep, encrypt and send their logs as the account wants it."""

from __future__ import annotations

import aws_cdk as cdk
import jsii
from aws_cdk import aws_logs as logs
from constructs import IConstruct

from infra.deployment_file import Lasting


@jsii.implements(cdk.IAspect)
class KeptLogs:
    """For every log group of a scope, those that CDK makes by itself included."""

    def __init__(self, said: Lasting) -> None:
        self._said = said

    def visit(self, node: IConstruct) -> None:
        """Called by the synth for every construct."""
        if not isinstance(node, logs.CfnLogGroup):
            return
        node.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
        node.retention_in_days = self._said.log_days
        if self._said.kms_key:
            node.kms_key_id = self._said.kms_key
        if self._said.log_destination:
            logs.CfnSubscriptionFilter(
                node,
                "Sent",
                destination_arn=self._said.log_destination,
                filter_pattern="",  # everything
                log_group_name=node.ref,
            )
