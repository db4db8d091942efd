"""Where the nodes of an experiment can be bought now: what each region of the account offers, and how to take it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

import yaml

from trnspec.core.console import progress
from trnspec.core.findings import Finding, finding, fine
from trnspec.core.screen import folded, table
from trnspec.core.words import count, listed
from trnspec.experiment import Experiment
from trnspec.experiment.catalogue.prices import NodeRate
from trnspec.experiment.cost import run_price
from trnspec.experiment.purchase import PurchaseOption, purchase_options
from trnspec.operations.cloud import ec2
from trnspec.operations.cloud.aws import Aws, AwsError
from trnspec.operations.cloud.clock import stamp
from trnspec.operations.cloud.ec2 import BlockOffer

_THREADS = 12
_T = TypeVar("_T")
NOTES = (
    "On demand: AWS publishes no price. Nobody knows before whether EC2 has a node, on demand or by spot: "
    "`run --wait 12h` asks again and again.",
    "A spot price changes while nodes run. A Capacity Block is paid in advance and cannot be cancelled; another account may buy "
    "it first. The hours are predicted.",
)
"""https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CancelCapacityReservation.html."""


@dataclass(frozen=True, kw_only=True)
class RegionOffers:
    """What a region that has the instance type answered."""

    region: str
    zones: tuple[str, ...]
    """The zones that offer the type."""
    other_zones: tuple[str, ...]
    spot_vcpus: float | None
    """The quota; None where it is not known."""
    rates: tuple[NodeRate, ...]
    problems: tuple[str, ...]
    """What could not be asked, in lines."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One purchase option that AWS offers now."""

    place: RegionOffers
    option: PurchaseOption
    obstacle: str
    """Why it cannot be taken as things are."""

    @property
    def block(self) -> BlockOffer | None:
        return self.option.rate if isinstance(self.option.rate, BlockOffer) else None


@dataclass(frozen=True, kw_only=True)
class Market:
    """The answer of all regions."""

    experiment: Experiment
    asked_at: datetime
    hours: float
    """Trn2 hours of a first run, predicted."""
    regions_asked: int
    places: tuple[RegionOffers, ...]
    no_answer: tuple[str, ...]
    not_enabled: tuple[str, ...]
    """Regions that the account has not enabled; they were not asked."""

    @property
    def offers(self) -> list[Offer]:
        """The cheapest run first."""
        places = {place.region: place for place in self.places}
        rates = [rate for place in self.places for rate in place.rates]
        return [
            Offer(
                place=(place := places[way.rate.region]),
                option=way,
                obstacle=_obstacle(self.experiment, place, way.rate),
            )
            for way in purchase_options(self.experiment, self.hours, rates)
        ]

    @property
    def finding(self) -> Finding:
        """The answer as a check of `preflight`."""
        instance, where = self.experiment.instance.name, listed([place.region for place in self.places])
        if offers := self.offers:
            return fine(f"{count(len(offers), 'offer')} of {instance} in {where}, below")
        if where:
            return finding(
                f"no spot price and no Capacity Block of {instance} in {where}",
                "ask again later, or run --wait",
            )
        return finding(f"no enabled region offers {instance}", "enable a region that does (below)")


def _obstacle(experiment: Experiment, place: RegionOffers, rate: NodeRate) -> str:
    """What keeps spot from being taken; a Capacity Block counts against no quota."""
    need, have, most = (
        experiment.instance.vcpus * experiment.nodes,
        place.spot_vcpus,
        experiment.cluster.capacity.max_usd_per_hour,
    )
    if rate.kind != "spot":
        return ""
    if most is not None and rate.usd_per_hour > most:
        return f"the price is above max_usd_per_hour, ${most:g}"
    return f"quota {have:g} vCPUs, needs {need}" if have is not None and have < need else ""


