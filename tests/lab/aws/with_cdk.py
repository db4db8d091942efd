"""The whole way of a deployment on the loopback server, with the pinned CDK command line and the bootstrap of docs/pipeline.md:

aws cloudformation deploy --stack-name speculation-policies --template-file infra/bootstrap/policies.yaml ...
cdk bootstrap aws://ACCOUNT/REGION --cloudformation-execution-policies ARN --custom-permissions-boundary NAME
cdk deploy --all, twice
./trnspec teardown
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from cdk8s_charts.manifests import read as read_manifests
from tests.conftest import REFERENCE, ROOT
from tests.lab.aws.deletion import deletion
from trnspec.core.differences import differences
from trnspec.experiment import load
from trnspec.lab.aws.moto_models import ACCOUNT
from trnspec.lab.aws.moto_server import child_environment, client, rehearsal_server
from trnspec.lab.aws.rehearsal import complaints
from trnspec.lab.aws.stacks import RehearsedResource, StackTemplate, read_assembly, resources_of
from trnspec.lab.programs import rendered

ClientOf = Callable[[str], Any]
Object = Mapping[str, Any]
POLICIES_STACK, BOOTSTRAP_STACK = "speculation-policies", "CDKToolkit"
KUBERNETES_RESOURCE = "Custom::AWSCDK-EKS-KubernetesResource"
EXECUTION_ROLE = "CloudFormationExecutionRole"
"""Logical id in the template of the bootstrap: the role that CloudFormation assumes."""
_AWS_OWN = (":iam::aws:policy/ReadOnlyAccess", ":iam::aws:policy/AWSCloudFormationReadOnlyAccess")
"""AWS's own policies of the bootstrap's lookup and deploy roles; both allow reading alone."""
_PLACEHOLDER = re.compile(r"\$\{[A-Z_]+\}")
_OF_A_NETWORK = {
    "describe_vpcs": "Vpcs",
    "describe_subnets": "Subnets",
    "describe_route_tables": "RouteTables",
    "describe_security_groups": "SecurityGroups",
}


@dataclass(frozen=True, kw_only=True)
class Deployed:
    stacks: tuple[str, ...]
    resources: tuple[RehearsedResource, ...]
    unresolved: tuple[str, ...]
    """What moto said it cannot resolve."""
    not_as_reviewed: tuple[str, ...]
    unchanged: int
    """Stacks in which the second deployment found nothing to change."""
    bounded_roles: int
    before: str
    """The network that was there before, as EC2 describes it; empty without one."""
    after: str
    """The same after the teardown."""


def deployed(folder: Path, *, existing_vpc: bool) -> Deployed:
    """Deploy the reference twice, and take it down.

    The app is synthesized once: the bootstrap runs in a folder without an app, and the second deployment takes the same
    assembly. `--method direct`, because moto loses the exports of a stack that comes from a change set.
    """
    file, manifests, before, after = REFERENCE, ROOT / "manifests", "", ""
    region = load(file).cluster.region
    with rehearsal_server() as endpoint, deletion(endpoint), complaints(endpoint) as heard:
        client_of = partial(client, endpoint=endpoint, region=region)
        if existing_vpc:
            file, manifests = put_there(client_of, folder)
            before = network_of(file, client_of)
        experiment, policies = load(file), deploy_policies(client_of("cloudformation"))
        deployment, assembly = folder / "deployment.yaml", folder / "cdk.out"
        # An administrator and an e-mail address make resources that an empty file does not.
        settings = {"permissions_boundary": policies.boundary, "alarm_email": "rehearsal@example.com"}
        written = {**settings, "admins": [f"arn:aws:iam::{ACCOUNT}:role/rehearsal"]}
        deployment.write_text(yaml.safe_dump(written), encoding="utf-8")
        cdk = partial(run_cdk, endpoint=endpoint, region=region)
        cdk("bootstrap", f"aws://{ACCOUNT}/{region}", *policies.flags, where=folder)
        app = ["--app", f".venv/bin/python app.py {shlex.quote(str(deployment))}", "--output", str(assembly)]
        for name, value in (("experiment", file), ("manifests", manifests)):
            app += ["-c", f"{name}={value.resolve()}"]
        at_once = ("--concurrency", "3")  # as ./trnspec deploy does without questions
        deploy = ("deploy", "--all", "--method", "direct", "--require-approval", "never", *at_once)
        cdk(*deploy, *app)
        again = cdk(*deploy, "--app", str(assembly))
        stacks = (POLICIES_STACK, BOOTSTRAP_STACK, *(stack.name for stack in read_assembly(assembly).stacks))
        resources = tuple(one for stack in stacks for one in resources_of(stack, region=region))
        bounded_roles = check_roles(resources, policies, client_of("iam"))
        take_down(file, experiment.name, endpoint=endpoint, region=region)
        if existing_vpc:
            after = network_of(file, client_of)
    objects = [one for part in read_manifests(experiment, manifests) for one in part.objects]
    reviewed = [one for one in objects if one["kind"] != "Job"]  # which a run creates
    return Deployed(
        stacks=stacks,
        resources=resources,
        unresolved=tuple(dict.fromkeys(heard)),
        not_as_reviewed=not_as_reviewed(reviewed, applied(resources)),
        unchanged=again.count("(no changes)"),
        bounded_roles=bounded_roles,
        before=before,
        after=after,
    )


def put_there(client_of: ClientOf, folder: Path) -> tuple[Path, Path]:
    """Make a VPC with a subnet in each zone that the reference names; returns the experiment that names them and the parent folder
    of its manifests, both in `folder`."""
    data = yaml.safe_load(REFERENCE.read_text(encoding="utf-8"))
    wanted, ec2 = load(REFERENCE).cluster, client_of("ec2")
    vpc, subnets = ec2.create_vpc(CidrBlock="10.64.0.0/16")["Vpc"]["VpcId"], {}
    for number, zone in enumerate(dict.fromkeys((*wanted.availability_zones, wanted.trn2_zone))):
        addresses = f"10.64.{16 * number}.0/20"
        subnet = ec2.create_subnet(VpcId=vpc, AvailabilityZone=zone, CidrBlock=addresses)["Subnet"]
        subnets[zone] = subnet["SubnetId"]
    data.setdefault("cluster", {})["network"] = {"vpc": vpc, "private_subnets": subnets}
    written = folder / "experiment.yaml"
    written.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), encoding="utf-8")
    rendered(written, load(written), folder / "manifests")
    return written, folder / "manifests"


def network_of(file: Path, client_of: ClientOf) -> str:
    """The VPC that the experiment names, with all that is in it, without the number of free addresses."""
    own = [{"Name": "vpc-id", "Values": [load(file).cluster.network.vpc]}]
    found = {key: getattr(client_of("ec2"), call)(Filters=own)[key] for call, key in _OF_A_NETWORK.items()}
    for subnet in found["Subnets"]:
        del subnet["AvailableIpAddressCount"]
    return json.dumps(found, sort_keys=True, default=str)


def run_cdk(*words: str, endpoint: str, region: str, where: Path = ROOT) -> str:
    """What a command of the CDK says. Docker is stood in for."""
    cdk = ROOT / "node_modules" / ".bin" / "cdk"
    environment = child_environment(endpoint=endpoint, region=region) | {
        "CDK_DOCKER": str(Path(__file__).with_name("docker_stand_in")),
        "CDK_VALIDATION": "false",  # the tests of the templates have it on
        "CDK_DISABLE_CLI_TELEMETRY": "true",
        "NO_COLOR": "1",
        "PATH": f"{cdk.parent}{os.pathsep}{os.environ['PATH']}",  # where the command line finds node
    }
    return _said([str(cdk), *words, "--ci", "--no-notices"], where=where, environment=environment)


def take_down(file: Path, name: str, *, endpoint: str, region: str) -> None:
    """`./trnspec teardown` leaves nothing; that a part of the account could not be listed (exit 1) is no failure, because moto
    has no such part."""
    words = ["teardown", str(file), "--confirm", name, "--json"]
    environment = child_environment(endpoint=endpoint, region=region)
    done = subprocess.run(
        [sys.executable, "-m", "trnspec.operations", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(done.stdout or "{}").get("left") == [], done.stdout + done.stderr


def _said(command: list[str], *, where: Path, environment: Mapping[str, str]) -> str:
    pipe, none, both = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT
    done = subprocess.run(
        command, cwd=where, env=environment, stdin=none, stdout=pipe, stderr=both, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
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
    """Deploy the policies, as an administrator does first."""
    body = (ROOT / "infra" / "bootstrap" / "policies.yaml").read_text(encoding="utf-8")
    StackTemplate(name=POLICIES_STACK, body=body).create(cloudformation)
    (stack,) = cloudformation.describe_stacks(StackName=POLICIES_STACK)["Stacks"]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
    return Policies(execution_arn=outputs["ExecutionPolicyArn"], boundary=outputs["BoundaryName"])


def check_roles(resources: Iterable[RehearsedResource], policies: Policies, iam: Any) -> int:
    """Ask every role for its policies and its boundary; returns how many were asked.

    The role with which CloudFormation deploys has the execution policy alone, inside the boundary; the bootstrap's other
    roles have no policy with which anything can be changed; every role of the stacks is inside the boundary.
    """
    roles = [one for one in resources if one.type == "AWS::IAM::Role" and one.outcome == "created"]
    for role in roles:
        attributes = iam.get_role(RoleName=role.physical_id)["Role"]
        boundary = attributes.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn", "")
        pages = iam.get_paginator("list_attached_role_policies").paginate(RoleName=role.physical_id)
        attached = {policy["PolicyArn"] for page in pages for policy in page["AttachedPolicies"]}
        if role.stack == BOOTSTRAP_STACK and role.logical_id != EXECUTION_ROLE:
            assert all(arn.endswith(_AWS_OWN) for arn in attached), role
            continue
        assert role.stack != BOOTSTRAP_STACK or attached == {policies.execution_arn}, role
        assert boundary == policies.boundary_arn, role
    return len(roles)


def applied(resources: Iterable[RehearsedResource]) -> list[Object]:
    """Kubernetes objects that the kubectl provider would have applied, every token resolved, in order of the stacks."""
    manifests = [one.properties for one in resources if one.type == KUBERNETES_RESOURCE]
    return [found for entry in manifests if entry for found in json.loads(entry["Manifest"])]


def not_as_reviewed(reviewed: Iterable[Object], applied: Iterable[Object]) -> tuple[str, ...]:
    """Return each difference in words; a placeholder matches any text that is not empty."""
    found = {_name(one): one for one in applied}
    wanted = {_name(one): one for one in reviewed}
    lines = [f"{name}: reviewed, not applied" for name in wanted.keys() - found.keys()]
    lines += [f"{name}: applied, not reviewed" for name in found.keys() - wanted.keys()]
    for name in wanted.keys() & found.keys():
        places = differences(wanted[name], found[name], same=_same)
        lines += [f"{name} {place.path}: {place.old!r} became {place.new!r}" for place in places]
    return tuple(sorted(lines))


def _name(one: Object) -> str:
    metadata = one.get("metadata", {})
    where = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{one.get('kind', '?')} {where}{metadata.get('name', '?')}"


def _same(reviewed: Any, applied: Any) -> bool:
    # True == 1 in Python, and not in Kubernetes.
    if reviewed == applied and isinstance(reviewed, bool) == isinstance(applied, bool):
        return True
    return isinstance(reviewed, str) and isinstance(applied, str) and _stands_for(reviewed, applied)


def _stands_for(reviewed: str, applied: str) -> bool:
    parts = _PLACEHOLDER.split(reviewed)
    pattern = r"[^$]+".join(re.escape(part) for part in parts)
    return len(parts) > 1 and bool(re.fullmatch(pattern, applied, re.DOTALL))
