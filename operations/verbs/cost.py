"""`cost`: dollars an hour by component, and a run."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from experiment.cost import idle, per_hour, run_price, running
from operations import prices
from operations.cloud import cloudformation
from operations.cloud.aws import Aws
from operations.options import add_experiment, as_json, experiment_of
from operations.options import hours as hours_option
from operations.table import table

if TYPE_CHECKING:
    from experiment import Experiment
    from experiment.cost import Item, RunPrice

HELP = "dollars an hour by component and a run, from dated list prices; asks AWS only with --refresh"


def configure(parser: argparse.ArgumentParser) -> None:
    """Which experiment, for how long, and where prices come from."""
    add_experiment(parser)
    parser.add_argument(
        "--hours", type=hours_option, metavar="H", help="Trn2 hours of a run (default: predicted)"
    )
    parser.add_argument("--compiled", action="store_true", help="predict for artifacts that exist already")
    parser.add_argument(
        "--refresh",
        action="store_true",
        help="ask the Pricing API and keep its answer; and ask the account for stacks that no file describes",
    )
    parser.add_argument(
        "--prices", type=Path, metavar="FILE", help=f"kept answers (default: {_shown_default()})"
    )


def execute(options: argparse.Namespace) -> int:
    """Print the bill."""
    experiment = experiment_of(options.experiment, verb="price")
    file = options.prices or prices.default_file()
    region = experiment.cluster.region
    if options.refresh:
        _refresh(experiment, file, account=options.account)
    table_of = prices.read(file, region=region)
    items = tuple(table_of.of(item) for item in running(experiment))
    quiet = tuple(table_of.of(item) for item in idle(experiment))
    run = run_price(experiment, to_compile=0 if options.compiled else None, hours=options.hours, items=items)
    if options.json:
        print(as_json(_document(experiment, items, quiet, run)))
    else:
        print(_text(experiment, items, quiet, run))
    return 0


def _refresh(experiment: Experiment, file: Path, *, account: str | None) -> None:
    region, items = experiment.cluster.region, running(experiment)
    today = datetime.now(UTC).date().isoformat()
    found = prices.fetch(items, Aws(prices.PRICING_REGION, account=account), region=region, today=today)
    prices.write(file, region=region, prices=found)
    print(f"cost: {len(found)} of {len(items)} prices fetched, kept in {file}", file=sys.stderr)
    others, untold = cloudformation.find(experiment, Aws(region, account=account))
    for line in (*(one.line() for one in others), *untold):
        print(f"cost: {line}", file=sys.stderr)


def _document(
    experiment: Experiment,
    items: tuple[Item, ...],
    quiet: tuple[Item, ...],
    run: RunPrice,
) -> dict[str, object]:
    return {
        "experiment": experiment.name,
        "items": [
            {
                "item": item.price.item,
                "units": item.units,
                "usd_per_hour": round(item.usd_per_hour, 4),
                "as_of": item.price.as_of,
                "source": item.price.source,
            }
            for item in items
        ],
        "idle_usd_per_hour": round(per_hour(quiet), 4),
        "running_usd_per_hour": round(per_hour(items), 4),
        "run": {
            "trn2_hours": round(run.hours, 2),
            "usd": round(run.usd, 2),
            "parts": [vars(part) for part in run.parts],
        },
    }


def _text(
    experiment: Experiment,
    items: tuple[Item, ...],
    quiet: tuple[Item, ...],
    run: RunPrice,
) -> str:
    rows = [
        (
            item.price.item,
            str(item.units),
            f"{item.usd_per_hour:.3f}",
            f"{item.price.as_of}, {item.price.source}",
        )
        for item in items
    ]
    lines = [
        table(("component", "units", "$/hour", "quoted"), rows),
        "",
        f"without Trn2 nodes: ${per_hour(quiet):.2f} an hour; with them: ${per_hour(items):.2f} an hour",
        f"on top: {_on_top(experiment)}",
        *_reserved(experiment),
        "",
    ]
    if run.parts:
        lines += [
            table(
                ("part of a run", "hours", "predicted from"),
                [(p.step, f"{p.hours:.2f}", p.assumption) for p in run.parts],
            ),
            "",
        ]
    said = "predicted" if run.parts else "as asked"
    lines.append(f"a run of {run.hours:.2f} Trn2 hours ({said}): ${run.usd:.2f}")
    return "\n".join(lines)


def _on_top(experiment: Experiment) -> str:
    endpoints = "interface endpoints by the hour, " if experiment.cluster.network.interface_endpoints else ""
    balancer = (
        "the load balancer, " if experiment.serve and experiment.serve.certificate_arn is not None else ""
    )
    return (
        f"{endpoints}{balancer}the way in (the smallest instance there is), keys, alarms, storage and traffic"
    )


def _reserved(experiment: Experiment) -> list[str]:
    """What is reserved has another price than the list's."""
    words = {
        "capacity-block": "paid in advance at the price of its purchase, whether nodes run or not",
        "reservation": "billed for all of its time, whether nodes run or not",
    }
    kind = experiment.cluster.capacity.kind
    return (
        [f"cluster.capacity is a {kind}: {words[kind]}; the Trn2 line is list price"] if kind in words else []
    )


def _shown_default() -> str:
    return "~/.config/trn2-speculative-decoding/prices.json"