def ask(experiment: Experiment, aws: Aws, *, now: datetime) -> Market:
    """Ask every enabled region. A region that does not answer is a line. Raises `AwsError` where not even the regions are known."""
    instance, hours = experiment.instance.name, run_price(experiment).hours
    enabled, not_enabled = ec2.regions(aws)
    places, silent, pool = list[RegionOffers](), list[str](), ThreadPoolExecutor(_THREADS)
    try:
        asked = {
            pool.submit(
                _place, aws.in_region(name), instance, nodes=experiment.nodes, hours=hours, now=now
            ): name
            for name in enabled
        }
        with progress(f"asks {len(enabled)} regions about {instance}", len(enabled)) as advance:
            for future in as_completed(asked):
                if place := _answer(asked[future], silent, future.result):
                    places.append(place)
                advance(steps=1, doing=f"{asked[future]} has answered")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return Market(
        experiment=experiment,
        asked_at=now,
        hours=hours,
        regions_asked=len(enabled),
        places=tuple(sorted(places, key=lambda place: place.region)),
        no_answer=tuple(sorted(silent)),
        not_enabled=tuple(not_enabled),
    )


def _answer(what: str, problems: list[str], ask: Callable[[], _T]) -> _T | None:
    """Return the answer; None, and a line among the problems, where AWS refuses or does not answer."""
    try:
        return ask()
    except AwsError as error:
        problems.append(f"{what}: {error}")
        return None


def _place(aws: Aws, instance: str, *, nodes: int, hours: float, now: datetime) -> RegionOffers | None:
    """Return what a region answers; None where it does not offer the type. Raises `AwsError` where that is not known."""
    problems = list[str]()
    if not (zones := ec2.zones_with(aws, instance)):
        return None
    spot = _answer("spot prices", problems, lambda: ec2.spot_prices(aws, instance, now=now))
    blocks = _answer(
        "Capacity Blocks", problems, lambda: ec2.blocks(aws, instance, nodes=nodes, hours=hours, now=now)
    )
    if spot == []:
        problems.append("no spot price in 30 days")
    if blocks == []:
        problems.append("no Capacity Block for so many hours")
    return RegionOffers(
        region=aws.region,
        zones=tuple(zones),
        other_zones=tuple(_answer("zones", problems, lambda: ec2.zones(aws)) or ()),
        spot_vcpus=_answer("spot quota", problems, lambda: ec2.vcpu_quota(aws, ec2.SPOT_QUOTA)),
        rates=tuple(rate for rate in (*(spot or ()), *(blocks or ())) if rate.zone in zones),
        problems=tuple(problems),
    )


def ways_to_take(market: Market) -> Iterator[dict[str, Any]]:
    """Yield how to take the cheapest spot offer without an obstacle, and the cheapest block with the command that buys it
    (https://docs.aws.amazon.com/cli/latest/reference/ec2/purchase-capacity-block.html). An existing VPC stays in its region."""
    cluster = market.experiment.cluster
    known = [
        (number, offer)
        for number, offer in enumerate(market.offers, start=1)
        if not offer.obstacle and (not cluster.network.vpc or offer.place.region == cluster.region)
    ]
    spot = next((each for each in known if not each[1].block), None)
    block = next((each for each in known if each[1].block), None)
    for number, offer in filter(None, (spot, block)):
        command = None
        if offer.block:
            buy = f"aws ec2 purchase-capacity-block --region {offer.place.region} --instance-platform Linux/UNIX"
            command = f"{buy} --capacity-block-offering-id {offer.block.id}"
        yield {"row": number, "command": command, "cluster": _section(market.experiment, offer)}


def _section(experiment: Experiment, offer: Offer) -> dict[str, Any]:
    """Return what `cluster` of the file must say. The purchase names the reservation."""
    cluster, place, rate = experiment.cluster, offer.place, offer.option.rate
    own = cluster.availability_zones if place.region == cluster.region else ()
    zones = dict.fromkeys((rate.zone, *own, *place.zones, *place.other_zones))
    capacity: dict[str, Any] = {"kind": rate.kind}
    if offer.block:
        capacity |= {
            "reservation_id": "cr-...",
            "ends_at": stamp(offer.block.ends),
        }
    elif cluster.capacity.max_usd_per_hour is not None:
        capacity["max_usd_per_hour"] = cluster.capacity.max_usd_per_hour
    zones_of = [*zones][: len(cluster.availability_zones)]
    return {"region": place.region, "availability_zones": zones_of, "capacity": capacity}


