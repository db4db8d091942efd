"""`run EXPERIMENT`: from deployed stacks to the answer and back to 0 Trn2 nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from cdk8s_charts.manifests import ManifestFile, read
from trnspec.core.checkout import ROOT
from trnspec.core.console import print_json, print_text, warn
from trnspec.core.findings import Misuse, Outside, Refusal
from trnspec.core.screen import folded
from trnspec.experiment import Experiment, load
from trnspec.operations.cloud import experiment_resources, nodegroup
from trnspec.operations.cloud.access import cluster_of
from trnspec.operations.cloud.aws import Aws, AwsError, aws_of
from trnspec.operations.cloud.clock import Clock
from trnspec.operations.options import (
    FILE,
    HOURS,
    USD,
    WAITING,
    dry_run_option,
    manifests_option,
    with_experiment,
)
from trnspec.operations.running import trn2_nodes
from trnspec.operations.running.active_run import ActiveRun
from trnspec.operations.running.remote import Answer, Follower, RunOptions
from trnspec.operations.running.run_plan import RunPlan
from trnspec.operations.running.state import RunStore, VersionedState, claimed, unfinished
from trnspec.operations.running.steps import (
    LAST_STEP,
    all_compiled,
    remaining,
    run_to_end,
    run_until_compile,
    steps,
    steps_until_compile,
)

_FINDING = 10
_REPORT = (
    "import sys; from trnspec.benchmark.__main__ import main; code = main(sys.argv[1:]); "
    f"sys.exit({_FINDING} if code == 1 else code)"
)
"""The benchmark's command line, with another exit code for a finding: Python also ends with 1 after a crash."""


@with_experiment
@click.option(
    "--hours",
    type=HOURS,
    metavar="H",
    help="Set the nodes to 0 after H hours, whatever happens (default: 1.5 times the predicted hours).",
)
@click.option(
    "--wait",
    "wait_h",
    type=WAITING,
    metavar="TIME",
    help="Ask EC2 again for this long, as in 12h, while it has no node; waiting costs no Trn2 hour. With a Capacity Block: wait until "
    "it starts, then run the steps that fit before it ends.",
)
@click.option(
    "--max-usd",
    type=USD,
    metavar="USD",
    help="Like --hours: the hours that this pays at the highest price in the file.",
)
@click.option("--out", type=FILE, metavar="DIR", help="Folder of results (default: results/<run>).")
@manifests_option
@click.option("--keep-nodes", is_flag=True, help="Keep the nodes when a step fails.")
@click.option("--skip-verify", is_flag=True, help="Do not check nodes and server arguments before the run.")
@click.option("--take-over", is_flag=True, help="Continue a run whose process has ended.")
@click.option(
    "--until",
    type=click.Choice([LAST_STEP]),
    help="Stop when every artifact is compiled, with 0 nodes. Not with --wait.",
)
@click.option(
    "--remote", is_flag=True, help="Run in CodeBuild, and follow its log; you may close this machine."
)
@click.option("--stop", is_flag=True, help="With --remote: stop that run, as Ctrl-C stops one here.")
@click.option("--fetch", is_flag=True, help="With --remote: download the results of the last run.")
@dry_run_option
def command(*, as_json: bool, remote: bool, stop: bool, fetch: bool, dry_run: bool, **given: Any) -> int:
    """Run a deployed experiment: fetch weights, start nodes, check them, compile, measure, report, set nodes to 0.

    The same command continues after an interruption. Exit 0: there is an answer. 1: a step failed. 2: the experiment
    serves. 130: interrupted.
    """
    asked = RunOptions(**given)
    if (stop or fetch) and not remote:
        raise Misuse("--stop, --fetch: are for runs in CodeBuild; add --remote")
    experiment = load(asked.path)
    _refuse(asked, experiment)
    if dry_run:
        return _dry_run(experiment, asked, as_json=as_json)
    if remote:
        follower = Follower(experiment, aws_of(experiment), asked, clock=Clock(), say=say)
        answer, text = follower.stop() if stop else follower.fetch() if fetch else follower.run()
    else:
        answer, text = run_locally(experiment, asked)
    print_json(answer) if as_json else print(text)
    return 0


def _refuse(asked: RunOptions, experiment: Experiment) -> None:
    """Raise `Misuse` for an experiment or options that cannot be run."""
    if experiment.serve is not None:
        raise Misuse(
            f"{asked.path}: {experiment.serve.arm} is a service (serve), and a run would set its arm and nodes to 0; remove the "
            "serve section, render, deploy, then run this again"
        )
    if asked.until and asked.wait_h:
        raise Misuse(f"--until {asked.until}: does not wait for nodes; leave --wait out, or run to the end")
    if (folder := asked.out) is not None:  # before a node is paid for
        there = next(one for one in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(one))
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            why = "is not writable" if there.is_dir() else "is not a folder"
            raise Misuse(f"--out {folder}: {there} {why}; choose another folder")


