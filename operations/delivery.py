"""`scripts/deliver VERB`: what the pipeline runs, in its own account (start) and in a stage's VPC (smoke, compile)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdk8s_charts.manifests import PLACEHOLDERS, filled, read, with_tags
from experiment.finding import Refusal
from experiment.naming import BENCHMARK_NAME
from operations.cloud import markers
from operations.cloud.access import cluster_of
from operations.cloud.aws import Aws, AwsError, aws_of
from operations.cloud.clock import SystemClock
from operations.cloud.kubernetes import pod_containers, tools_image
from operations.console import carried_out
from operations.options import ROOT, add_experiment, add_json, as_json, experiment_of, hours
from operations.running.context import Context
from operations.running.launch import verified
from operations.running.state import RunStore, claimed, unfinished
from operations.running.steps import finish, or_stop_paying, steps, stop_paying

if TYPE_CHECKING:
    from cdk8s_charts.manifests import ManifestFile
    from experiment import Experiment
    from operations.cloud.clock import Clock

EPILOG = (
    "Exit codes: 0 fine, 1 a finding or a step that failed, 2 wrong usage or configuration, 3 AWS or the cluster could not "
    "be reached, 130 interrupted."
)
POLL_S = 30
RENEW = timedelta(minutes=45)
"""Credentials of an assumed role last an hour, compilation lasts longer."""
KINDS = ("ServiceAccount", "ConfigMap", "PersistentVolumeClaim", "Service", "Deployment", "Job", "CronJob")
"""Of the manifests, what AmazonEKSViewPolicy shows
(https://docs.aws.amazon.com/eks/latest/userguide/access-policy-permissions.html); the rest was applied with them."""
PREPARING = ("arguments", "weights", "nodes", "verify", "compile")
Object = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one verb."""
    options = parser().parse_args(arguments)
    act = {"start": _start, "smoke": _smoke, "compile": _compile}[options.verb]
    return carried_out(f"deliver {options.verb}", lambda: act(options))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="scripts/deliver", description=__doc__, epilog=EPILOG)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    start = verbs.add_parser(
        "start", help="start a build project of a stage's account and wait for it", epilog=EPILOG
    )
    start.add_argument("project", metavar="PROJECT", help="e.g. qwen3-32b-smoke")
    start.add_argument("--region", required=True)
    start.add_argument(
        "--role", required=True, metavar="ARN", help="role of the stage's account that may start it"
    )
    start.add_argument(
        "--minutes", type=_minutes, default=60, help="give up waiting after so many (default: 60)"
    )
    add_json(start)
    smoke = verbs.add_parser("smoke", help="is what was reviewed what stands in the cluster?", epilog=EPILOG)
    compile_ = verbs.add_parser(
        "compile", help="make every artifact; Trn2 nodes at 0 afterwards", epilog=EPILOG
    )
    compile_.add_argument(
        "--hours", type=hours, default=8.0, metavar="H", help="nodes live so long at most (default: 8)"
    )
    for verb in (smoke, compile_):
        add_experiment(verb)
        verb.add_argument("--manifests", type=Path, default=ROOT / "manifests", help="default: manifests/")
    return top


def _start(options: argparse.Namespace) -> int:
    starter = Starter(Aws(options.region), role=options.role, clock=SystemClock(), say=_say)
    build = starter.run(options.project, minutes=options.minutes)
    print(as_json({"build": build}) if options.json else f"{build}: succeeded")
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
        build = self._begun(project)
        name, log = str(build["id"]), build.get("logs", {}).get("deepLink", "in CloudWatch")
        self._say(f"{name}: started; log {log}")
        until = self._clock.now() + timedelta(minutes=minutes)
        phase = ""
        while build["buildStatus"] == "IN_PROGRESS":
            if self._clock.now() >= until:
                raise Refusal(
                    f"{name}: still {phase} after {minutes} minutes; it goes on in its account, and what it started "
                    "there bills until its own time-out: look at its log, then retry the stage"
                )
            self._clock.sleep(POLL_S)
            builds: list[dict[str, Any]] = self._code_build().batch_get_builds(ids=[name])["builds"]
            if not builds:
                raise Refusal(f"{name}: CodeBuild no longer knows it; retry the stage")
            build = builds[0]
            if build.get("currentPhase", "") != phase:
                phase = build.get("currentPhase", "")
                self._say(f"{name}: {phase}")
        if build["buildStatus"] != "SUCCEEDED":
            raise Refusal(f"{name}: {build['buildStatus']} ({_why(build)}); read {log}, then retry the stage")
        return name

    def _begun(self, project: str) -> dict[str, Any]:
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
        return build

    def _code_build(self) -> Any:
        now = self._clock.now()
        if self._stage is None or now - self._stage[0] >= RENEW:
            sts = self._aws.client("sts")
            answer = sts.assume_role(RoleArn=self._role, RoleSessionName="speculation-delivery")
            self._stage = (now, Aws(self._aws.region, keys=answer["Credentials"]))
        return self._stage[1].client("codebuild")


def _why(build: dict[str, Any]) -> str:
    """The first phase that did not succeed, with what it said."""
    for phase in build.get("phases", ()):
        if phase.get("phaseStatus") not in (None, "SUCCEEDED"):
            said = "; ".join(context.get("message", "") for context in phase.get("contexts", ()))
            return f"{phase['phaseType']}: {said or phase['phaseStatus']}"
    return "no phase says why"


def _smoke(options: argparse.Namespace) -> int:
    """Whether what was reviewed is what stands in the cluster. Needs no Trn2 node."""
    experiment, files = _reviewed(options)
    with cluster_of(experiment, aws_of(experiment, options)) as cluster:
        found = list(findings(files, cluster.get))
    if options.json:
        print(as_json({"experiment": experiment.name, "findings": found}))
    else:
        print("\n".join(found) or f"{experiment.name}: stands as it was reviewed")
    return 1 if found else 0


def findings(files: tuple[ManifestFile, ...], get: Callable[[str, str], Object | None]) -> Iterator[str]:
    """What is missing, differs or failed, a line each; `get` asks the cluster for a kind and a name."""
    cron_job = get("CronJob", BENCHMARK_NAME)
    image = tools_image(cron_job) if cron_job is not None else ""
    values = dict.fromkeys(PLACEHOLDERS, "") | with_tags({"BENCHMARK_IMAGE": image})
    for item in (item for file in files for item in file.objects if item["kind"] in KINDS):
        kind, name = item["kind"], filled(item["metadata"]["name"], values)
        found = get(kind, name)
        if found is None:
            yield f"{kind} {name}: is not in the cluster; deploy the workloads stack"
            continue
        theirs = {one["name"]: one["image"] for one in pod_containers(found)}
        for container in pod_containers(item):
            wanted, other = container["image"], theirs.get(container["name"])
            if wanted != other and not (other and "${" in wanted):  # which is filled in at deployment
                yield (
                    f"{kind} {name}: container {container['name']} has {other or 'no image'}, reviewed was {wanted}; "
                    "deploy again"
                )
        yield from _health(kind, name, found)


def _health(kind: str, name: str, found: Object) -> Iterator[str]:
    status = found.get("status", {})
    if kind == "Deployment":
        wanted, available = found["spec"].get("replicas", 1), status.get("availableReplicas", 0)
        if available < wanted:
            yield f"Deployment {name}: {available} of {wanted} replicas answer; read scripts/status"
    for condition in status.get("conditions", ()):
        if kind == "Job" and (condition["type"], condition["status"]) == ("Failed", "True"):
            yield f"Job {name}: failed ({condition.get('message', 'it does not say why')}); read scripts/kubectl logs job/{name}"
    if kind == "PersistentVolumeClaim" and status.get("phase", "Bound") not in ("Bound", "Pending"):
        yield f"PersistentVolumeClaim {name}: is {status['phase']}; delete it and deploy again"


def _compile(options: argparse.Namespace) -> int:
    experiment, files = _reviewed(options)
    aws, clock = aws_of(experiment, options), SystemClock()
    to_compile = not nothing_to_compile(experiment, aws, _say)
    if to_compile:
        store = RunStore(experiment, aws)
        held = unfinished(experiment, store, now=clock.now(), take_over=False)
        with cluster_of(experiment, aws) as cluster:
            context = Context(
                experiment=experiment,
                aws=aws,
                cluster=cluster,
                clock=clock,
                store=store,
                held=claimed(experiment, store, held, now=clock.now()),
                files=files,
                hours=options.hours,
                out=ROOT / "results",
                say=_say,
                verify=verified,
            )
            compile_artifacts(context, fresh=held is None)
    told = {"experiment": experiment.name, "nodes_started": to_compile}
    before = "" if to_compile else " already, so no Trn2 node was started"
    print(as_json(told) if options.json else f"{experiment.name}: every artifact is complete{before}")
    return 0


def nothing_to_compile(experiment: Experiment, aws: Aws, say: Callable[[str], None]) -> bool:
    """Whether every arm has its artifact, so that no node has to start for one; those that were marked stale stay."""
    if not all(markers.has_artifact(experiment, aws, arm) for arm in experiment.served_arms):
        return False
    for key in markers.free(experiment, aws):
        say(f"    artifact {key}: is some arm's again and stays")
    return True


def compile_artifacts(context: Context, *, fresh: bool) -> None:
    """Fetch, start nodes, prove them, compile; then let the nodes go.

    `fresh`: the run was begun for this, so it ends with it; otherwise it goes back to whoever left it unfinished.
    Every step makes sure by itself of what is there already. Raises `Refusal`.
    """
    try:
        or_stop_paying(context, lambda: _prepare(context, fresh=fresh))
    except KeyboardInterrupt:
        stop_paying(context)
        raise


def _prepare(context: Context, *, fresh: bool) -> str:
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


def _reviewed(options: argparse.Namespace) -> tuple[Experiment, tuple[ManifestFile, ...]]:
    experiment = experiment_of(options.experiment, verb="deliver")
    return experiment, read(experiment, options.manifests)


def _minutes(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 36 * 60:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes from 1 to {36 * 60}")
    return int(text)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
