"""`python -m trnspec.operations.delivery VERB`: what the pipeline runs, in its own account (start) and in a stage's VPC (smoke, compile)."""

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
from trnspec.experiment import load
from trnspec.operations.cloud import experiment_resources
from trnspec.operations.cloud.access import cluster_of
from trnspec.operations.cloud.aws import Aws, AwsError, aws_of
from trnspec.operations.cloud.clock import Clock
from trnspec.operations.cloud.kubernetes import pod_containers
from trnspec.operations.options import HOURS, json_option, manifests_option, on_aws
from trnspec.operations.preflight.checklist import PINS_AND_ZONE, QUOTAS, misfits
from trnspec.operations.running.launch import opened, say
from trnspec.operations.running.run_plan import RunPlan
from trnspec.operations.running.state import RunStore, unfinished
from trnspec.operations.running.steps import finish, steps, stop_paying, with_nodes_off_on_failure

if TYPE_CHECKING:
    from cdk8s_charts.manifests import ManifestFile
    from trnspec.experiment import Experiment
    from trnspec.operations.running.context import Context

POLL_S = 30
RENEW = timedelta(minutes=45)
"""Credentials of an assumed role last an hour, compilation lasts longer."""
KINDS = ("ServiceAccount", "ConfigMap", "PersistentVolumeClaim", "Service", "Deployment")
"""The kinds of the manifests that the steps may look at; the rest was applied with them."""
_APPLY = "deploy the workloads stack, then retry"
PREPARING = ("weights", "arguments", "nodes", "verify", "compile")
Object = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one verb."""
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
    help="Give up waiting after so many (default 60).",
)
@json_option
def start(project: str, region: str, role: str, minutes: int, as_json: bool) -> int:
    """Start PROJECT, a build project of a stage's account such as qwen3-32b-smoke, and wait for it."""
    build = Starter(Aws(region), role=role, clock=Clock(), say=say).run(project, minutes=minutes)
    print_json({"build": build}) if as_json else print(f"{build}: succeeded")
    return 0


class Starter:
    """The stage's CodeBuild, seen through the role that may start its projects: the pipeline lives in another account,
    outside the VPC."""

    def __init__(self, aws: Aws, *, role: str, clock: Clock, say: Callable[[str], None]) -> None:
        self._aws, self._role, self._clock, self._say = aws, role, clock, say
        self._stage: tuple[datetime, Aws] | None = None

    def run(self, project: str, *, minutes: int) -> str:
        """Start the project and wait for its end; returns the id of the build.

        Raises `Refusal` when it fails, or does not end in time.
        """
        known = {
            "ResourceNotFoundException": f"no such project behind {self._role}; deploy the stage's delivery stack first",
            "AccountLimitExceededException": "one build of it is running already; wait for its end, then retry the stage",
        }
        try:
            build: dict[str, Any] = self._code_build().start_build(projectName=project)["build"]
        except AwsError as error:
            if error.code not in known:
                raise
            raise Refusal(f"{project}: {known[error.code]}") from None
        name, log = str(build["id"]), build.get("logs", {}).get("deepLink", "in CloudWatch")
        self._say(f"{name}: started; log {log}")
        until, phase = self._clock.now() + timedelta(minutes=minutes), ""
        while build["buildStatus"] == "IN_PROGRESS":
            if self._clock.now() >= until:
                why = f"still {phase} after {count(minutes, 'minute')}; it continues in that account and is billed"
                raise Refusal(f"{name}: {why} until its own time-out: read its log, then retry the stage")
            self._clock.sleep(POLL_S)
            (build,) = self._code_build().batch_get_builds(ids=[name])["builds"]
            if build.get("currentPhase", "") != phase:
                phase = build.get("currentPhase", "")
                self._say(f"{name}: {phase}")
        if build["buildStatus"] != "SUCCEEDED":
            why = f"{build['buildStatus']} ({_reason(build)})"
            raise Refusal(f"{name}: {why}; read {log}, then retry the stage")
        return name

    def _code_build(self) -> Any:
        now = self._clock.now()
        if self._stage is None or now - self._stage[0] >= RENEW:
            sts = self._aws.client("sts")
            answer = sts.assume_role(RoleArn=self._role, RoleSessionName="speculation-delivery")
            self._stage = (now, Aws(self._aws.region, keys=answer["Credentials"]))
        return self._stage[1].client("codebuild")


def _reason(build: dict[str, Any]) -> str:
    """The first phase that did not succeed, with what it messages."""
    for phase in build.get("phases", ()):
        if phase.get("phaseStatus") not in (None, "SUCCEEDED"):
            messages = "; ".join(context.get("message", "") for context in phase.get("contexts", ()))
            return f"{phase['phaseType']}: {messages or phase['phaseStatus']}"
    return "no phase says why"


