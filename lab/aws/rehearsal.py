"""Deploy into the loopback server, compare what was applied with what was reviewed (`manifests/<experiment>/`, but for the
placeholders), tear down, and compare the account with what it was before: listed through the APIs, so that nothing of somebody
else can be changed unseen."""

from __future__ import annotations

import json
import logging
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import yaml
from botocore.exceptions import BotoCoreError, ClientError

from cdk8s_charts.manifests import read as read_manifests
from core.command_line import carried_out
from core.console import print_json
from core.differences import differences
from core.findings import Outside, Refusal
from core.screen import wrapped
from core.words import count
from experiment import load
from lab.aws.moto_models import ACCOUNT, KUBERNETES_RESOURCE
from lab.aws.moto_server import child_environment, client, rehearsal_server
from lab.aws.stacks import (
    BOOTSTRAP_STACK,
    POLICIES_STACK,
    Cdk,
    Outcome,
    RehearsedResource,
    check_roles,
    deploy_policies,
    read_assembly,
    resources_of,
    stand_in_for_bootstrap,
)
from lab.command import PATH, REFERENCE, ROOT, experiment_argument
from lab.programs import rendered

Object = Mapping[str, Any]
_PLACEHOLDER = re.compile(r"\$\{[A-Z_]+\}")
_OUTCOMES = ("created", "recorded", "not modelled", "skipped")
_LISTED = (
    ("cloudformation", "describe_stacks", "Stacks", "StackName"),
    ("ec2", "describe_vpcs", "Vpcs", "VpcId"),
    ("ec2", "describe_subnets", "Subnets", "SubnetId"),
    ("ec2", "describe_route_tables", "RouteTables", "RouteTableId"),
    ("ec2", "describe_nat_gateways", "NatGateways", "NatGatewayId"),
    ("ec2", "describe_security_groups", "SecurityGroups", "GroupId"),
    ("ec2", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateName"),
    ("eks", "list_clusters", "clusters", ""),
    ("iam", "list_roles", "Roles", "RoleName"),
    ("iam", "list_instance_profiles", "InstanceProfiles", "InstanceProfileName"),
    ("autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", "AutoScalingGroupName"),
    ("logs", "describe_log_groups", "logGroups", "logGroupName"),
    ("lambda", "list_functions", "Functions", "FunctionName"),
    ("s3", "list_buckets", "Buckets", "Name"),
    ("kms", "list_keys", "Keys", "KeyId"),
    ("sns", "list_topics", "Topics", "TopicArn"),
    ("sqs", "list_queues", "QueueUrls", ""),
    ("scheduler", "list_schedule_groups", "ScheduleGroups", "Name"),
    ("scheduler", "list_schedules", "Schedules", "Name"),
    ("cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName"),
    ("cloudwatch", "list_dashboards", "DashboardEntries", "DashboardName"),
)
"""Service, operation, key of the answer, and what names an entry of it."""


@dataclass(frozen=True, kw_only=True)
class Remains:
    """The account after the teardown against the account before the deployment."""

    before: int
    """Number of things that were there before."""
    left: tuple[str, ...]
    """What was not there before."""
    disturbed: tuple[str, ...]
    """What was there before, and is missing or changed."""


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The result of a rehearsal in which every resource was created, recorded or skipped by its condition."""

    region: str
    stacks: tuple[str, ...]
    """They are in creation order."""
    resources: tuple[RehearsedResource, ...]
    images_not_built: tuple[str, ...]
    """`repository:tag` of container images that the stacks name."""
    unresolved: tuple[str, ...]
    """What moto said it cannot resolve; a property that holds such a reference is not usable."""
    not_as_reviewed: tuple[str, ...] = ()
    """Where what was applied is not what was reviewed."""
    unchanged_by_a_second_deployment: int = 0
    """Stacks in which it found nothing to change."""
    bounded_roles: int = 0
    """Roles that were asked for their policies and their boundary."""
    after_teardown: Remains | None = None
    """These four come from a rehearsal with the command line."""

    def types(self, outcome: Outcome) -> dict[str, int]:
        """How many resources of each type came to this, by name."""
        found = Counter(one.type for one in self.resources if one.outcome == outcome)
        return dict(sorted(found.items()))

    @property
    def objects(self) -> list[Object]:
        """Kubernetes objects that the kubectl provider would have applied, every token resolved, in order of the stacks."""
        manifests = [one.properties for one in self.resources if one.type == KUBERNETES_RESOURCE]
        return [found for entry in manifests if entry for found in json.loads(entry["Manifest"])]


def rehearse(assembly: Path, *, region: str, endpoint: str) -> Rehearsal:
    """Create every stack of `assembly`, in order, without the command line, in the empty server at `endpoint`.

    Raises `Outside`, and `Refusal` at the first stack that fails or lacks a resource.
    """
    read, client_of = read_assembly(assembly), partial(client, endpoint=endpoint, region=region)
    with _complaints(endpoint) as complaints:
        stand_in_for_bootstrap(read, client_of, region=region)
        resources: list[RehearsedResource] = []
        for stack in read.stacks:
            stack.create(client_of("cloudformation"))
            resources += resources_of(stack.name, region=region)
    return Rehearsal(
        region=region,
        stacks=tuple(stack.name for stack in read.stacks),
        resources=tuple(resources),
        images_not_built=read.images,
        unresolved=tuple(dict.fromkeys(complaints)),
    )


def rehearse_with_cdk(
    *, file: Path, manifests: Path, folder: Path, report: Callable[[str], None], existing_vpc: bool = False
) -> Rehearsal:
    """The committed policies, `cdk bootstrap` with them, `cdk deploy --all` twice, and at last the teardown. With `existing_vpc`
    a VPC is there before, which the experiment then names. `folder` gets assembly and logs; `report` gets each command.

    The app is synthesized once: the bootstrap runs in a folder without an app, and the second deployment takes the same
    assembly. `--method direct`, because moto loses the exports of a stack that comes from a change set. Raises what
    `rehearse` raises.
    """
    region, folder = load(file).cluster.region, folder.resolve()
    with rehearsal_server() as endpoint, _complaints(endpoint) as complaints:
        client_of = partial(client, endpoint=endpoint, region=region)
        if existing_vpc:
            report("an existing VPC")
            file, manifests = put_there(file, client_of, folder)
        experiment = load(file)
        report(f"aws cloudformation deploy --stack-name {POLICIES_STACK}")
        policies = deploy_policies(client_of("cloudformation"))
        deployment, assembly = folder / "deployment.yaml", folder / "cdk.out"
        # An administrator and an e-mail address make resources that an empty file does not.
        settings: dict[str, Any] = {
            "permissions_boundary": policies.boundary,
            "alarm_email": "rehearsal@example.com",
        }
        settings["admins"] = [f"arn:aws:iam::{ACCOUNT}:role/rehearsal"]
        deployment.write_text(yaml.safe_dump(settings), encoding="utf-8")
        cdk = Cdk(folder=folder, endpoint=endpoint, region=region, report=report)
        cdk.run("bootstrap", f"aws://{ACCOUNT}/{region}", *policies.flags, log="bootstrap.log", where=folder)
        before = listed(client_of)
        app = ["--app", f".venv/bin/python app.py {shlex.quote(str(deployment))}", "--output", str(assembly)]
        for name, value in (("experiment", file), ("manifests", manifests)):
            app += ["-c", f"{name}={value.resolve()}"]
        deploy, approved = ("deploy", "--all", "--method", "direct"), ("--require-approval", "never")
        cdk.run(*deploy, app=[*approved, *app], log="deploy.log")
        again = cdk.run(*deploy, app=[*approved, "--app", str(assembly)], log="deploy-again.log")
        read = read_assembly(assembly)
        stacks = (POLICIES_STACK, BOOTSTRAP_STACK, *(stack.name for stack in read.stacks))
        resources = [one for stack in stacks for one in resources_of(stack, region=region)]
        bounded_roles = check_roles(resources, policies, client_of("iam"))
        report("trnspec teardown")
        take_down(file, experiment.name, folder=folder, endpoint=endpoint, region=region)
        after = listed(client_of)
    found = Rehearsal(
        region=region,
        stacks=stacks,
        resources=tuple(resources),
        images_not_built=read.images,
        unresolved=tuple(dict.fromkeys(complaints)),
        unchanged_by_a_second_deployment=again.count("(no changes)"),
        bounded_roles=bounded_roles,
        after_teardown=remains(before, after),
    )
    reviewed = [one for part in read_manifests(experiment, manifests) for one in part.objects]
    return replace(found, not_as_reviewed=not_as_reviewed(reviewed, found.objects))


@contextmanager
def _complaints(endpoint: str) -> Iterator[Sequence[str]]:
    """Collect moto's warnings about templates, which would otherwise go to stderr. Raises `Outside` if the server fails."""
    heard: list[str] = []
    listener, logger = logging.Handler(logging.WARNING), logging.getLogger("moto")
    listener.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(listener)
    try:
        yield heard
    except (BotoCoreError, ClientError) as error:
        reason = str(error).partition("\n")[0]
        raise Outside(f"rehearsal server {endpoint}: {reason}; it must be running, and empty") from error
    finally:
        logger.removeHandler(listener)


def not_as_reviewed(reviewed: Iterable[Object], applied: Iterable[Object]) -> tuple[str, ...]:
    """Return each difference in words; a placeholder matches any text that is not empty."""
    found = {_name(one): one for one in applied}
    # A Job's name ends with a placeholder for the tag of its image.
    wanted = {
        next((name for name in found if _stands_for(_name(one), name)), _name(one)): one for one in reviewed
    }
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


def listed(client_of: Callable[[str], Any]) -> dict[str, str]:
    """Return everything that the APIs list, by service and name."""
    found = {}
    for service, operation, key, named in _LISTED:
        client = client_of(service)
        pages = client.get_paginator(operation).paginate() if client.can_paginate(operation) else None
        answers = pages or [getattr(client, operation)()]
        for entry in (entry for answer in answers for entry in answer.get(key, ())):
            if named:
                entry.pop("AvailableIpAddressCount", None)  # of a subnet, changes with everybody's addresses
            if not named or entry.get("State") != "deleted":
                name = entry[named] if named else entry
                found[f"{service} {key}: {name}"] = json.dumps(entry, sort_keys=True, default=str)
    for alias in client_of("kms").list_aliases()["Aliases"]:  # AWS's own keys
        found.pop(f"kms Keys: {alias.get('TargetKeyId')}", None)
    eks = client_of("eks")
    for name in eks.list_clusters()["clusters"]:
        cluster = eks.describe_cluster(name=name)["cluster"]
        found[f"eks cluster: {name}"] = json.dumps(cluster, sort_keys=True, default=str)
        for group in eks.list_nodegroups(clusterName=name)["nodegroups"]:
            found[f"eks nodegroup: {name}/{group}"] = group
    return found


def remains(before: Mapping[str, str], after: Mapping[str, str]) -> Remains:
    disturbed = sorted(name for name, described in before.items() if after.get(name) != described)
    left = sorted(after.keys() - before.keys())
    return Remains(before=len(before), left=tuple(left), disturbed=tuple(disturbed))


def put_there(file: Path, client_of: Callable[[str], Any], folder: Path) -> tuple[Path, Path]:
    """Make a VPC with a subnet in each zone that the experiment names; returns the experiment that names them and the parent folder of its manifests, both in `folder`."""
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    wanted, ec2 = load(file).cluster, client_of("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.64.0.0/16")["Vpc"]["VpcId"]
    subnets = {}
    for number, zone in enumerate(dict.fromkeys((*wanted.availability_zones, wanted.trn2_zone))):
        addresses = f"10.64.{16 * number}.0/20"
        subnet = ec2.create_subnet(VpcId=vpc, AvailabilityZone=zone, CidrBlock=addresses)["Subnet"]
        subnets[zone] = subnet["SubnetId"]
    data.setdefault("cluster", {})["network"] = {"vpc": vpc, "private_subnets": subnets}
    written = folder / "experiment.yaml"
    written.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), encoding="utf-8")
    rendered(written, load(written), folder / "manifests")
    return written, folder / "manifests"


