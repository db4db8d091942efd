"""`promote ARM`: the winner becomes a service, in the experiment file and in the manifests that are reviewed."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdk8s_charts.manifest_file import stale, texts, write
from experiment import InvalidExperiment
from experiment.finding import Misuse
from operations.options import ROOT, add_experiment, as_json, aws_of, experiment_of, whole
from operations.promoting.bill import bill
from operations.promoting.candidate import candidate
from operations.promoting.raising import raise_winner, refuse_unready

if TYPE_CHECKING:
    from experiment import Experiment
    from experiment.schema import Serve
    from operations.cloud.aws import Aws
    from operations.promoting.candidate import Candidate

HELP = "make the winning arm a service: edit `serve` of the experiment, render again, say what to deploy and what it costs"


def configure(parser: argparse.ArgumentParser) -> None:
    """Which arm, how many of it, who may call it."""
    parser.add_argument("arm", metavar="ARM", help="the arm that stays; the others stand at 0")
    parser.add_argument("--replicas", type=whole, metavar="N", help="so many at least (default 1)")
    parser.add_argument(
        "--max-replicas",
        type=whole,
        metavar="M",
        help="so many while requests wait (default: N, nothing scales)",
    )
    parser.add_argument(
        "--waiting-per-replica",
        type=whole,
        metavar="W",
        help="waiting requests of a replica above which another is added (default 4)",
    )
    parser.add_argument(
        "--certificate",
        metavar="ARN",
        help="certificate in ACM for an internal load balancer (default: none)",
    )
    parser.add_argument(
        "--client-cidr",
        action="append",
        metavar="CIDR",
        help="network that may call the load balancer; can be given several times",
    )
    parser.add_argument("--manifests", type=Path, default=ROOT / "manifests", help="default: manifests/")
    parser.add_argument(
        "--now",
        action="store_true",
        help="also set the replicas in the running cluster: the losing arms to 0, then the winner up",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would change, change nothing")
    add_experiment(parser)


def execute(options: argparse.Namespace) -> int:
    """What is not given stays as `serve` has it. Everything is judged before the first file is written."""
    present = experiment_of(options.experiment, verb="promote")
    _refuse_unknown(present, options.arm)
    wanted = _candidate(options)
    experiment = wanted.experiment
    serve = experiment.serve
    assert serve is not None, "the candidate has one"

    from cdk8s_charts.render import render  # after the judgement: starting jsii takes a second

    rendered = texts(experiment, render(experiment), options.manifests)
    files = stale(rendered)
    aws = aws_of(experiment, options) if options.now else None
    ready = refuse_unready(experiment, serve, aws) if aws is not None else None
    told: dict[str, Any] = {
        "experiment": experiment.name,
        "arm": serve.arm,
        "replicas": serve.replicas,
        "max_replicas": serve.max_replicas,
        "load_balancer": serve.certificate_arn is not None,
        "answer_limit": experiment.answer_limit,
        "at_zero": [arm.name for arm in experiment.served_arms if arm.name != serve.arm],
        "diff": wanted.diff(),
        "files": [str(path) for path in files],
        **vars(bill(experiment, serve)),
        "trn2_nodes_now": ready.desired if ready is not None else None,
        "scaled": [],
        "next": _next(experiment, serve, options, nodes_now=ready.desired if ready is not None else None),
        "off_at_utc": experiment.cluster.off_at_utc,
        "dry_run": options.dry_run,
    }
    if not options.dry_run:
        wanted.write()
        write(rendered)
        if aws is not None:
            told["scaled"] = _scaled(experiment, serve, aws)
    print(as_json(told) if options.json else _text(experiment, serve, told))
    return 0


def _candidate(options: argparse.Namespace) -> Candidate:
    """Raises `Misuse`, a line for each reason for which it cannot be."""
    given = {
        "arm": options.arm,
        "replicas": options.replicas,
        "max_replicas": options.max_replicas,
        "waiting_per_replica": options.waiting_per_replica,
        "certificate_arn": options.certificate,
        "client_cidrs": options.client_cidr,
    }
    try:
        return candidate(
            options.experiment, {key: value for key, value in given.items() if value is not None}
        )
    except InvalidExperiment as error:
        raise Misuse(*error.lines) from None


def _refuse_unknown(experiment: Experiment, name: str) -> None:
    names = [arm.name for arm in experiment.served_arms]
    if name in names:
        return
    if name in [arm.name for arm in experiment.batch_arms]:
        raise Misuse(
            f"{name}: runs as a batch Job and answers no requests; promote one of {', '.join(names)}"
        )
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"its arms: {', '.join(names)}"
    raise Misuse(f"{name}: is no arm of {experiment.name}; {hint}")


def _scaled(experiment: Experiment, serve: Serve, aws: Aws) -> list[dict[str, Any]]:
    changes = raise_winner(experiment, serve, aws)
    for one in changes:
        print(f"promote: {one.arm} from {one.before} to {one.after} replicas", file=sys.stderr)
    return [vars(one) for one in changes]


def _next(
    experiment: Experiment, serve: Serve, options: argparse.Namespace, *, nodes_now: int | None
) -> list[str]:
    """Commands in order: what was rendered is reviewed before it is deployed."""
    nodes = bill(experiment, serve).nodes
    commands = [
        f"git diff {options.experiment} {options.manifests / experiment.name}",
        f".venv/bin/npx cdk deploy --all -c experiment={options.experiment}",
    ]
    if nodes_now is None or nodes_now < nodes:
        commands.append(f"scripts/scale {nodes} --hours <H> --experiment {options.experiment}")
    return commands


def _limits(experiment: Experiment, serve: Serve) -> list[str]:
    """What callers must know of an arm whose server fails at the end of the context."""
    limit = experiment.answer_limit
    if limit is None:
        return []
    arm = next(arm for arm in experiment.arms if arm.name == serve.arm)
    prompt = arm.serving.max_model_len - limit - arm.step_room
    return [
        f"answers end at {limit} tokens, whatever a caller asks for (the longest that was measured)",
        f"prompts must not exceed {prompt} tokens, which no server checks: beyond that a step of {arm.step_room} tokens "
        "can pass\n      the end of the context, and the server ends; refuse them in front of it",
    ]


def _text(experiment: Experiment, serve: Serve, told: dict[str, Any]) -> str:
    verb = "would be" if told["dry_run"] else "is"
    count = f"{serve.replicas} to {serve.max_replicas}" if serve.scales else str(serve.replicas)
    lines = [f"{serve.arm} {verb} the service of {experiment.name}: {count} replicas"]
    if told["at_zero"]:
        lines[0] += f"; {', '.join(told['at_zero'])} at 0"
    if told["diff"]:
        lines.append(told["diff"].rstrip("\n"))
    lines += _limits(experiment, serve)
    changed = "would change" if told["dry_run"] else "changed"
    lines += [f"{changed}: {path}" for path in told["files"]] or ["the manifests are up to date"]
    lines.append(f"bills: {bill(experiment, serve).line()} at list price, whether requests come or not")
    if serve.certificate_arn is not None:
        lines.append("bills as well: a Network Load Balancer, by the hour and by traffic")
    if told["trn2_nodes_now"] is not None:
        lines.append(f"Trn2 nodes now: {told['trn2_nodes_now']}")
    lines.append(
        f"ends: every day at {experiment.cluster.off_at_utc} UTC (cluster.off_at_utc) and after scripts/scale's hours the "
        "Trn2 nodes\n      are set to 0, and the service with them; another hour: change cluster.off_at_utc, render, deploy.\n"
        "      Nothing starts them again by itself: scripts/scale does"
    )
    return "\n".join([*lines, "next:", *(f"    {command}" for command in told["next"])])
