"""`cost`: dollars an hour by component, and a run, at the catalogue's dated prices or at those that the Pricing API gave.

What `--refresh` fetched is kept in a file of the user, never in the repository: the catalogue is reviewed, a fetched price
is only as good as its date.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click
from pydantic import TypeAdapter, ValidationError

from core.files import write_whole
from experiment import Experiment
from experiment.catalogue.prices import UNKNOWN, Price
from experiment.cost import Item, RunPrice, idle, of_others, per_hour, run_price, running
from experiment.finding import Misuse, Outside
from experiment.parsing import UnreadableFile, whole_text
from operations.cloud import cloudformation
from operations.cloud.aws import Aws, AwsError, Calls, aws_of
from operations.console import print_json, print_table, print_text, warn
from operations.options import FILE, HOURS, experiment_of, on_aws

PRICING_REGION = "us-east-1"
"""The Pricing API answers in a few regions only, for all of them
(https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html)."""
SOURCE = "AWS Price List Query API"
_FILE = TypeAdapter(dict[str, dict[str, Price]])
"""Fetched prices by region and by what they price; everything else comes from the catalogue."""
_MOST_BYTES = 2**20
_RESERVED = {
    "capacity-block": "paid in advance at the price of its purchase, whether nodes run or not",
    "reservation": "billed for all of its time, whether nodes run or not",
}
"""What has another price than the list's."""


@on_aws
@click.option("--hours", type=HOURS, metavar="H", help="Trn2 hours of a run (default: predicted).")
@click.option("--compiled", is_flag=True, help="Predict for artifacts that exist already.")
@click.option(
    "--refresh",
    is_flag=True,
    help="Ask the Pricing API and keep its answer; and ask the account for stacks that no file describes.",
)
@click.option(
    "--prices",
    type=FILE,
    metavar="FILE",
    help="Kept answers (default: ~/.config/trn2-speculative-decoding/prices.json).",
)
def command(
    path: Path,
    hours: float | None,
    compiled: bool,
    refresh: bool,
    prices: Path | None,
    account: str | None,
    as_json: bool,
) -> int:
    """Show dollars an hour by component, and of a run, from dated list prices. Asks AWS only with --refresh."""
    experiment = experiment_of(path, verb="price")
    file = prices or default_file()
    if refresh:
        _refresh(experiment, file, account=account)
    fetched = read(file, region=experiment.cluster.region)
    items, quiet = (at_newest(of(experiment), fetched) for of in (running, idle))
    run = run_price(experiment, to_compile=0 if compiled else None, hours=hours, items=items)
    if as_json:
        told = {
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
            "of_others": of_others(experiment),
            "same_cluster": {
                one.name: round(per_hour(idle(one)), 4) for one in cloudformation.neighbours(experiment)
            },
            "running_usd_per_hour": round(per_hour(items), 4),
            "run": {
                "trn2_hours": round(run.hours, 2),
                "usd": round(run.usd, 2),
                "parts": [vars(part) for part in run.parts],
            },
        }
        print_json(told)
    else:
        _print(experiment, items, quiet, run)
    return 0


def _refresh(experiment: Experiment, file: Path, *, account: str | None) -> None:
    region, items = experiment.cluster.region, running(experiment)
    today = datetime.now(UTC).date().isoformat()
    aws = aws_of(experiment, account)
    found = fetch(items, Aws(PRICING_REGION, account=aws.account), region=region, today=today)
    write(file, region=region, prices=found)
    warn(f"{len(found)} of {len(items)} prices fetched, kept in {file}")
    others, untold = cloudformation.find(experiment, aws)
    for line in (*(one.finding().line() for one in others), *untold):
        warn(line)


def _print(experiment: Experiment, items: Sequence[Item], quiet: Sequence[Item], run: RunPrice) -> None:
    rows = [
        (
            item.price.item,
            str(item.units),
            f"{item.usd_per_hour:.3f}",
            f"{item.price.as_of}, {item.price.source}",
        )
        for item in items
    ]
    print_table(("component", "units", "$/hour", "quoted"), rows)
    print_text(
        "", f"without Trn2 nodes: ${per_hour(quiet):.2f} an hour; with them: ${per_hour(items):.2f} an hour"
    )
    print_text("on top: storage, traffic, and dashboards beyond the three that an account has free")
    if others := of_others(experiment):
        print_text(f"not counted, because it is there already: {others}")
    for one in cloudformation.neighbours(experiment):
        print_text(f"in the same cluster: {one.name}, ${per_hour(idle(one)):.2f} an hour without Trn2 nodes")
    for item in items:
        if item.price.as_of.startswith(UNKNOWN):
            print_text(f"{item.price.item}: {item.price.as_of}, counts in every sum")
    kind = experiment.cluster.capacity.kind
    if kind in _RESERVED:
        print_text(f"cluster.capacity is a {kind}: {_RESERVED[kind]}; the Trn2 line is list price")
    print()
    if run.parts:
        parts = [(part.step, f"{part.hours:.2f}", part.assumption) for part in run.parts]
        print_table(("part of a run", "hours", "predicted from"), parts)
        print()
    said = "predicted" if run.parts else "as asked"
    print_text(f"a run of {run.hours:.2f} Trn2 hours ({said}): ${run.usd:.2f}")


