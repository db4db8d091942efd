"""`scale N`: so many Trn2 nodes, and a time at which they go away by themselves."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime

from experiment.catalogue.prices import TRN2_ON_DEMAND
from operations import nodegroup, run_active
from operations.clock import stamp
from operations.options import add_experiment, as_json, aws_of, experiment_of, whole
from operations.options import hours as hours_option

HELP = "set the number of Trn2 nodes; above 0 with a time after which they go away by themselves"
DEFAULT_HOURS = 3.0


def configure(parser: argparse.ArgumentParser) -> None:
    """How many, for how long."""
    parser.add_argument("nodes", type=whole, metavar="N", help="Trn2 nodes, at most cluster.max_nodes")
    parser.add_argument(
        "--hours",
        type=hours_option,
        default=DEFAULT_HOURS,
        metavar="H",
        help=f"hours after which they are set to 0 (default {DEFAULT_HOURS:g})",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, change nothing")
    add_experiment(parser)


def execute(options: argparse.Namespace) -> int:
    """The time to live is set before the first node starts, and removed after the last one is let go."""
    experiment = experiment_of(options.experiment, verb="scale")
    wanted: int = options.nodes
    nodegroup.refuse_too_many(experiment, wanted)
    aws = aws_of(experiment, options)
    group = nodegroup.read(experiment, aws)
    if wanted:
        nodegroup.refuse_another(experiment, group)
    usd_per_hour = wanted * TRN2_ON_DEMAND[experiment.cluster.instance.name].usd_per_hour
    until: str | None = None
    if not options.dry_run:
        if wanted:
            at = nodegroup.schedule_off(
                experiment, aws, now=datetime.now(UTC), hours=options.hours, group=group
            )
            until = stamp(at)
        nodegroup.set_size(experiment, aws, nodes=wanted, group=group)
        if not wanted:
            nodegroup.forget_schedule(experiment, aws)
            run_active.say_over(experiment, aws)  # nothing can be measured without nodes
    told = {
        "experiment": experiment.name,
        "nodegroup": group.name,
        "before": group.desired,
        "nodes": wanted,
        "usd_per_hour": usd_per_hour,
        "off_at": until,
        "hours": options.hours if wanted else None,
        "dry_run": options.dry_run,
    }
    print(as_json(told) if options.json else _text(told))
    if group.issues and wanted:
        print(f"scale: EKS reports {group.issues[0]}", file=sys.stderr)
    return 0


def _text(told: dict[str, object]) -> str:
    verb = "would be set" if told["dry_run"] else "set"
    line = f"{told['nodegroup']}: {verb} from {told['before']} to {told['nodes']} nodes"
    if not told["nodes"]:
        return f"{line}; no Trn2 node bills once EC2 has let them go"
    ends = f"at {told['off_at']}" if told["off_at"] else f"after {told['hours']:g} hours"
    return f"{line}; ${told['usd_per_hour']:.2f} an hour (list price) until they are set to 0 {ends}, or by scripts/scale 0"