def take_down(file: Path, name: str, *, folder: Path, endpoint: str, region: str) -> None:
    """`./trnspec teardown`, as a process of its own; that a part of the account could not be listed is no failure, because
    moto has no such part. Raises `Refusal`."""
    words = ["teardown", str(file), "--confirm", name, "--account", ACCOUNT, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "operations", *words],
        cwd=ROOT,
        env=child_environment(endpoint=endpoint, region=region),
        capture_output=True,
        text=True,
        check=False,
    )
    (folder / "teardown.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    try:
        answer = json.loads(done.stdout)
        wrong = answer["left"]
    except (ValueError, LookupError):
        wrong = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no answer"]
    if wrong:
        raise Refusal(f"teardown: exit {done.returncode}: {wrong[0]}; --keep DIR keeps the whole log")


def in_one_line(rehearsal: Rehearsal) -> str:
    """Return the number of resources by outcome."""
    outcomes = [resource.outcome for resource in rehearsal.resources]
    created = count(outcomes.count("created"), "resource")
    counts = f"{created} created, {outcomes.count('recorded')} without an emulator"
    if "not modelled" in outcomes:
        counts += f", {outcomes.count('not modelled')} not modelled"
    return f"rehearsed {count(len(rehearsal.stacks), 'stack')} against a local AWS: {counts}"


def account_lines(rehearsal: Rehearsal) -> Iterator[str]:
    """Yield the outcomes of each stack's resources, and what a rehearsal cannot show."""
    yield f"Rehearsal of {count(len(rehearsal.stacks), 'stack')} in {rehearsal.region}: moto on loopback, nothing on AWS."
    for stack in rehearsal.stacks:
        outcomes = [resource.outcome for resource in rehearsal.resources if resource.stack == stack]
        counts = [f"{name} {outcomes.count(name):>3}" for name in _OUTCOMES if name in outcomes]
        yield f"  {textwrap.shorten(stack, 36, placeholder='...'):<36} {', '.join(counts)}"
    yield "What it cannot show:"
    for label, text in (
        ("no emulator", _counted(rehearsal.types("recorded"))),
        ("not modelled", _counted(rehearsal.types("not modelled"))),
        ("unresolved", "; ".join(rehearsal.unresolved)),
        ("not built", count(len(rehearsal.images_not_built), "container image")),
    ):
        if text:
            yield from wrapped(text, f"  {label:<14}")


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())


@click.command()
@experiment_argument(REFERENCE, given="TRNSPEC_EXPERIMENT")
@click.option("--keep", type=PATH, metavar="DIR", help="Keep the assembly and the logs there.")
def command(experiment: Path, keep: Path | None) -> int:
    """Bootstrap, deploy twice and tear down with the pinned CDK command line, against moto on loopback; prints JSON.

    Exit code 0 when every resource was created, recorded or skipped by its condition, what was applied is what was reviewed
    and nothing that was there before is missing or changed; 1 when a stack failed or something differs.
    """
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as scratch:
        folder = keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rehearsal = rehearse_with_cdk(
            file=experiment,
            manifests=ROOT / "manifests",
            folder=folder,
            report=lambda line: print(f"==> {line}", file=sys.stderr, flush=True),
        )
    data = asdict(rehearsal)
    for resource in data["resources"]:
        del resource["properties"]
    print_json(data)
    disturbed = rehearsal.after_teardown is None or rehearsal.after_teardown.disturbed
    return 1 if rehearsal.not_as_reviewed or disturbed else 0


if __name__ == "__main__":
    sys.exit(carried_out(command, prog="python -m lab.aws.rehearsal"))
