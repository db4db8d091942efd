"""The pinned CDK command line against the loopback server, and the bootstrap as docs/pipeline.md describes it:

    aws cloudformation deploy --stack-name speculation-policies --template-file infra/bootstrap/policies.yaml ...
    cdk bootstrap aws://ACCOUNT/REGION --cloudformation-execution-policies ARN --custom-permissions-boundary NAME

Afterwards the policies of the roles are read through the API. moto refuses no call, so only tests/infra/pipeline shows
that the policies are sufficient.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.findings import Refusal
from lab.aws.assembly import StackTemplate
from lab.aws.moto_server import RehearsedResource, child_environment
from lab.programs import ROOT

CDK = ROOT / "node_modules" / ".bin" / "cdk"
POLICIES = ROOT / "infra" / "bootstrap" / "policies.yaml"
POLICIES_STACK = "speculation-policies"
BOOTSTRAP_STACK = "CDKToolkit"
EXECUTION_ROLE = "CloudFormationExecutionRole"
"""Logical id in the template of the bootstrap: the role that CloudFormation assumes."""
_AWS_OWN = (":iam::aws:policy/ReadOnlyAccess", ":iam::aws:policy/AWSCloudFormationReadOnlyAccess")
"""AWS's own policies of the bootstrap's lookup and deploy roles; both allow reading alone."""
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, kw_only=True)
class Cdk:
    """The command line, whose AWS is the loopback server. Docker is stood in for."""

    folder: Path
    """For logs."""
    endpoint: str
    region: str
    report: Callable[[str], None]
    """Is given each command."""

    def run(self, *words: str, app: Iterable[str] = (), log: str, where: Path = ROOT) -> str:
        """What the command says; `app` are further words of it that are not reported. Raises `Refusal` where the command
        line is missing or fails."""
        if not CDK.exists():
            raise Refusal(f"{CDK}: does not exist; run scripts/setup")
        self.report(f"cdk {' '.join(words)}")
        environment = child_environment(endpoint=self.endpoint, region=self.region) | {
            "CDK_DOCKER": str(Path(__file__).with_name("docker_stand_in")),
            "CDK_VALIDATION": "false",  # the tests of the templates have it on
            "CDK_DISABLE_CLI_TELEMETRY": "true",
            "NO_COLOR": "1",
            "PATH": f"{CDK.parent}{os.pathsep}{os.environ['PATH']}",  # where the command line finds node
        }
        done = subprocess.run(
            [str(CDK), *words, "--ci", "--no-notices", *app],
            cwd=where,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        (self.folder / log).write_text(done.stdout, encoding="utf-8")
        if done.returncode:
            lines = _ESCAPES.sub("", done.stdout).strip().splitlines()
            failed = [line.strip() for line in lines if re.search(r"❌|\bfailed:|Error\b", line)]
            reason = failed[0] if failed else " / ".join(line.strip() for line in lines[-5:]) or "no output"
            raise Refusal(f"cdk {words[0]}: exit {done.returncode}: {reason}; --keep DIR keeps the whole log")
        return done.stdout


@dataclass(frozen=True, kw_only=True)
class Policies:
    """The committed policies, deployed."""

    execution_arn: str
    boundary: str
    """Name, as the flag takes it."""

    @property
    def boundary_arn(self) -> str:
        return f"{self.execution_arn.rpartition('/')[0]}/{self.boundary}"

    @property
    def flags(self) -> tuple[str, ...]:
        """Options of `cdk bootstrap`."""
        flags = ("--cloudformation-execution-policies", self.execution_arn)
        return (*flags, "--custom-permissions-boundary", self.boundary)


def deploy_policies(cloudformation: Any) -> Policies:
    """What an administrator does first. Raises `Refusal`."""
    StackTemplate(name=POLICIES_STACK, body=POLICIES.read_text(encoding="utf-8")).create(cloudformation)
    (stack,) = cloudformation.describe_stacks(StackName=POLICIES_STACK)["Stacks"]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
    return Policies(execution_arn=outputs["ExecutionPolicyArn"], boundary=outputs["BoundaryName"])


def check_roles(resources: Iterable[RehearsedResource], policies: Policies, iam: Any) -> int:
    """Ask every role for its policies and its boundary; returns how many were asked.

    The role with which CloudFormation deploys has the execution policy alone, inside the boundary; the bootstrap's other
    roles have no policy with which anything can be changed; every role of the stacks is inside the boundary. Raises
    `Refusal`.
    """
    roles = [one for one in resources if one.type == "AWS::IAM::Role" and one.outcome == "created"]
    for role in roles:
        attributes = iam.get_role(RoleName=role.physical_id)["Role"]
        boundary = attributes.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn", "")
        pages = iam.get_paginator("list_attached_role_policies").paginate(RoleName=role.physical_id)
        attached = {policy["PolicyArn"] for page in pages for policy in page["AttachedPolicies"]}
        if role.stack == BOOTSTRAP_STACK and role.logical_id != EXECUTION_ROLE:
            changing = {arn for arn in attached if not arn.endswith(_AWS_OWN)}
            _expect(role, "policies beyond AWS's for reading", changing, set())
            continue
        if role.stack == BOOTSTRAP_STACK:
            _expect(role, "policies", attached, {policies.execution_arn})
        _expect(role, "permissions boundary", {boundary} - {""}, {policies.boundary_arn})
    return len(roles)


def _expect(role: RehearsedResource, what: str, found: set[str], wanted: set[str]) -> None:
    if found != wanted:
        said, meant = (", ".join(sorted(names)) or "none" for names in (found, wanted))
        raise Refusal(
            f"stack {role.stack}: role {role.physical_id}: {what}: {said}, not {meant}; "
            f"see {POLICIES.name} and docs/pipeline.md"
        )