def default_file() -> Path:
    """Where fetched prices are kept."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "trn2-speculative-decoding" / "prices.json"


def of_running(experiment: Experiment) -> tuple[Item, ...]:
    """What is billed while the largest batch of arms stands, at the newest prices that are kept."""
    return at_newest(running(experiment), read(default_file(), region=experiment.cluster.region))


def at_newest(items: Iterable[Item], fetched: Mapping[str, Price]) -> tuple[Item, ...]:
    """The items at the fetched price where there is one, at the catalogue's where not."""
    return tuple(replace(item, price=fetched.get(item.price.item, item.price)) for item in items)


def read(path: Path, *, region: str) -> dict[str, Price]:
    """What was fetched for a region, by what it prices; empty if the file does not exist.

    Raises `Misuse` for a file that is something else.
    """
    return _kept(path).get(region, {})


def _kept(path: Path) -> dict[str, dict[str, Price]]:
    """By region."""
    if not os.path.lexists(path):
        return {}
    try:
        kept = _FILE.validate_json(whole_text(path, most_bytes=_MOST_BYTES), strict=True)
        dollars = [price.usd_per_hour for prices in kept.values() for price in prices.values()]
    except UnreadableFile as error:
        raise Misuse(f"{path}: {error}; remove it and run ./trnspec cost --refresh") from None
    except ValidationError:
        dollars = [0]
    if not all(0 < usd < 10_000 for usd in dollars):
        raise Misuse(f"{path}: is not a file of prices; remove it and run ./trnspec cost --refresh")
    return kept


def write(path: Path, *, region: str, prices: dict[str, Price]) -> None:
    """Put a region's prices beside those of other regions. Raises `Misuse` for a file of something else before it is
    overwritten, and where nothing can be written."""
    kept = {**_kept(path), region: prices}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, _FILE.dump_json(kept, indent=1).decode())
    except OSError as error:
        raise Misuse(f"{path}: cannot be written ({error.strerror}); choose another --prices") from None


def fetch(items: tuple[Item, ...], aws: Aws, *, region: str, today: str) -> dict[str, Price]:
    """The on-demand price of every item that the API knows in a region.

    Raises `Outside` when it knows none, and `AwsError`.
    """
    pricing = aws.client("pricing")
    asked = [_one(item.price, pricing, region=region, today=today) for item in items]
    found = {price.item: price for price in asked if price is not None}
    if not found:
        raise Outside(
            f"pricing:GetProducts: knows none of the items in {region}; check cluster.region, the catalogue's prices stay"
        )
    return found


def _one(price: Price, pricing: Calls, *, region: str, today: str) -> Price | None:
    if (question := _question(price.item, region)) is None:
        return None
    service, filters, suffix = question
    asked = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in filters.items()]
    try:
        products = [
            json.loads(text)
            for text in pricing.every("get_products", "PriceList", ServiceCode=service, Filters=asked)
        ]
    except AwsError as error:
        if error.code in ("NotFoundException", "InvalidParameterException"):
            return None
        raise
    amounts = {
        float(dimension["pricePerUnit"]["USD"])
        for product in products
        if product["product"]["attributes"].get("usagetype", "").endswith(suffix)
        for term in product["terms"].get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
    } - {0.0}
    if len(amounts) != 1:  # none, or several that nobody could choose from
        return None
    return Price(item=price.item, usd_per_hour=amounts.pop(), as_of=today, source=f"{SOURCE}, {region}")


def _question(item: str, region: str) -> tuple[str, dict[str, str], str] | None:
    """Service, filters and the end of the usage type for an item of the catalogue; nothing for one that is not asked for."""
    if item.startswith("EKS control plane"):
        return "AmazonEKS", {"regionCode": region}, "AmazonEKS-Hours:perCluster"
    if item.startswith("NAT gateway"):
        return "AmazonEC2", {"regionCode": region, "productFamily": "NAT Gateway"}, "NatGateway-Hours"
    instance, _, how = item.partition(", ")
    if not how.startswith("on demand"):
        return None
    linux = {
        "regionCode": region,
        "instanceType": instance,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "preInstalledSw": "NA",
    }
    return "AmazonEC2", linux, f"BoxUsage:{instance}"
