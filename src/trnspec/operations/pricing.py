"""Dollars of a forecast: an hour by component, of a run, and of an answer by each way of buying its nodes, at the catalogue's dated
prices. Asks nobody."""

from __future__ import annotations

from typing import Any

from trnspec.core.console import pasted, print_table, print_text
from trnspec.experiment import Experiment
from trnspec.experiment.cost import RunPrice, idle, per_hour, running
from trnspec.experiment.purchase import payable, purchase_text

_RESERVED = {
    "capacity-block": "paid in advance at the price of its purchase, whether nodes run or not",
    "reservation": "billed for all of its time, whether nodes run or not",
}
"""What has another price than the list's."""


def as_json(experiment: Experiment, run: RunPrice) -> dict[str, Any]:
    """Return the same as JSON."""
    return {
        "items": [
            {
                "item": item.item,
                "units": item.units,
                "usd_per_hour": round(item.usd_per_hour * item.units, 4),
                "as_of": item.as_of,
                "source": item.source,
            }
            for item in running(experiment)
        ],
        "idle_usd_per_hour": round(per_hour(idle(experiment)), 4),
        "running_usd_per_hour": round(per_hour(running(experiment)), 4),
        "run": {
            "trn2_hours": round(run.hours, 2),
            "parts": [vars(part) for part in run.parts],
        },
        "ways_to_buy": [way.as_json() for way in payable(experiment, run.hours)],
    }


def show(experiment: Experiment, run: RunPrice) -> None:
    """Print them as tables."""
    items, quiet = running(experiment), idle(experiment)
    rows = [
        (
            item.item,
            str(item.units),
            f"{item.usd_per_hour * item.units:.3f}",
            f"{item.as_of}, {item.source}",
        )
        for item in items
    ]
    print_table(("component", "units", "$/hour", "quoted"), rows)
    lines = [
        "",
        f"without Trn2 nodes: ${per_hour(quiet):.2f} an hour, ${24 * per_hour(quiet):.2f} a day, until it is taken down; "
        f"with them: ${per_hour(items):.2f} an hour",
        "on top: storage, traffic, and dashboards beyond the three that an account has free",
    ]
    if not (region := experiment.cluster.region).startswith("us-east"):
        lines.append(
            f"beside the Trn2 nodes prices are of us-east-1 and us-east-2; those of {region} were not read"
        )
    if vpc := experiment.cluster.network.vpc:
        lines.append(f"not counted, because it is there already: VPC {vpc}")
    lines += [item.note for item in items if item.note]
    kind = experiment.cluster.capacity.kind
    if kind in _RESERVED:
        lines.append(f"cluster.capacity is a {kind}: {_RESERVED[kind]}; the Trn2 line is the rate above")
    print_text(*lines, "")
    parts = [(part.step, f"{part.hours:.2f}", part.assumption) for part in run.parts]
    print_table(("part of a run", "hours", "predicted from"), parts)
    ways = payable(experiment, run.hours)
    dated = max(way.rate.as_of for way in ways)
    print_text(
        "",
        f"A first run takes {run.hours:.2f} Trn2 hours and costs {purchase_text(ways)}. These are rates of {dated}; "
        "for today's:",
    )
    print(f"./trnspec preflight {pasted(experiment.path)}")
