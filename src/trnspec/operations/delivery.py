"""`python -m trnspec.operations.delivery VERB`: what the pipeline runs, in its own account (start) and in a stage's VPC (smoke)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdk8s_charts.manifests import read
from trnspec.core.command_line import carried_out
from trnspec.core.console import print_json, warn
from trnspec.core.findings import Finding, Refusal
from trnspec.core.words import count
from trnspec.experiment import Experiment, load
from trnspec.operations.cloud.access import cluster_of
from trnspec.operations.cloud.aws import Aws, CheckedClient, aws_of
from trnspec.operations.cloud.clock import Clock
from trnspec.operations.cloud.kubernetes import pod_containers
from trnspec.operations.options import json_option, manifests_option, with_experiment
from trnspec.operations.preflight.checklist import PINS_AND_ZONE, QUOTAS, failing
from trnspec.operations.running.launch import say
from trnspec.operations.running.remote import Build, described, failure_reason, wait_for_build

if TYPE_CHECKING:
    from cdk8s_charts.manifests import ManifestFile

POLL_S = 30
_RENEW = timedelta(minutes=45)
"""Credentials of an assumed role last an hour. A compilation takes longer."""
KINDS = ("ServiceAccount", "ConfigMap", "PersistentVolumeClaim", "Service", "Deployment")
"""The kinds that the steps may read; the others were applied together with them."""
_APPLY = "deploy the workloads stack, then retry"
Object = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb."""
    group = click.Group(commands=VERBS, help="What the pipeline does with a deployed stage.")
    return carried_out(group, arguments, prog="python -m trnspec.operations.delivery")


@click.command()
@click.argument("project", metavar="PROJECT")
@click.option("--region", required=True, metavar="REGION")
@click.option("--role", required=True, metavar="ARN", help="Role of the stage's account that may start it.")
@click.option(
    "--minutes",
    type=click.IntRange(1, 36 * 60),
    default=60,
    metavar="M",
    help="Stop waiting after M minutes (default 60).",
)
@json_option
def start(project: str, region: str, role: str, minutes: int, as_json: bool) -> int:
    """Start PROJECT, a build project of a stage's account such as qwen3-32b-smoke, and wait for it."""
    build = run_project(Aws(region), project, role=role, minutes=minutes, clock=Clock(), say=say)
    print_json({"build": build}) if as_json else print(f"{build}: succeeded")
    return 0


def run_project(
    aws: Aws, project: str, *, role: str, minutes: int, clock: Clock, say: Callable[[str], None]
) -> str:
    """Start a project of the stage's CodeBuild and wait for its end; return the id of the build.

    Raises `Refusal` if the build fails or does not end in time.
    """
    stage: tuple[datetime, CheckedClient] | None = None

    def code_build() -> CheckedClient:
        nonlocal stage
        if stage is None or clock.now() - stage[0] >= _RENEW:
            answer = aws.client("sts").assume_role(RoleArn=role, RoleSessionName="speculation-delivery")
            stage = clock.now(), Aws(aws.region, keys=answer["Credentials"]).client("codebuild")
        return stage[1]

    started = code_build().find("start_build", "ResourceNotFoundException", projectName=project)
    if started is None:
        raise Refusal(f"{project}: no such project behind {role}; deploy the stage first")
    build: Build = started["build"]
    name, log = str(build["id"]), build.get("logs", {}).get("deepLink", "in CloudWatch")
    say(f"{name}: started; log {log}")
    how: Any = {"clock": clock, "say": say, "every_s": POLL_S, "patience_s": 60 * minutes}
    build = wait_for_build(lambda: described(code_build(), started["build"]), **how)
    if build["buildStatus"] == "IN_PROGRESS":
        phase = build.get("currentPhase", "")
        why = f"still {phase} after {count(minutes, 'minute')}; it continues in that account and is billed"
        raise Refusal(f"{name}: {why} until its own time-out: read its log, then retry the stage")
    if build["buildStatus"] != "SUCCEEDED":
        why = f"{build['buildStatus']} ({failure_reason(build)})"
        raise Refusal(f"{name}: {why}; read {log}, then retry the stage")
    return name


@with_experiment
@manifests_option
def smoke(path: Path, manifests: Path, as_json: bool) -> int:
    """Check that the cluster runs what was reviewed, and that quotas allow a Trn2 node. Needs no node."""
    experiment = load(path)
    files = read(experiment, manifests)
    aws = aws_of(experiment)
    for note in failing(experiment, aws, *QUOTAS):
        warn(note.line())
    problems = failing(experiment, aws, *PINS_AND_ZONE)
    with cluster_of(experiment, aws) as cluster:
        problems += findings(experiment, files, cluster.get)
    lines = [one.line() for one in problems] or [f"{experiment.name}: is deployed as it was reviewed"]
    answer = {"experiment": experiment.name, "problems": [one.as_json() for one in problems]}
    print_json(answer) if as_json else print("\n".join(lines))
    return 1 if problems else 0


def findings(
    experiment: Experiment, files: tuple[ManifestFile, ...], get: Callable[[str, str], Object | None]
) -> Iterator[Finding]:
    """Yield what is missing, differs or failed; `get` asks the cluster for a kind and a name."""
    for item in (item for file in files for item in file.objects if item["kind"] in KINDS):
        kind, name = item["kind"], item["metadata"]["name"]
        present = get(kind, name)
        if present is None:
            yield Finding(f"{kind} {name}", None, "is not in the cluster", _APPLY)
            continue
        theirs = {one["name"]: one["image"] for one in pod_containers(present)}
        for container in pod_containers(item):
            wanted, other = container["image"], theirs.get(container["name"])
            if wanted != other and not (other and "${" in wanted):  # which is filled in at deployment
                reason = f"container {container['name']} has {other or 'no image'}; the reviewed manifest has {wanted}"
                yield Finding(f"{kind} {name}", None, reason, _APPLY)
        yield from _health(experiment, kind, name, present)


def _health(experiment: Experiment, kind: str, name: str, present: Object) -> Iterator[Finding]:
    status, where = present.get("status", {}), f"{kind} {name}"
    if kind == "Deployment":
        wanted, available = present["spec"].get("replicas", 1), status.get("availableReplicas", 0)
        if available < wanted:
            why = f"{available} of {count(wanted, 'replica')} available"
            yield Finding(where, None, why, f"read ./trnspec status {experiment.file}")
    if kind == "PersistentVolumeClaim" and status.get("phase", "Bound") not in ("Bound", "Pending"):
        yield Finding(where, None, f"is {status['phase']}", "delete it and deploy again")


VERBS = {"start": start, "smoke": smoke}


if __name__ == "__main__":
    sys.exit(main())
