"""Dollars of a forecast at the catalogue's dated prices: an hour by component, and the price of a run. Asks nobody."""

from __future__ import annotations

from typing import Any

from trnspec.core.console import print_table, print_text
from trnspec.core.words import count
from trnspec.experiment import Experiment
from trnspec.experiment.cost import idle, per_hour, run_hours, run_parts, running
from trnspec.experiment.run_price import file_prices, price_text

_PAID = {
    "capacity-block": "paid in advance at the price of its purchase, whether nodes run or not",
    "reservation": "billed for all of its time, whether nodes run or not",
}
"""Capacity that has another price than the listed one."""


def as_json(experiment: Experiment) -> dict[str, Any]:
    """Return the same as JSON."""
    hours, items = run_hours(experiment), running(experiment)
    return {
        "items": [
            {
                "item": item.item,
                "units": item.units,
                "usd_per_hour": round(item.usd_per_hour * item.units, 4),
                "as_of": item.as_of,
                "source": item.source,
            }
            for item in items
        ],
        "idle_usd_per_hour": round(per_hour(idle(experiment)), 4),
        "running_usd_per_hour": round(per_hour(items), 4),
        "run": {"trn2_hours": round(hours, 2), "parts": [vars(part) for part in run_parts(experiment)]},
        "ways_to_buy": [price.as_json() for price in file_prices(experiment, hours)],
    }


def show(experiment: Experiment) -> None:
    """Print what a user pays for a run, then its hours by step, then an hour by component."""
    items, quiet, hours = running(experiment), per_hour(idle(experiment)), run_hours(experiment)
    prices = file_prices(experiment, hours)
    dated = max(price.rate.as_of for price in prices)
    costs = f"It costs {price_text(prices)}. The rates are of {dated}. For today's:"
    print_text(f"A first run takes {hours:.2f} Trn2 hours (predicted). {costs}")
    print(f"  ./trnspec preflight {experiment.file}\n")
    parts = [(part.step, f"{part.hours:.2f}", part.assumption) for part in run_parts(experiment)]
    print_table(("part of a run", "hours", "predicted from"), parts)
    print()
    rows = [
        (item.item, str(item.units), f"{item.usd_per_hour * item.units:.3f}", f"{item.as_of}, {item.source}")
        for item in items
    ]
    print_table(("component", "units", "$/hour", "quoted"), rows)
    lines = [
        "",
        f"Without Trn2 nodes: ${quiet:.2f} an hour, ${24 * quiet:.2f} a day, until teardown. With {count(experiment.nodes, 'Trn2 node')}: ${per_hour(items):.2f} an hour.",
        "Not counted: storage, traffic, and dashboards after the three free ones of an account.",
    ]
    if not (region := experiment.cluster.region).startswith("us-east"):
        where = f"the prices are of us-east-1 and us-east-2; those of {region} were not read"
        lines.append(f"All but the Trn2 nodes: {where}.")
    if vpc := experiment.cluster.network.vpc:
        lines.append(f"Not counted, because it exists already: VPC {vpc}.")
    lines += [f"{item.item}: {item.note}." for item in items if item.note]
    if (kind := experiment.cluster.capacity.kind) in _PAID:
        lines.append(f"cluster.capacity is a {kind}: {_PAID[kind]}. The Trn2 line is the rate above.")
    print_text(*lines)
