"""The bootstrap as docs/pipeline.md tells it: the committed policies first, then `cdk bootstrap` held to them.

    aws cloudformation deploy --stack-name speculation-policies --template-file infra/bootstrap/policies.yaml ...
    cdk bootstrap ... --cloudformation-execution-policies ARN --custom-permissions-boundary NAME

Afterwards the roles are asked, through the API, what they carry. moto refuses nobody anything, so that the policies
suffice is shown by tests/infra/pipeline alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from moto.cloudformation.utils import yaml_tag_constructor

from experiment.finding import Refusal
from lab.aws.accounting import Outcome, Resource
from lab.aws.assembly import StackTemplate
from lab.aws.stacks import create

POLICIES = Path(__file__).resolve().parents[2] / "infra" / "bootstrap" / "policies.yaml"
POLICIES_STACK = "speculation-policies"
BOOTSTRAP_STACK = "CDKToolkit"
EXECUTION_ROLE = "CloudFormationExecutionRole"
"""Logical id in the template of the bootstrap: the role that CloudFormation takes on."""
_AWS_OWN = ("ReadOnlyAccess", "AWSCloudFormationReadOnlyAccess")
"""What the bootstrap's roles for looking and deploying carry of AWS's; with the second, nothing can be changed."""


@dataclass(frozen=True, kw_only=True)
class Policies:
    """The committed policies, deployed."""

    stack: StackTemplate
    execution_arn: str
    boundary: str
    """Name, as the flag takes it."""
    boundary_arn: str

    @property
    def flags(self) -> tuple[str, ...]:
        """What `cdk bootstrap` is told."""
        return (
            "--cloudformation-execution-policies",
            self.execution_arn,
            "--custom-permissions-boundary",
            self.boundary,
        )


class _Loader(yaml.SafeLoader):
    """YAML with CloudFormation's short forms."""


_Loader.add_multi_constructor("!", lambda loader, tag, node: yaml_tag_constructor(loader, f"!{tag}", node))


def deploy_policies(cloudformation: Any) -> Policies:
    """What an administrator does first. Raises `Refusal`."""
    body = POLICIES.read_text(encoding="utf-8")
    template = yaml.load(body, Loader=_Loader)
    stack = StackTemplate(name=POLICIES_STACK, body=body, template=template, tags={})
    create(stack, cloudformation)
    (found,) = cloudformation.describe_stacks(StackName=POLICIES_STACK)["Stacks"]
    outputs = {one["OutputKey"]: one["OutputValue"] for one in found["Outputs"]}
    execution, boundary = outputs["ExecutionPolicyArn"], outputs["BoundaryName"]
    return Policies(
        stack=stack,
        execution_arn=execution,
        boundary=boundary,
        boundary_arn=f"{execution.rpartition('/')[0]}/{boundary}",
    )


def check_roles(resources: Iterable[Resource], policies: Policies, iam: Any) -> int:
    """Ask every role what it carries; returns how many were asked.

    The role with which CloudFormation deploys has the execution policy alone, inside the boundary; the bootstrap's other
    roles have no policy with which anything can be changed; every role of the stacks is inside the boundary. Raises
    `Refusal`.
    """
    roles = [one for one in resources if one.type == "AWS::IAM::Role" and one.outcome is Outcome.CREATED]
    for role in roles:
        attached, boundary = _carries(role.physical_id, iam)
        if role.logical_id == EXECUTION_ROLE and role.stack == BOOTSTRAP_STACK:
            _expect(role, "policies", attached, {policies.execution_arn})
        elif role.stack == BOOTSTRAP_STACK:
            _expect(
                role, "policies beyond AWS's for reading", {arn for arn in attached if not _reads(arn)}, set()
            )
            continue
        _expect(role, "permissions boundary", {boundary}, {policies.boundary_arn})
    return len(roles)


def _carries(name: str, iam: Any) -> tuple[set[str], str]:
    boundary = iam.get_role(RoleName=name)["Role"].get("PermissionsBoundary", {})
    pages = iam.get_paginator("list_attached_role_policies").paginate(RoleName=name)
    attached = {one["PolicyArn"] for page in pages for one in page["AttachedPolicies"]}
    return attached, boundary.get("PermissionsBoundaryArn", "")


def _reads(arn: str) -> bool:
    return arn.endswith(tuple(f":iam::aws:policy/{name}" for name in _AWS_OWN))


def _expect(role: Resource, what: str, found: set[str], wanted: set[str]) -> None:
    if found != wanted:
        said, meant = (", ".join(sorted(one)) or "none" for one in (found - {""}, wanted))
        raise Refusal(
            f"stack {role.stack}: role {role.physical_id}: {what}: {said}, not {meant}; "
            f"see {POLICIES.name} and docs/pipeline.md"
        )
