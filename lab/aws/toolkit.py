"""The bootstrap as docs/pipeline.md describes it, then the deployment, with the pinned CDK command line, against the
loopback server:

    aws cloudformation deploy --stack-name speculation-policies --template-file infra/bootstrap/policies.yaml ...
    cdk bootstrap aws://ACCOUNT/REGION --cloudformation-execution-policies ARN --custom-permissions-boundary NAME
    cdk deploy --all --method direct

`--method direct`, because moto loses the exports of a stack that comes from a change set. Docker is stood in for.
Afterwards the policies of the roles are read through the API. moto refuses no call, so only tests/infra/pipeline shows
that the policies are sufficient.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from moto.cloudformation.utils import yaml_tag_constructor

from core.findings import Refusal
from lab.aws.accounting import Resource, create
from lab.aws.assembly import ACCOUNT, StackTemplate
from lab.aws.moto_models import Outcome
from lab.aws.moto_server import child_environment

ROOT = Path(__file__).resolve().parents[2]
CDK = ROOT / "node_modules" / ".bin" / "cdk"
_DOCKER = Path(__file__).resolve().with_name("docker_stand_in")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_TOLD = 5
POLICIES = ROOT / "infra" / "bootstrap" / "policies.yaml"
POLICIES_STACK = "speculation-policies"
BOOTSTRAP_STACK = "CDKToolkit"
EXECUTION_ROLE = "CloudFormationExecutionRole"
"""Logical id in the template of the bootstrap: the role that CloudFormation assumes."""
_AWS_OWN = ("ReadOnlyAccess", "AWSCloudFormationReadOnlyAccess")
"""AWS's own policies of the bootstrap's lookup and deploy roles; both allow reading alone."""


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """What the command line did."""

    assembly: Path
    """The folder that it synthesized into."""
    bootstrap_template: str
    """What `cdk bootstrap` deploys, as JSON; from the command line itself, since moto keeps none of a change set."""
    images: tuple[str, ...]
    """Addresses that images would have been pushed to; nothing was built."""
    unchanged: int
    """Stacks in which the second deployment found nothing to change."""


def bootstrap_and_deploy(
    *,
    context: Mapping[str, str],
    deployment: Path,
    folder: Path,
    endpoint: str,
    region: str,
    bootstrap_flags: Sequence[str],
    report: Callable[[str], None],
    bootstrapped: Callable[[], None],
) -> Deployed:
    """Run both commands, the second twice, with `deployment` in place of deployment.yaml; `folder` gets the assembly and the
    logs. `report` gets each command; `bootstrapped` is called between the two.

    The app is synthesized once: the bootstrap runs in a folder without an app, and the second deployment takes the same assembly.
    Raises `Refusal` where the command line is missing or fails.
    """
    if not CDK.exists():
        raise Refusal(f"{CDK}: does not exist; run scripts/setup")
    folder = folder.resolve()
    assembly, docker_log = folder / "cdk.out", folder / "docker.log"
    environment = child_environment(os.environ, endpoint=endpoint, region=region) | {
        "CDK_DOCKER": str(_DOCKER),
        "REHEARSAL_DOCKER_LOG": str(docker_log),
        "CDK_VALIDATION": "false",  # the tests of the templates have it on
        "CDK_DISABLE_CLI_TELEMETRY": "true",
        "NO_COLOR": "1",
        "PATH": f"{CDK.parent}{os.pathsep}{os.environ['PATH']}",  # where the command line finds node
    }
    app = f".venv/bin/python app.py {shlex.quote(str(deployment.resolve()))}"
    synthesized = ["--app", app, "--output", str(assembly)]
    synthesized += [word for name, value in context.items() for word in ("-c", f"{name}={value}")]
    bootstrap = ["bootstrap", f"aws://{ACCOUNT}/{region}", *bootstrap_flags]
    deploy = ["deploy", "--all", "--method", "direct"]
    again = folder / "deploy-again.log"
    for command, app_words, where, log in (
        (bootstrap, [], folder, folder / "bootstrap.log"),
        (deploy, ["--require-approval", "never", *synthesized], ROOT, folder / "deploy.log"),
        (deploy, ["--require-approval", "never", "--app", str(assembly)], ROOT, again),
    ):
        report(f"cdk {' '.join(command)}")
        _run([*command, "--ci", "--no-notices", *app_words], log, environment, where=where)
        if command is bootstrap:
            bootstrapped()
    template = folder / "bootstrap.json"
    # With CI set, warnings would go to stdout too, before the template.
    quiet = environment | {"CI": "false"}
    show = ["bootstrap", "--show-template", "--json", "--no-notices"]
    _run(show, template, quiet, where=folder, errors=False)
    return Deployed(
        assembly=assembly,
        bootstrap_template=template.read_text(encoding="utf-8"),
        images=pushed(docker_log),
        unchanged=again.read_text(encoding="utf-8").count("(no changes)"),
    )


def pushed(docker_log: Path) -> tuple[str, ...]:
    """The images that docker was asked to push, by the stand-in's notes."""
    if not docker_log.exists():
        return ()
    words = (line.split() for line in docker_log.read_text(encoding="utf-8").splitlines())
    return tuple(dict.fromkeys(line[-1] for line in words if line[:1] == ["push"]))


def _run(
    arguments: list[str], log: Path, environment: Mapping[str, str], *, where: Path, errors: bool = True
) -> None:
    """Write what the command says into `log`; without `errors` only its result."""
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            [str(CDK), *arguments],
            cwd=where,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
            check=False,
        )
    if done.returncode:
        lines = _ESCAPES.sub("", log.read_text(encoding="utf-8")).strip().splitlines()
        raise Refusal(
            f"cdk {arguments[0]}: exit {done.returncode}: {_reason(lines)}; --keep DIR keeps the whole log"
        )


def _reason(lines: list[str]) -> str:
    """The line that says what failed, or the last ones where none does."""
    failed = [line.strip() for line in lines if re.search(r"❌|\bfailed:|Error\b", line)]
    return failed[0] if failed else " / ".join(line.strip() for line in lines[-_TOLD:]) or "no output"


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