@on_aws
@manifests_option
def smoke(path: Path, manifests: Path, account: str | None, as_json: bool) -> int:
    """Does the cluster run what was reviewed, and may a Trn2 node follow? Needs none."""
    experiment = load(path)
    files = read(experiment, manifests)
    aws = aws_of(experiment, account)
    for note in misfits(experiment, aws, *QUOTAS):
        warn(note.line())
    problems = misfits(experiment, aws, *PINS_AND_ZONE)
    with cluster_of(experiment, aws) as cluster:
        problems += findings(files, cluster.get)
    lines = [one.line() for one in problems] or [f"{experiment.name}: is deployed as it was reviewed"]
    answer = {"experiment": experiment.name, "problems": [one.as_json() for one in problems]}
    print_json(answer) if as_json else print("\n".join(lines))
    return 1 if problems else 0


def findings(files: tuple[ManifestFile, ...], get: Callable[[str, str], Object | None]) -> Iterator[Finding]:
    """What is missing, differs or failed; `get` asks the cluster for a kind and a name."""
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
                reason = f"container {container['name']} has {other or 'no image'}, the review had {wanted}"
                yield Finding(f"{kind} {name}", None, reason, _APPLY)
        yield from _health(kind, name, present)


def _health(kind: str, name: str, present: Object) -> Iterator[Finding]:
    status, where = present.get("status", {}), f"{kind} {name}"
    if kind == "Deployment":
        wanted, available = present["spec"].get("replicas", 1), status.get("availableReplicas", 0)
        if available < wanted:
            yield Finding(
                where, None, f"{available} of {count(wanted, 'replica')} answer", "read ./trnspec status"
            )
    if kind == "PersistentVolumeClaim" and status.get("phase", "Bound") not in ("Bound", "Pending"):
        yield Finding(where, None, f"is {status['phase']}", "delete it and deploy again")


@on_aws
@click.option("--hours", type=HOURS, default=8.0, metavar="H", help="Nodes live so long at most (default 8).")
@manifests_option
def compile_(path: Path, hours: float, manifests: Path, account: str | None, as_json: bool) -> int:
    """Make every artifact; Trn2 nodes are at 0 afterwards."""
    experiment = load(path)
    files = read(experiment, manifests)
    aws = aws_of(experiment, account)
    to_compile = not nothing_to_compile(experiment, aws, say)
    if to_compile:
        store = RunStore(experiment, aws)
        now, missing = Clock().now(), len(experiment_resources.missing_artifacts(experiment, aws))
        held = unfinished(experiment, store, now=now, take_over=False)
        plan = RunPlan.of(experiment, now, to_compile=missing, hours=hours)
        with opened(plan, aws, store, held, files=files) as context:
            context.needs_h = min(hours, sum(map(plan.hours_of, PREPARING)))
            compile_artifacts(context, fresh=held is None)
    answer = {"experiment": experiment.name, "nodes_started": to_compile}
    before = "" if to_compile else " already, so no Trn2 node was started"
    print_json(answer) if as_json else print(f"{experiment.name}: every artifact is complete{before}")
    return 0


def nothing_to_compile(experiment: Experiment, aws: Aws, say: Callable[[str], None]) -> bool:
    """Whether every arm has its artifact, so that no node has to start for one; those that were marked stale stay."""
    if experiment_resources.missing_artifacts(experiment, aws):
        return False
    for key in experiment_resources.free(experiment, aws):
        say(f"    artifact {key}: is used again by an arm: kept")
    return True


def compile_artifacts(context: Context, *, fresh: bool) -> None:
    """Fetch, start nodes, prove them, compile; then let the nodes go.

    `fresh`: the run was begun for this, so it ends with it; otherwise it goes back to the one who left it unfinished.
    Every step makes sure by itself of what is there already. Raises `Refusal`.
    """

    def prepare() -> str:
        chosen = [step for step in steps(context.experiment) if step.name in PREPARING]
        for number, step in enumerate(chosen, start=1):
            context.say(f"==> {number}/{len(chosen)} {step.title}")
            context.save(step=step.name, problem="")
            step.act(context)
        if context.state.nodes:
            stop_paying(context)
        if fresh:
            return finish(context)
        context.save(owner="")
        return ""

    try:
        with_nodes_off_on_failure(context, prepare)
    except KeyboardInterrupt:
        stop_paying(context)
        raise


VERBS = {"start": start, "smoke": smoke, "compile": compile_}


if __name__ == "__main__":
    sys.exit(main())