def as_json(market: Market) -> dict[str, Any]:
    """Return the answer as JSON; the dollars of a block are for all nodes and all its hours."""
    return {
        "asked_at": stamp(market.asked_at),
        "trn2_hours": round(market.hours, 2),
        "regions_asked": market.regions_asked,
        "offers": [
            offer.option.as_json()
            | {"median_usd": offer.option.rate.median_usd, "obstacle": offer.obstacle or None}
            | (
                {"id": block.id, "starts": stamp(block.starts), "ends": stamp(block.ends)}
                if (block := offer.block)
                else {}
            )
            for offer in market.offers
        ],
        "regions": [
            {key: value for key, value in asdict(place).items() if key != "rates"} for place in market.places
        ],
        "no_answer": market.no_answer,
        "not_enabled": market.not_enabled,
        "take": [*ways_to_take(market)],
        "notes": NOTES,
    }


def as_lines(market: Market, path: Path) -> Iterator[str]:
    """Yield the offers as a table, what was not answered, and what to type and paste."""
    experiment = market.experiment
    nodes = f"{count(experiment.nodes, 'node')} of {experiment.instance.name}"
    asked = f"{count(market.regions_asked, 'region')} asked at {stamp(market.asked_at)}"
    yield from folded([f"Where to buy {nodes} for {market.hours:.1f} hours (predicted); {asked}", ""])
    headings = ("", "by", "where", "$/hour", "in 30 days", "this run, $", "note")
    if rows := [_row(market, number, offer) for number, offer in enumerate(market.offers, start=1)]:
        yield from (*table(headings, rows), "")
    yield from folded([*_unanswered(market), *NOTES, ""])
    for way in (ways := [*ways_to_take(market)]):
        yield f"To take row {way['row']}:"
        if way["command"]:
            yield from folded(["  Deploy before it begins. This command pays for the whole block at once:"])
            yield f"  {way['command']}"
        yield f"  In {path}:"
        yield textwrap.indent(yaml.safe_dump({"cluster": way["cluster"]}, sort_keys=False), "  ")
    if ways:
        yield "Then:"
        yield from (f"  ./trnspec {verb} {quote(str(path))}" for verb in ("render", "deploy"))
        yield f"  ./trnspec run {quote(str(path))} --wait 12h"


def _row(market: Market, number: int, offer: Offer) -> Sequence[str]:
    option, rate, have = offer.option, offer.option.rate, offer.place.spot_vcpus
    usd, days = f"{option.usd:,.2f}", ""
    if rate.low_usd is not None and rate.high_usd is not None:
        days = f"{rate.low_usd:.2f} to {rate.high_usd:.2f}"
        usd = f"{usd} ({option.low_usd:,.0f} to {option.high_usd:,.0f})"
    if offer.block:
        note = f"{rate.smallest_h:g} hours from {offer.block.starts:%Y-%m-%d %H:%M} UTC"
    else:
        note = (
            f"NOT NOW: {offer.obstacle}"
            if offer.obstacle
            else "quota not known"
            if have is None
            else f"quota {have:g} vCPUs"
        )
    kind = "block" if offer.block else "spot"
    return str(number), kind, rate.place, f"{rate.usd_per_hour:.2f}", days, usd, note


def _unanswered(market: Market) -> Iterator[str]:
    yield from (f"{place.region}: {problem}" for place in market.places for problem in place.problems)
    yield from (f"no answer: {line}" for line in market.no_answer)
    if market.not_enabled:
        seen = [name for name in market.not_enabled if name in market.experiment.instance.zones]
        why = f"; {listed(seen)} had the type when the catalogue was made" if seen else ""
        yield f"not asked, because the account has not enabled them: {', '.join(market.not_enabled)}{why}"
