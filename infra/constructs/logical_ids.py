"""Logical ids that must stay because of what has a name of its own: CloudFormation makes the new one before the old one goes, and
of one name, or of one rule of a security group, there cannot be two."""

from __future__ import annotations

import aws_cdk as cdk
from constructs import Construct, RootConstruct


def logical_id(*path: str) -> str:
    """What CDK makes of a path below a stack."""
    construct: Construct = RootConstruct()
    for one in path:
        construct = Construct(construct, one)
    return cdk.Names.unique_id(construct)
