"""`run EXPERIMENT`: from deployed stacks to the answer and back to 0 Trn2 nodes."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from cdk8s_charts.manifests import ManifestFile, read
from infra.off_schedules import AGAIN_AFTER
from trnspec.core.checkout import ROOT
from trnspec.core.console import print_json, warn
from trnspec.core.findings import Misuse, Outside, Refusal
from trnspec.core.words import count
from trnspec.experiment import Experiment, load
from trnspec.experiment.catalogue.prices import block_rates
from trnspec.experiment.cost import NODE_START_H, node_price, per_hour, run_price, running, spot_rates
from trnspec.experiment.placement import nodes_needed
from trnspec.operations.cloud import experiment_resources, nodegroup
from trnspec.operations.cloud.access import cluster_of
from trnspec.operations.cloud.aws import Aws, AwsError, aws_of
from trnspec.operations.cloud.clock import Clock, stamp
from trnspec.operations.options import (
    FILE,
    HOURS,
    MOST_HOURS,
    USD,
    WAITING,
    dry_run_option,
    manifests_option,
    on_aws,
)
from trnspec.operations.running import waiting
from trnspec.operations.running.context import Context, predicted_h
from trnspec.operations.running.state import Held, RunStore, claimed, unfinished
from trnspec.operations.running.steps import LAST, Step, carry_out, remaining, steps

_FINDING = 10
_REPORT = (
    "import sys; from trnspec.benchmark.__main__ import main; code = main(sys.argv[1:]); "
    f"sys.exit({_FINDING} if code == 1 else code)"
)
"""The benchmark's command line, but for the exit code of a finding: 1 is also what Python gives a report that crashed."""


@on_aws
@click.option(
    "--hours",
    type=HOURS,
    metavar="H",
    help="Nodes are set to 0 after so long, whatever happens (default: predicted hours and half as much again).",
)
@click.option(
    "--wait",
    "wait_h",
    type=WAITING,
    metavar="TIME",
    help="Where EC2 has no node, ask again for so long, as in 12h; no Trn2 node bills meanwhile. Of a capacity block: wait for its "
    "start, and do what fits before its end.",
)
@click.option(
    "--max-usd",
    type=USD,
    metavar="USD",
    help="As --hours: the hours that these dollars pay at the highest price that the file allows.",
)
@click.option("--out", type=FILE, metavar="DIR", help="Results (default: results/<run>).")
@manifests_option
@click.option(
    "--keep-nodes", is_flag=True, help="Leave the nodes up when a step fails (not when EC2 has none)."
)
@click.option("--skip-verify", is_flag=True, help="Prove nothing about nodes and arguments.")
@click.option("--take-over", is_flag=True, help="Go on with a run whose process is gone.")
@dry_run_option
def command(
    path: Path,
    hours: float | None,
    wait_h: float | None,
    max_usd: float | None,
    out: Path | None,
    manifests: Path,
    keep_nodes: bool,
    skip_verify: bool,
    take_over: bool,
    dry_run: bool,
    account: str | None,
    as_json: bool,
) -> int:
    """From deployed stacks to the answer: weights, arguments, nodes, proof, compilation, arms, benchmark, report, 0 nodes.

    The same command goes on after any interruption. Exit 0 with an answer, 1 when a step failed, 2 when the experiment
    serves, 130 when interrupted.
    """
    experiment = load(path)
    if experiment.serve is not None:
        raise Misuse(
            f"{path}: {experiment.serve.arm} is a service (serve), and a run ends with every arm and node at 0; remove the "
            "serve section, render, deploy, then run this again, and promote afterwards"
        )
    wait_h = wait_h or 0.0
    if max_usd is not None:
        hours = min(hours or MOST_HOURS, paid_hours(experiment, max_usd))
    if out is not None:
        _refuse_out(out)
    files = read(experiment, manifests)
    aws = aws_of(experiment, account)
    everything = steps(experiment)
    if dry_run:
        asked: dict[str, Any] = {"hours": hours, "wait_h": wait_h, "take_over": take_over}
        return _dry_run(experiment, aws, everything, **asked, as_json=as_json)
    store = RunStore(experiment, aws)
    ahead = _ahead(experiment, aws, store, everything, take_over=take_over)
    plan = _plan(experiment, ahead, hours, wait_h)
    print(_plan_text(plan), file=sys.stderr)
    needs_h = _refuse_cut(experiment, ahead, plan)
    _warn_of_silence(experiment, aws)
    with opened(experiment, aws, store, ahead.held, files=files, hours=plan["hours"], out=out) as context:
        context.needs_h = needs_h
        context.wait_h, context.left_out = wait_h, plan["left_out"]
        if skip_verify:
            context.verify = None
        answer = carry_out(context, keep_nodes=keep_nodes)
    text = (
        f"run {answer['id']}: {context.out}, {answer['state']}\n"
        f"this answer took {answer['node_hours']:.2f} Trn2 node hours, {answer['cost']}; 0 nodes are left"
    )
    print_json(answer) if as_json else print(text)
    return 0


