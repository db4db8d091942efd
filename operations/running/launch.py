"""`run EXPERIMENT`: from deployed stacks to the answer and back to 0 Trn2 nodes."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from cdk8s_charts.manifests import read
from experiment import Experiment
from experiment.cost import per_hour, run_price
from experiment.finding import Finding, Misuse, Outside
from experiment.placement import nodes_needed
from operations import pricing
from operations.cloud import markers
from operations.cloud.access import cluster_of
from operations.cloud.aws import Aws, AwsError, aws_of
from operations.cloud.clock import SystemClock
from operations.options import ROOT, add_account, as_json, experiment_of
from operations.options import hours as hours_option
from operations.running.context import Context
from operations.running.state import Held, RunStore, claimed, unfinished
from operations.running.steps import carry_out, remaining, steps
from operations.verification import verify

_FINDING = 10
_REPORT = (
    "import sys; from benchmark.__main__ import main; code = main(sys.argv[1:]); "
    f"sys.exit({_FINDING} if code == 1 else code)"
)
"""The benchmark's command line, but for the exit code of a finding: 1 is also what Python gives a report that crashed."""
HELP = "arguments, weights, nodes, verify, compile, serve, benchmark, report, 0 nodes; the same command goes on after any interruption"


def configure(parser: argparse.ArgumentParser) -> None:
    """Which experiment, for how long nodes may live, what to do when it fails."""
    parser.add_argument(
        "experiment", type=Path, metavar="EXPERIMENT", help="experiment file, its stacks deployed"
    )
    parser.add_argument(
        "--hours",
        type=hours_option,
        metavar="H",
        help="nodes are set to 0 after so long, whatever happens (default: predicted hours and half as much again)",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="results (default: results/<run>)")
    parser.add_argument("--manifests", type=Path, default=ROOT / "manifests", help="default: manifests/")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done and what it costs")
    parser.add_argument("--keep-nodes", action="store_true", help="leave the nodes up when a step fails")
    parser.add_argument("--skip-verify", action="store_true", help="prove nothing about nodes and arguments")
    parser.add_argument(
        "--take-over", action="store_true", help="go on with a run whose process is gone elsewhere"
    )
    add_account(parser)


def execute(options: argparse.Namespace) -> int:
    """Exit 0 with an answer, 1 when a step failed, 2 when the experiment serves, 130 when interrupted."""
    experiment = experiment_of(options.experiment, verb="run")
    _refuse_service(experiment, options.experiment)
    if options.out is not None:
        _refuse_out(options.out)
    files = read(experiment, options.manifests)
    aws, clock = aws_of(experiment, options), SystemClock()
    if options.dry_run:
        return _dry_run(experiment, aws, options)
    store = RunStore(experiment, aws)
    held, to_compile = _ahead(experiment, aws, store, options)
    plan = _plan(experiment, held, to_compile, options.hours)
    print(_plan_text(plan), file=sys.stderr)
    with cluster_of(experiment, aws) as cluster:
        held = claimed(experiment, store, held, now=clock.now())
        context = Context(
            experiment=experiment,
            aws=aws,
            cluster=cluster,
            clock=clock,
            store=store,
            held=held,
            files=files,
            hours=plan["hours"],
            out=options.out or ROOT / "results" / held.state.id,
            say=_say,
            verify=None if options.skip_verify else verified,
            report=_report,
        )
        answer = carry_out(context, keep_nodes=options.keep_nodes)
    text = (
        f"run {answer.id}: {context.out}, {answer.state}\n"
        f"this answer took {answer.node_hours:.2f} Trn2 node hours, ${answer.usd:.2f} at list price; 0 nodes are left"
    )
    print(as_json(vars(answer)) if options.json else text)
    return 0


def _say(line: str) -> None:
    """A terminal that has gone is no reason to end a run."""
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def _refuse_out(folder: Path) -> None:
    """A place that takes no results, said before a node is paid for."""
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(one))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "is not writable" if there.is_dir() else "is not a folder"
        raise Misuse(f"--out {folder}: {there} {why}; choose another folder")


def _refuse_service(experiment: Experiment, file: Path) -> None:
    if experiment.serve is not None:
        raise Misuse(
            f"{file}: {experiment.serve.arm} is a service (serve), and a run ends with every arm and node at 0; remove the "
            "serve section, make manifests, deploy, then run this again, and promote afterwards"
        )


def _ahead(
    experiment: Experiment, aws: Aws, store: RunStore, options: argparse.Namespace
) -> tuple[Held | None, int]:
    """The run to go on with, and how many artifacts are missing."""
    held = unfinished(experiment, store, now=SystemClock().now(), take_over=options.take_over)
    return held, sum(not markers.has_artifact(experiment, aws, arm) for arm in experiment.served_arms)


def _dry_run(experiment: Experiment, aws: Aws, options: argparse.Namespace) -> int:
    """The plan; where AWS cannot be asked that of a new run, and exit 3."""
    problem = None
    try:
        held, to_compile = _ahead(experiment, aws, RunStore(experiment, aws), options)
    except AwsError as error:
        held, to_compile, problem = None, len(experiment.served_arms), error
    plan = {**_plan(experiment, held, to_compile, options.hours), "asked_aws": problem is None}
    print(as_json(plan) if options.json else _plan_text(plan))
    if problem is None:
        return 0
    print(
        f"run: {problem}; until then the plan is that of a new run that compiles every arm", file=sys.stderr
    )
    return problem.exit_code


def _plan(experiment: Experiment, held: Held | None, to_compile: int, hours: float | None) -> dict[str, Any]:
    """What is ahead, and what it may cost at most."""
    everything = steps(experiment)
    left = remaining(everything, held.state.done if held else ())
    items = pricing.of_running(experiment)
    predicted = run_price(experiment, to_compile=to_compile, items=items)
    allowed = hours or round(predicted.hours * 1.5, 2)
    return {
        "experiment": experiment.name,
        "resumes": held.state.id if held else None,
        "steps": [step.title for step in left],
        "to_compile": to_compile,
        "nodes": nodes_needed(experiment),
        "predicted_trn2_hours": round(predicted.hours, 2),
        "predicted_usd": round(predicted.usd, 2),
        "hours": allowed,
        "most_usd": round(allowed * per_hour(items), 2),
    }


def _plan_text(plan: dict[str, Any]) -> str:
    begins = f"goes on with run {plan['resumes']}" if plan["resumes"] else "a new run"
    return (
        f"{plan['experiment']}: {begins}; {plan['to_compile']} artifacts to compile, {plan['nodes']} Trn2 nodes\n"
        + "".join(f"    {title}\n" for title in plan["steps"])
        + f"predicted: {plan['predicted_trn2_hours']:.1f} Trn2 hours, ${plan['predicted_usd']:.2f} for the answer at list "
        f"price; at most ${plan['most_usd']:.2f}, because nodes are set to 0 after {plan['hours']:g} hours"
    )


def verified(context: Context) -> list[Finding]:
    """What `scripts/verify` checks, as a step."""
    return verify(
        context.experiment, context.cluster, context.clock, tell=lambda line: context.say(f"    {line}")
    )


def _report(folder: Path) -> None:
    """The table on the terminal and report.html in the folder, made by the benchmark itself."""
    command = [sys.executable, "-c", _REPORT, "report", str(folder.resolve())]
    result = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
    if result.returncode not in (0, _FINDING):
        raise Outside(
            f"benchmark report {folder}: ended with exit {result.returncode}; the records are there, run this again, or make "
            f"the report alone: .venv/bin/python -m benchmark report {folder}"
        )
