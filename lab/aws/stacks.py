"""Deploy stacks into the loopback server and report the outcome of their resources: with the pinned CDK command line and the
bootstrap as docs/pipeline.md describes it,

    aws cloudformation deploy --stack-name speculation-policies --template-file infra/bootstrap/policies.yaml ...
    cdk bootstrap aws://ACCOUNT/REGION --cloudformation-execution-policies ARN --custom-permissions-boundary NAME

or from a cloud assembly without the command line, in seconds. Of an assembly only what a deployment reads is read:
https://docs.aws.amazon.com/cdk/v2/guide/deploy.html (manifest.json lists artifacts; those of type
`aws:cloudformation:stack` name a template and what they depend on).
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, Literal

from botocore.exceptions import ClientError
from moto.cloudformation.models import cloudformation_backends

from core.findings import Refusal
from lab.aws.moto_models import ACCOUNT, RECORDED_TYPES, Modelled
from lab.aws.moto_server import child_environment
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
Outcome = Literal["created", "recorded", "not modelled", "skipped"]
"""`recorded`: its properties are kept, nothing acted on them; `skipped`: its condition is false, so CloudFormation would not
create it either."""


@dataclass(frozen=True, kw_only=True)
class StackTemplate:
    name: str
    body: str
    """The template's text, byte for byte what CloudFormation would get."""
    tags: Mapping[str, str] = field(default_factory=dict)
    protected: bool = False
    """Whether it is protected from deletion."""

    def create(self, cloudformation: Any) -> None:
        """`create-stack` with the template as it is. Raises `Refusal` where CloudFormation refuses it."""
        try:
            cloudformation.create_stack(
                StackName=self.name,
                TemplateBody=self.body,
                Capabilities=["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"],
                Tags=[{"Key": key, "Value": value} for key, value in self.tags.items()],
                EnableTerminationProtection=self.protected,
            )
        except ClientError as error:
            raise Refusal(f"stack {self.name}: {error.response['Error']['Message']}") from error


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """The output of `app.py`."""

    stacks: tuple[StackTemplate, ...]
    """They are in creation order."""
    images: tuple[str, ...]
    """Container images that a deployment would build and push, each as `repository:tag`."""
    files: tuple[tuple[str, str], ...]
    """`(bucket, key)` of the files that a deployment would publish, with pseudo parameters as the CDK writes them."""


def read_assembly(folder: Path) -> Assembly:
    def read(name: str) -> Any:
        return json.loads((folder / name).read_text(encoding="utf-8"))

    artifacts = read("manifest.json")["artifacts"]
    entries = {name: one for name, one in artifacts.items() if one["type"] == "aws:cloudformation:stack"}
    needed = {name: [one for one in entries[name]["dependencies"] if one in entries] for name in entries}
    stacks = []
    for name in TopologicalSorter(needed).static_order():
        properties = entries[name]["properties"]
        stacks.append(
            StackTemplate(
                name=properties.get("stackName", name),
                body=(folder / properties["templateFile"]).read_text(encoding="utf-8"),
                tags=properties.get("tags", {}),
                protected=properties.get("terminationProtection", False),
            )
        )
    manifests = [
        one["properties"]["file"] for one in artifacts.values() if one["type"] == "cdk:asset-manifest"
    ]
    places: dict[str, list[Any]] = {"dockerImages": [], "files": []}
    for assets in map(read, manifests):
        for kind, found in places.items():
            found += [to for asset in assets.get(kind, {}).values() for to in asset["destinations"].values()]
    images = dict.fromkeys(f"{to['repositoryName']}:{to['imageTag']}" for to in places["dockerImages"])
    files = dict.fromkeys((to["bucketName"], to["objectKey"]) for to in places["files"])
    return Assembly(stacks=tuple(stacks), images=tuple(images), files=tuple(files))


def stand_in_for_bootstrap(assembly: Assembly, client_of: Callable[[str], Any], *, region: str) -> None:
    """What `cdk bootstrap` and the publishing of assets leave behind, as far as the templates need it; in place of the code
    of Lambda functions, which nothing invokes here, lies a placeholder."""
    client_of("ssm").put_parameter(Name="/cdk-bootstrap/hnb659fds/version", Value="99", Type="String")
    placeholder = io.BytesIO()
    with zipfile.ZipFile(placeholder, "w") as archive:
        archive.writestr("README", "A placeholder of the rehearsal, which invokes no function.\n")
    where = {"CreateBucketConfiguration": {"LocationConstraint": region}} if region != "us-east-1" else {}
    names = {"${AWS::AccountId}": ACCOUNT, "${AWS::Region}": region, "${AWS::Partition}": "aws"}
    buckets = set[str]()
    for bucket, key in assembly.files:
        for pseudo, value in names.items():
            bucket = bucket.replace(pseudo, value)
        if bucket not in buckets:
            client_of("s3").create_bucket(Bucket=bucket, **where)
            buckets.add(bucket)
        client_of("s3").put_object(Bucket=bucket, Key=key, Body=placeholder.getvalue())


@dataclass(frozen=True)
class RehearsedResource:
    stack: str
    logical_id: str
    type: str
    outcome: Outcome
    physical_id: str
    """Empty for resources that were not created, and where moto's model has none."""
    properties: Mapping[str, Any] | None = None
    """Resolved, of recorded resources."""


def resources_of(stack: str, *, region: str) -> list[RehearsedResource]:
    """Return the outcome of every resource of the stack's template. Raises `Refusal` if one is missing.

    moto skips what it cannot make and reports CREATE_COMPLETE, so this looks at what the server, which runs in this
    process, really holds.
    """
    made = cloudformation_backends[ACCOUNT][region].get_stack(stack)
    if made.status not in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
        raise Refusal(f"stack {stack}: ended as {made.status}, not CREATE_COMPLETE")
    resources, found = made.resource_map, list[RehearsedResource]()
    for name, entry in resources._template["Resources"].items():
        kind, resource = entry["Type"], resources._parsed_resources.get(name)
        outcome: Outcome = "created"
        if resource is None:
            if resources.lazy_condition_map.get(entry.get("Condition"), True):
                raise Refusal(f"stack {stack}: not created: {name} ({kind})")
            outcome = "skipped"
        elif isinstance(resource, Modelled) and resource.attributes is None:
            outcome = "recorded" if kind in RECORDED_TYPES else "not modelled"
        physical_id = getattr(resource, "physical_resource_id", None) if outcome == "created" else None
        properties = getattr(resource, "properties", None) if outcome == "recorded" else None
        found.append(RehearsedResource(stack, name, kind, outcome, str(physical_id or ""), properties))
    return found


@dataclass(frozen=True, kw_only=True)
class Cdk:
    """The command line, whose AWS is the loopback server. Docker is stood in for."""

    folder: Path
    """Logs go there."""
    endpoint: str
    region: str
    report: Callable[[str], None]
    """Gets each command."""

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
        flags = ("--cloudformation-execution-policies", self.execution_arn)
        return (*flags, "--custom-permissions-boundary", self.boundary)


def deploy_policies(cloudformation: Any) -> Policies:
    """Deploy the policies and the bootstrap, as an administrator does first. Raises `Refusal`."""
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
