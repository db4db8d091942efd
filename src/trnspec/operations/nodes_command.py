"""`scale`: how many Trn2 nodes an experiment has, and when they go back to 0."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from trnspec.core.console import print_json, print_text, warn
from trnspec.core.findings import Outside, Refusal
from trnspec.core.words import count
from trnspec.experiment import Experiment, load
from trnspec.experiment.cost import node_price
from trnspec.operations.cloud import nodegroup
from trnspec.operations.cloud.aws import Aws, AwsError, aws_of
from trnspec.operations.cloud.clock import TooLateError, stamp, within
from trnspec.operations.cloud.nodegroup import current_issue
from trnspec.operations.options import HOURS, dry_run_option, with_experiment

DEFAULT_HOURS = 3.0
LIMIT_S = 45
"""Time limit of each step of the emergency stop."""


@with_experiment
@click.argument("wanted", type=click.IntRange(0), metavar="N")
@click.option(
    "--hours",
    type=HOURS,
    default=DEFAULT_HOURS,
    metavar="H",
    help=f"Set them to 0 after H hours (default {DEFAULT_HOURS:g}).",
)
@dry_run_option
def command(path: Path, wanted: int, hours: float, dry_run: bool, as_json: bool) -> int:
    """Set the number of Trn2 nodes to N, at most cluster.max_nodes. 0 stops their cost.

    A schedule on AWS sets them to 0 after --hours; it is created before the first node starts.
    """
    experiment = load(path)
    nodegroup.check_maximum(experiment, wanted)
    aws = aws_of(experiment)
    if not wanted and not dry_run:
        return _stop(experiment, aws, as_json=as_json)
    group = nodegroup.read(experiment, aws)
    if wanted:
        nodegroup.check_deployed(experiment, group)
    now, off, price = datetime.now(UTC), None, node_price(experiment)
    if not dry_run:
        off = nodegroup.schedule_off(experiment, aws, now=now, hours=hours, group=group)
        nodegroup.set_size(experiment, aws, nodes=wanted, group=group)
    elif wanted:
        off = min(now + timedelta(hours=hours), nodegroup.off_next(experiment, aws, now=now))
    done = {"nodes": wanted, "usd_per_hour": wanted * price.usd_per_hour, "price": price.quoted}
    done |= {"off_at": stamp(off) if off else None, "hours": hours if wanted else None, "dry_run": dry_run}
    _print(experiment, {"nodegroup": group.name, "before": group.desired, **done}, as_json=as_json)
    if off and off < now + timedelta(hours=hours, seconds=-1):
        when = experiment.cluster.off_when
        warn(f"the nodes are set to 0 at {stamp(off)}, before {hours:g} hours are over: {when}")
    if wanted and (issue := current_issue(group, aws)):
        warn(f"no nodes start now: {issue}")
    return 0


def _stop(experiment: Experiment, aws: Aws, *, as_json: bool) -> int:
    """Set the group to 0 nodes quickly, because every minute is billed. Other work comes after it."""
    name, region, when = experiment.name, experiment.cluster.region, experiment.cluster.off_when
    warn(f"asks EKS in {region} for 0 nodes of {name}, {LIMIT_S} s at most")
    aws.shorten_timeouts()
    problems: list[Refusal] = []
    group = nodegroup.fallback_group(experiment)
    by_hand = f"set {group.name} to 0 in the console of EKS; its schedule does the same {when}"
    try:
        with within(LIMIT_S):
            try:
                group = nodegroup.read(experiment, aws)
            except AwsError as error:
                problems.append(error)
            nodegroup.set_size(experiment, aws, nodes=0, group=group)
    except AwsError as error:
        raise Outside(f"{error}; the nodes were not set to 0 and may still bill: {by_hand}") from None
    except TooLateError:
        late = f"EKS in {region} did not answer within {LIMIT_S} s, so nodes may still bill"
        raise Outside(f"{name}: {late}; try from another network, or {by_hand}") from None
    for problem in problems:
        warn(f"{problem}; the nodes are set to 0 without it")
    done = {"nodegroup": group.name, "before": None if problems else group.desired, "nodes": 0}
    none = {"usd_per_hour": 0.0, "price": None, "off_at": None, "hours": None, "dry_run": False}
    _print(experiment, {**done, **none}, as_json=as_json)
    # Other work: remove the schedule, and tell the alarms that no run is active.
    for what, act in (("schedule", nodegroup.forget_schedule), ("alarms", nodegroup.publish_run_inactive)):
        try:
            with within(LIMIT_S):
                act(experiment, aws)
        except (AwsError, TooLateError) as error:
            problems.append(Outside(str(error) or f"no answer within {LIMIT_S} s"))
            warn(f"0 nodes, but the {what} could not be updated: {problems[-1]}")
    return 3 if problems else 0


def _print(experiment: Experiment, done: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json({"experiment": experiment.name, **done})
        return
    verb = "would be set" if done["dry_run"] else "set"
    before = "" if done["before"] is None else f" from {done['before']}"
    line = f"{done['nodegroup']}: {verb}{before} to {count(done['nodes'], 'node')}"
    if done["nodes"]:
        stop = f"They are set to 0 at {done['off_at']}. To stop them now:"
        print_text(f"{line}; ${done['usd_per_hour']:.2f} an hour ({done['price']}). {stop}")
        print(f"  ./trnspec nodes {experiment.file} 0")
        return
    print_text(f"{line}; no Trn2 node is billed after EC2 has stopped it")
