"""What an account wants of everything that is made in it: one key, how long logs are kept and where they go, tags.

`deployment.yaml` or a stage of `pipeline.yaml` says it. Tags and what holds of log groups are aspects of the scope. The rest travels in
its context, as CDK's own permissions boundary does, since it is asked for while constructs are made: a key by what grants its use, and tags
by a launch template, which hands them to nodes and disks and has no place for an aspect's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_kms as kms
from constructs import Construct

from infra.constructs.kept_logs import KeptLogs
from infra.deployment_file import CONVENTIONS, Lasting

_CONTEXT = "speculation:conventions"


def follow(scope: Construct, lasting: Lasting) -> None:
    """For everything that is made in `scope` from now on; it must be empty yet."""
    scope.node.set_context(_CONTEXT, {name: getattr(lasting, name) for name in ("account", *CONVENTIONS)})
    cdk.Aspects.of(scope).add(KeptLogs(lasting))
    tag(scope, lasting.tags)


def tag(scope: Construct, tags: Mapping[str, str]) -> None:
    """The stacks, whose tags CloudFormation puts on all that can have some, and the groups that pass theirs on to instances."""
    for key, value in tags.items():
        cdk.Tags.of(scope).add(
            key, value, include_resource_types=["aws:cdk:stack", "AWS::AutoScaling::AutoScalingGroup"]
        )


def conventions(scope: Construct) -> Lasting:
    """What holds in `scope` of the account and of `CONVENTIONS`; the defaults where nobody said anything."""
    return Lasting(**(scope.node.try_get_context(_CONTEXT) or {}))


def encryption_key(scope: Construct, construct_id: str, **made: Any) -> kms.IKey:
    """The account's own key where one is named; else one that rotates, made with these properties."""
    if arn := conventions(scope).kms_key:
        return kms.Key.from_key_arn(scope, construct_id, arn)
    return kms.Key(scope, construct_id, enable_key_rotation=True, **made)
