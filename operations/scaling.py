"""`scale N`: so many Trn2 nodes, and a time at which they go away by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from core.console import print_json, print_text, warn
from core.findings import Outside, Refusal
from core.words import count
from experiment import Experiment
from experiment.catalogue.prices import TRN2_ON_DEMAND
from experiment.naming import neuron_nodegroup
from operations.cloud import nodegroup
from operations.cloud.aws import Aws, AwsError, aws_of
from operations.cloud.clock import TooLateError, stamp, within
from operations.options import HOURS, dry_run_option, experiment_of, on_aws

DEFAULT_HOURS = 3.0
LIMIT_S = 45
"""For the emergency stop: after that a person has to look for another way."""
_NOTHING = {"nodes": 0, "usd_per_hour": 0.0, "off_at": None, "hours": None, "dry_run": False}


@on_aws
@click.argument("wanted", type=click.IntRange(0), metavar="N")
@click.option(
    "--hours",
    type=HOURS,
    default=DEFAULT_HOURS,
    metavar="H",
    help=f"Hours after which they are set to 0 (default {DEFAULT_HOURS:g}).",
)
@dry_run_option
def command(path: Path, wanted: int, hours: float, dry_run: bool, account: str | None, as_json: bool) -> int:
    """Set the number of Trn2 nodes to N, at most cluster.max_nodes; 0 stops what bills by the hour.

    The time to live is set before the first node starts, and removed after the last one is let go.
    """
    experiment = experiment_of(path, verb="scale")
    nodegroup.refuse_too_many(experiment, wanted)
    aws = aws_of(experiment, account)
    if not wanted and not dry_run:
        return _stop(experiment, aws, as_json=as_json)
    group = nodegroup.read(experiment, aws)
    nodegroup.refuse_in_use(experiment, aws, group)
    if wanted:
        nodegroup.refuse_another(experiment, group)
        nodegroup.refuse_too_many(experiment, wanted, group)
    now, off = datetime.now(UTC), None
    if not dry_run:
        off = nodegroup.schedule_off(experiment, aws, now=now, hours=hours, group=group)
        nodegroup.set_size(experiment, aws, nodes=wanted, group=group)
    elif wanted:
        off = min(now + timedelta(hours=hours), nodegroup.off_next(experiment, aws, now=now))
    told = {
        "experiment": experiment.name,
        "nodegroup": group.name,
        "before": group.desired,
        "nodes": wanted,
        "usd_per_hour": wanted * TRN2_ON_DEMAND[experiment.instance.name].usd_per_hour,
        "off_at": stamp(off) if off else None,
        "hours": hours if wanted else None,
        "dry_run": dry_run,
    }
    print_json(told) if as_json else print_text(_text(told))
    if off and off < now + timedelta(hours=hours, seconds=-1):
        warn(
            f"{stamp(off)} is before {hours:g} hours are over: nodes are set to 0 {experiment.cluster.off_when}"
        )
    if group.issues and wanted:
        warn(f"EKS reports {group.issues[0]}")
    return 0


def _stop(experiment: Experiment, aws: Aws, *, as_json: bool) -> int:
    """0 nodes, soon: every minute until then is paid for. What is left to do afterwards does not stand in the way."""
    name, region = experiment.name, experiment.cluster.region
    warn(f"asks EKS in {region} for 0 nodes of {name}, {LIMIT_S} s at most")
    aws.hurry()
    problems: list[Refusal] = []
    by_hand = f"set {neuron_nodegroup(experiment)} to 0 in the console of EKS; its schedule does the same {experiment.cluster.off_when}"
    try:
        with within(LIMIT_S):
            try:
                group = nodegroup.read(experiment, aws)
            except AwsError as error:
                problems.append(error)
                group = nodegroup.assumed(experiment)
            if (untold := nodegroup.refuse_taking(experiment, aws, group)) is not None:
                problems.append(untold)
            nodegroup.set_size(experiment, aws, nodes=0, group=group)
    except AwsError as error:
        raise Outside(f"{error}; the nodes were not set to 0 and may still bill: {by_hand}") from None
    except TooLateError:
        raise Outside(
            f"{name}: EKS in {region} did not answer within {LIMIT_S} s, so nodes may still bill; try from another network, or "
            f"{by_hand}"
        ) from None
    for problem in problems:
        warn(f"{problem}; the nodes are set to 0 without it")
    before = None if problems else group.desired
    told = {"experiment": name, "nodegroup": group.name, "before": before, **_NOTHING}
    print_json(told) if as_json else print_text(_text(told))
    for what, act in (("schedule", nodegroup.forget_schedule), ("alarms", nodegroup.say_over)):
        try:
            with within(LIMIT_S):
                act(experiment, aws)
        except (AwsError, TooLateError) as error:
            problems.append(Outside(str(error) or f"no answer within {LIMIT_S} s"))
            warn(f"0 nodes, but the {what} could not be told: {problems[-1]}")
    return 3 if problems else 0


def _text(told: Mapping[str, Any]) -> str:
    verb = "would be set" if told["dry_run"] else "set"
    before = "" if told["before"] is None else f" from {told['before']}"
    line = f"{told['nodegroup']}: {verb}{before} to {count(told['nodes'], 'node')}"
    if not told["nodes"]:
        return f"{line}; no Trn2 node bills once EC2 has let them go"
    ends = f"${told['usd_per_hour']:.2f} an hour (list price) until they are set to 0 at {told['off_at']}"
    return f"{line}; {ends}, or by ./trnspec scale 0"