@contextmanager
def opened(
    experiment: Experiment,
    aws: Aws,
    store: RunStore,
    held: Held | None,
    *,
    files: tuple[ManifestFile, ...],
    hours: float,
    out: Path | None = None,
) -> Iterator[Context]:
    """What the steps work with, of a run that is ours from here on: one to go on with, or a new one."""
    clock = Clock()
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
            hours=hours,
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
            else f"nobody {experiment_resources.nobody(experiment.name)}"
        )
        warn(f"no alarm of {experiment.name} reaches anyone, not even one about a schedule that fails: {why}")


@dataclass(frozen=True, kw_only=True)
class _Ahead:
    """What a run has to do from now on."""

    now: datetime
    left: list[Step]
    to_compile: int
    """Artifacts that are missing."""
    held: Held | None = None
    """The run to go on with."""
    off: datetime | None = None
    """When the deployed schedules set the nodes to 0; None where no node has to start."""
    block: datetime | None = None
    """When the capacity block begins; None where nodes are bought another way, or none has to start."""

    @property
    def begins(self) -> datetime:
        """When nodes can start."""
        return max(self.now, self.block) if self.block else self.now


def _ahead(
    experiment: Experiment, aws: Aws, store: RunStore, everything: tuple[Step, ...], *, take_over: bool
) -> _Ahead:
    now = Clock().now()
    held = unfinished(experiment, store, now=now, take_over=take_over)
    left = remaining(everything, held.state.done if held else ())
    missing, starts = (
        experiment_resources.uncompiled(experiment, aws),
        any(step.name == "nodes" for step in left),
    )
    off = nodegroup.off_next(experiment, aws, now=now) if starts else None
    block = waiting.begins(experiment, aws) if starts else None
    return _Ahead(now=now, left=left, to_compile=missing, held=held, off=off, block=block)


def _dry_run(
    experiment: Experiment,
    aws: Aws,
    everything: tuple[Step, ...],
    *,
    hours: float | None,
    wait_h: float,
    take_over: bool,
    as_json: bool,
) -> int:
    """The plan; where AWS cannot be asked that of a new run, and exit 3."""
    problem: Refusal | None = None
    try:
        ahead = _ahead(experiment, aws, RunStore(experiment, aws), everything, take_over=take_over)
    except AwsError as error:
        missing = len(experiment.arms)
        ahead, problem = _Ahead(now=Clock().now(), left=[*everything], to_compile=missing), error
    plan = {**_plan(experiment, ahead, hours, wait_h), "asked_aws": problem is None}
    print_json(plan) if as_json else print(_plan_text(plan))
    if problem is not None:
        warn(f"{problem}; until then the plan assumes a new run that compiles every arm")
        return problem.exit_code
    try:
        _refuse_cut(experiment, ahead, plan)
    except Refusal as error:
        warn(str(error))
        return error.exit_code
    return 0


def _plan(experiment: Experiment, ahead: _Ahead, hours: float | None, wait_h: float) -> dict[str, Any]:
    """What is ahead, and what it may cost at most."""
    predicted = run_price(experiment, to_compile=ahead.to_compile)
    needs = {
        step.name: predicted_h(experiment, step.name, to_compile=ahead.to_compile) for step in ahead.left
    }
    allowed = hours or round(predicted.hours * 1.5, 2)
    until_off = (ahead.off - ahead.begins) / timedelta(hours=1) if ahead.off else allowed
    out = _left_out(needs, until_off) if wait_h and ahead.block else ()
    left = sum(need for name, need in needs.items() if name not in out)
    return {
        "experiment": experiment.name,
        "resumes": ahead.held.state.id if ahead.held else None,
        "steps": [step.title for step in ahead.left if step.name not in out],
        "left_out": {step.name: step.title for step in ahead.left if step.name in out},
        "begins_at": stamp(ahead.block) if ahead.block else None,
        "wait_hours": round(wait_h, 2),
        "to_compile": ahead.to_compile,
        "nodes": nodes_needed(experiment),
        "predicted_trn2_hours": round(predicted.hours, 2),
        "predicted_usd": round(predicted.usd, 2),
        "trn2_hours_left": round(left, 2),
        "hours": allowed,
        "off_at": stamp(ahead.off) if ahead.off and until_off < allowed else None,
        "most_usd": round(min(allowed, until_off) * _most_per_hour(experiment), 2),
        "costs": _costs(experiment, min(allowed, until_off)),
    }


