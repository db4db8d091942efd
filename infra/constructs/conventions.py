"""What an account wants of everything that is made in it: one key, how long logs are kept and where they go, tags.

`deployment.yaml` or a stage of `pipeline.yaml` says it. It travels in the scope's context, as CDK's own permissions boundary
does: what makes a key, a log group or a node reads it there, and no stack hands it on.
"""

from __future__ import annotations

from typing import Any

from aws_cdk import aws_kms as kms
from constructs import Construct

from infra.deployment_file import CONVENTIONS, Lasting

_CONTEXT = "speculation:conventions"


def follow(scope: Construct, lasting: Lasting) -> None:
    """For everything that is made in `scope` from now on; it must be empty yet."""
    scope.node.set_context(_CONTEXT, {name: getattr(lasting, name) for name in ("account", *CONVENTIONS)})


def conventions(scope: Construct) -> Lasting:
    """What holds in `scope` of the account and of `CONVENTIONS`; the defaults where nobody said anything."""
    return Lasting(**(scope.node.try_get_context(_CONTEXT) or {}))


def encryption_key(scope: Construct, construct_id: str, **made: Any) -> kms.IKey:
    """The account's own key where one is named; else one that rotates, made with these properties."""
    if arn := conventions(scope).kms_key:
        return kms.Key.from_key_arn(scope, construct_id, arn)
    return kms.Key(scope, construct_id, enable_key_rotation=True, **made)