def run_locally(experiment: Experiment, asked: RunOptions) -> Answer:
    """Run in this process. Raises `Refusal` if a step fails."""
    files = read(experiment, asked.manifests)
    aws = aws_of(experiment)
    if asked.until and all_compiled(experiment, aws, say):
        return _compiled(experiment, nodes_started=False)
    store, now = RunStore(experiment, aws), Clock().now()
    held = unfinished(experiment, store, now=now, take_over=asked.take_over)
    plan = _plan(experiment, asked, now=now, aws=aws, held=held)
    print("\n".join(folded(plan.text.split("\n"))), file=sys.stderr)
    needs_h = plan.check_time()
    _warn_of_silence(experiment, aws)
    with opened(plan, aws, store, held, files=files, out=asked.out) as run:
        run.needs_h = needs_h
        if asked.skip_verify:
            run.verify = None
        if asked.until:
            run_until_compile(run, fresh=held is None)
            return _compiled(experiment, nodes_started=True)
        answer = run_to_end(run, keep_nodes=asked.keep_nodes)
    text = (
        f"run {answer['id']}: {run.out}, {answer['state']}\n"
        f"this run used {answer['node_hours']:.2f} Trn2 node hours, {answer['cost']}; 0 nodes are left"
    )
    return answer, text


def _compiled(experiment: Experiment, *, nodes_started: bool) -> Answer:
    before = "" if nodes_started else " already, so no Trn2 node was started"
    answer = {"experiment": experiment.name, "nodes_started": nodes_started}
    return answer, f"{experiment.name}: every artifact is complete{before}"


@contextmanager
def opened(
    plan: RunPlan,
    aws: Aws,
    store: RunStore,
    held: VersionedState | None,
    *,
    files: tuple[ManifestFile, ...],
    out: Path | None = None,
) -> Iterator[ActiveRun]:
    """Take over the run that is continued, or begin a new one."""
    experiment, clock = plan.experiment, Clock()
    with cluster_of(experiment, aws) as cluster:
        mine = claimed(experiment, store, held, now=clock.now())
        yield ActiveRun(
            experiment=experiment,
            aws=aws,
            cluster=cluster,
            clock=clock,
            store=store,
            held=mine,
            files=files,
            plan=plan,
            out=out or ROOT / "results" / mine.state.id,
            say=say,
            report=_report,
        )


def say(line: str) -> None:
    """Print on stderr. A run continues when its terminal closes."""
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def _warn_of_silence(experiment: Experiment, aws: Aws) -> None:
    """Warn if nobody receives the alarms. One of them says that a schedule could not set the nodes to 0."""
    try:
        found = experiment_resources.subscribers(experiment, aws)
    except AwsError as error:
        warn(f"it is not known whether anyone receives the alarms ({error})")
        return
    if not any((found or {}).values()):
        why = experiment_resources.nobody(experiment).partition("; ")[2]
        if found:
            why = f"{', '.join(found)} {experiment_resources.UNCONFIRMED}"
        silent = f"nobody receives the alarms of {experiment.name}, not even one about a schedule that fails"
        warn(f"{silent}: {why}")


def _plan(
    experiment: Experiment,
    asked: RunOptions,
    *,
    now: datetime,
    aws: Aws | None,
    held: VersionedState | None = None,
) -> RunPlan:
    """Return the plan of a new run, or of the one that is continued. Without `aws` every arm is to be compiled."""
    done = held.state.done if held else ()
    left = steps_until_compile(experiment) if asked.until else remaining(steps(experiment), done)
    known: dict[str, Any] = {}
    if aws is not None:
        known["missing"] = len(experiment_resources.missing_artifacts(experiment, aws))
        if any(step.name == "nodes" for step in left):
            known["off"] = nodegroup.off_next(experiment, aws, now=now)
            known["block"] = trn2_nodes.block_start(experiment, aws)
    return RunPlan(
        experiment=experiment,
        now=now,
        left=tuple((step.name, step.title) for step in left),
        asked_hours=asked.hours_of(experiment),
        wait_h=asked.wait_h or 0.0,
        resumes=held.state.id if held else None,
        **known,
    )


def _dry_run(experiment: Experiment, asked: RunOptions, *, as_json: bool) -> int:
    """Print the plan. If AWS does not answer, print the plan of a new run and return 3."""
    problem: Refusal | None = None
    now = Clock().now()
    try:
        aws = aws_of(experiment)
        held = unfinished(experiment, RunStore(experiment, aws), now=now, take_over=asked.take_over)
        plan = _plan(experiment, asked, now=now, aws=aws, held=held)
    except AwsError as error:
        plan, problem = _plan(experiment, asked, now=now, aws=None), error
    told = {**plan.as_json(), "asked_aws": problem is None}
    print_json(told) if as_json else print_text(*plan.text.split("\n"))
    if problem is not None:
        warn(f"{problem}; until then the plan assumes a new run that compiles every arm")
        return problem.exit_code
    try:
        plan.check_time()
    except Refusal as error:
        warn(str(error))
        return error.exit_code
    return 0


def _report(folder: Path) -> None:
    """Print the table and write report.html into the folder, with the command line of the benchmark."""
    command = [sys.executable, "-c", _REPORT, "report", str(folder.resolve())]
    result = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
    if result.returncode not in (0, _FINDING):
        raise Outside(
            f"report {folder}: ended with exit {result.returncode}; the records are there, run this again, or make "
            f"the report alone: ./trnspec report {folder}"
        )