def _most_per_hour(experiment: Experiment) -> float:
    """Everything that is billed while nodes run. By spot a node costs the most that the file allows, or the highest published price;
    in a block or a reservation the highest published rate of a block; otherwise the quoted price."""
    capacity, quoted = experiment.cluster.capacity, node_price(experiment).usd_per_hour
    rates = {
        "spot": spot_rates(experiment),
        "on-demand": [],
    }.get(capacity.kind, block_rates(experiment.instance.name))
    published = [rate.high_usd or rate.usd_per_hour for rate in rates]
    each = capacity.max_usd_per_hour or max(published, default=quoted)
    return per_hour(running(experiment)) + nodes_needed(experiment) * (each - quoted)


def paid_hours(experiment: Experiment, usd: float) -> float:
    """Hours of all nodes that the dollars pay at the highest price that the file allows. `Misuse` where none is known, and where the
    hours are too few for nodes to start."""
    capacity, where, name = experiment.cluster.capacity, f"--max-usd {usd:g}", experiment.instance.name
    if capacity.kind == "spot" and capacity.max_usd_per_hour is None and not spot_rates(experiment):
        none = f"no spot price of {name} in {experiment.cluster.region} is published"
        raise Misuse(f"{where}: {none}; write cluster.capacity.max_usd_per_hour, or give --hours")
    if capacity.kind == "on-demand":
        raise Misuse(f"{where}: no on-demand price of {name} is published; give --hours")
    hours = math.floor(100 * usd / _most_per_hour(experiment)) / 100
    if hours < NODE_START_H:
        raise Misuse(
            f"{where}: pays {60 * hours:.0f} minutes at ${_most_per_hour(experiment):.2f} an hour, and nodes take "
            f"{60 * NODE_START_H:.0f} to start; give more"
        )
    return hours


def _costs(experiment: Experiment, hours: float) -> str:
    """What a run of so many hours costs, in one sentence."""
    capacity, each = experiment.cluster.capacity, _most_per_hour(experiment)
    usd = f"${hours * each:.2f}"
    if capacity.kind in ("capacity-block", "reservation"):
        return f"costs at most {usd}"
    if capacity.kind == "spot":
        return f"{usd} at ${each:.2f} an hour; spot can rise, the hours are the limit"
    return f"{usd} at ${each:.2f} an hour, the rate of a Capacity Block: no on-demand price is published, the hours are the limit"


def _left_out(needs: Mapping[str, float], hours: float) -> tuple[str, ...]:
    """What does not fit into a block; nothing where not even one round does, which is refused then."""
    out = waiting.left_out([(name, need) for name, need in needs.items() if name not in LAST], hours)
    rounds = [name for name in needs if name.startswith("benchmark-")]
    return () if rounds and rounds[0] in out else out


def _refuse_cut(experiment: Experiment, ahead: _Ahead, plan: Mapping[str, Any]) -> float:
    """Trn2 hours that must be left when nodes start: none where fewer were asked for, which is wanted then. `Refusal` where a
    schedule sets the nodes to 0 before."""
    hours, left = plan["hours"], plan["trn2_hours_left"]
    if ahead.begins > ahead.now + timedelta(hours=plan["wait_hours"]):
        raise Refusal(waiting.not_begun(experiment, ahead.begins))
    until = ahead.now + timedelta(hours=plan["wait_hours"])
    if ahead.off and ahead.off + AGAIN_AFTER < until and not ahead.block:
        return float(min(hours, left))  # the daily switch-off is waited for
    if ahead.off:
        nodegroup.refuse_cut(experiment, off=ahead.off, now=ahead.begins, needs_h=min(hours, left))
    return float(left) if left <= hours else 0.0


def _plan_text(plan: dict[str, Any]) -> str:
    begins = f"goes on with run {plan['resumes']}" if plan["resumes"] else "a new run"
    ends = f"after {plan['hours']:g} hours"
    if plan["off_at"]:
        ends = f"at {plan['off_at']} by their schedule, before {plan['hours']:g} hours are over"
    artifacts, nodes = count(plan["to_compile"], "artifact"), count(plan["nodes"], "Trn2 node")
    if plan["begins_at"]:
        begins += f" in the capacity block from {plan['begins_at']}"
    out = ", ".join(plan["left_out"].values())
    out = out and f"\nwill not fit before the block ends, and is left to a later run: {out}"
    return (
        f"{plan['costs']}\n{plan['experiment']}: {begins}; {artifacts} to compile, {nodes}\n"
        + "".join(f"    {title}\n" for title in plan["steps"])
        + f"predicted: {plan['predicted_trn2_hours']:.1f} Trn2 hours, ${plan['predicted_usd']:.2f} for the answer at "
        f"quoted prices; nodes are set to 0 {ends}{out}"
    )


def _report(folder: Path) -> None:
    """The table on the terminal and report.html in the folder, made by the benchmark itself."""
    command = [sys.executable, "-c", _REPORT, "report", str(folder.resolve())]
    result = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
    if result.returncode not in (0, _FINDING):
        raise Outside(
            f"benchmark report {folder}: ended with exit {result.returncode}; the records are there, run this again, or make "
            f"the report alone: ./trnspec benchmark report {folder}"
        )
