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
from trnspec.core.console import print_json, warn
from trnspec.core.findings import Misuse, Outside, Refusal
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
from trnspec.operations.running import waiting
from trnspec.operations.running.context import Context
from trnspec.operations.running.first_half import (
    LAST_STEP,
    compile_artifacts,
    first_half,
    nothing_to_compile,
)
from trnspec.operations.running.remote import Answer, Asked, Follower
from trnspec.operations.running.run_plan import RunPlan
from trnspec.operations.running.state import Held, RunStore, claimed, unfinished
from trnspec.operations.running.steps import remaining, run_to_end, steps

_FINDING = 10
_REPORT = (
    "import sys; from trnspec.benchmark.__main__ import main; code = main(sys.argv[1:]); "
    f"sys.exit({_FINDING} if code == 1 else code)"
)
"""The benchmark's command line, but for the exit code of a finding: 1 is also what Python gives a report that crashed."""


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
    asked = Asked(**given)
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
        answer, text = carry_out(experiment, asked)
    print_json(answer) if as_json else print(text)
    return 0


def _refuse(asked: Asked, experiment: Experiment) -> None:
    """`Misuse` for what cannot be run, before anything is asked."""
    if experiment.serve is not None:
        raise Misuse(
            f"{asked.path}: {experiment.serve.arm} is a service (serve), and a run ends with every arm and node at 0; remove the "
            "serve section, render, deploy, then run this again, and promote afterwards"
        )
    if asked.until and asked.wait_h:
        raise Misuse(f"--until {asked.until}: does not wait for nodes; leave --wait out, or run to the end")
    if asked.out is not None:
        _refuse_out(asked.out)


def carry_out(experiment: Experiment, asked: Asked) -> Answer:
    """Run to the end. Raises `Refusal` for a step that failed."""
    until, wait_h = asked.until, asked.wait_h or 0.0
    files = read(experiment, asked.manifests)
    aws = aws_of(experiment)
    if until and nothing_to_compile(experiment, aws, say):
        return _compiled(experiment, nodes_started=False)
    store, now = RunStore(experiment, aws), Clock().now()
    held = unfinished(experiment, store, now=now, take_over=asked.take_over)
    hours = asked.hours_of(experiment)
    plan = _plan(experiment, aws, held, now=now, until=until, hours=hours, wait_h=wait_h)
    print(plan.text, file=sys.stderr)
    needs_h = plan.check_time()
    _warn_of_silence(experiment, aws)
    with opened(plan, aws, store, held, files=files, out=asked.out) as context:
        context.needs_h = needs_h
        if asked.skip_verify:
            context.verify = None
        if until:
            compile_artifacts(context, fresh=held is None)
            return _compiled(experiment, nodes_started=True)
        answer = run_to_end(context, keep_nodes=asked.keep_nodes)
    text = (
        f"run {answer['id']}: {context.out}, {answer['state']}\n"
        f"this answer took {answer['node_hours']:.2f} Trn2 node hours, {answer['cost']}; 0 nodes are left"
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
    held: Held | None,
    *,
    files: tuple[ManifestFile, ...],
    out: Path | None = None,
) -> Iterator[Context]:
    """What the steps work with, of a run that is ours from here on: one to go on with, or a new one."""
    experiment, clock = plan.experiment, Clock()
    with cluster_of(experiment, aws) as cluster:
        mine = claimed(experiment, store, held, now=clock.now())
        yield Context(
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
    """A terminal that has gone is no reason to end a run."""
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def _refuse_out(folder: Path) -> None:
    """`Misuse` for a place that takes no results, before a node is paid for."""
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(place))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "is not writable" if there.is_dir() else "is not a folder"
        raise Misuse(f"--out {folder}: {there} {why}; choose another folder")


def _warn_of_silence(experiment: Experiment, aws: Aws) -> None:
    """Where nobody receives the alarms; one of them says that a schedule could not set the nodes to 0."""
    try:
        found = experiment_resources.subscribers(experiment, aws)
    except AwsError as error:
        warn(f"it is not known whether anyone receives the alarms ({error})")
        return
    if not any((found or {}).values()):
        names = ", ".join(found or ())
        why = (
            f"{names} {experiment_resources.UNCONFIRMED}"
            if names
            else f"nobody {experiment_resources.nobody(experiment)}"
        )
        warn(f"no alarm of {experiment.name} reaches anyone, not even one about a schedule that fails: {why}")


def _plan(
    experiment: Experiment,
    aws: Aws,
    held: Held | None,
    *,
    now: datetime,
    until: str | None,
    hours: float | None,
    wait_h: float,
) -> RunPlan:
    """What is ahead of a new run, or of the one that is continued."""
    done = held.state.done if held else ()
    left = first_half(experiment) if until else remaining(steps(experiment), done)
    starts = any(step.name == "nodes" for step in left)
    return RunPlan.of(
        experiment,
        now,
        left=[(step.name, step.title) for step in left],
        to_compile=len(experiment_resources.missing_artifacts(experiment, aws)),
        hours=hours,
        wait_h=wait_h,
        resumes=held.state.id if held else None,
        off=nodegroup.off_next(experiment, aws, now=now) if starts else None,
        block=waiting.begins(experiment, aws) if starts else None,
    )


def _dry_run(experiment: Experiment, asked: Asked, *, as_json: bool) -> int:
    """The plan; where AWS cannot be asked that of a new run, and exit 3."""
    problem: Refusal | None = None
    now, until = Clock().now(), asked.until
    limits: Any = {"hours": asked.hours_of(experiment), "wait_h": asked.wait_h or 0.0}
    try:
        aws = aws_of(experiment)
        held = unfinished(experiment, RunStore(experiment, aws), now=now, take_over=asked.take_over)
        plan = _plan(experiment, aws, held, now=now, until=until, **limits)
    except AwsError as error:
        ahead = first_half(experiment) if until else steps(experiment)
        left = [(step.name, step.title) for step in ahead]
        plan, problem = RunPlan.of(experiment, now, left=left, **limits), error
    print_json({**plan.as_json(), "asked_aws": problem is None}) if as_json else print(plan.text)
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
    """The table on the terminal and report.html in the folder, made by the benchmark itself."""
    command = [sys.executable, "-c", _REPORT, "report", str(folder.resolve())]
    result = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
    if result.returncode not in (0, _FINDING):
        raise Outside(
            f"report {folder}: ended with exit {result.returncode}; the records are there, run this again, or make "
            f"the report alone: ./trnspec report {folder}"
        )
