"""Where the nodes of an experiment can be bought now: what each region of the account offers, and how to take it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeVar

import yaml

from trnspec.core.console import progress
from trnspec.core.findings import Finding, finding, fine
from trnspec.core.screen import folded, table
from trnspec.core.words import count, listed, span
from trnspec.experiment import Experiment
from trnspec.experiment.catalogue.prices import NodeRate
from trnspec.experiment.cost import run_hours
from trnspec.experiment.run_price import RunPrice, run_prices
from trnspec.operations.cloud import ec2
from trnspec.operations.cloud.aws import Aws, AwsError
from trnspec.operations.cloud.clock import moment, stamp

_THREADS = 12
_T = TypeVar("_T")
NOTES = (
    "On demand: AWS publishes no price. Only a start shows whether EC2 has a node, on demand or by spot. `run --wait 12h` tries for "
    "12 hours.",
    "A spot price changes while nodes run. You pay a Capacity Block in advance and cannot cancel it; another account may buy it "
    "first.",
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
    """One way to buy the nodes now."""

    region: RegionOffers
    price: RunPrice
    obstacle: str
    """Why it cannot be taken as things are."""


@dataclass(frozen=True, kw_only=True)
class Market:
    """The answer of all regions."""

    experiment: Experiment
    asked_at: datetime
    hours: float
    """Trn2 hours of a first run, predicted."""
    regions_asked: int
    regions: tuple[RegionOffers, ...]
    no_answer: tuple[str, ...]
    not_enabled: tuple[str, ...]
    """Regions that the account has not enabled; they were not asked."""

    @property
    def offers(self) -> list[Offer]:
        """The cheapest run first."""
        regions = {one.region: one for one in self.regions}
        rates = [rate for one in self.regions for rate in one.rates]
        prices = run_prices(self.experiment, self.hours, rates)
        return [self._offer(regions[price.rate.region], price) for price in prices]

    def _offer(self, region: RegionOffers, price: RunPrice) -> Offer:
        """Return an offer with what keeps spot from being taken; a Capacity Block counts against no quota."""
        need, have = self.experiment.instance.vcpus * self.experiment.nodes, region.spot_vcpus
        most, obstacle = self.experiment.cluster.capacity.max_usd_per_hour, ""
        if price.rate.kind == "spot" and most is not None and price.rate.usd_per_hour > most:
            obstacle = f"the price is above max_usd_per_hour, ${most:g}"
        elif price.rate.kind == "spot" and have is not None and have < need:
            obstacle = f"quota {have:g} vCPUs, needs {need}"
        return Offer(region=region, price=price, obstacle=obstacle)

    @property
    def finding(self) -> Finding:
        """The answer as a check of `preflight`."""
        instance, where = self.experiment.instance.name, listed([one.region for one in self.regions])
        if offers := self.offers:
            return fine(f"{count(len(offers), 'offer')} of {instance} in {where}, below")
        if where:
            why = f"no spot price and no Capacity Block of {instance} in {where}"
            return finding(why, "ask again later, or run --wait")
        return finding(f"no enabled region offers {instance}", "enable a region that does (below)")


def ask(experiment: Experiment, aws: Aws, *, now: datetime) -> Market:
    """Ask every enabled region. A region that does not answer is a line. Raises `AwsError` where not even the regions are known."""
    hours, (enabled, not_enabled) = run_hours(experiment), ec2.regions(aws)
    regions, silent, pool = list[RegionOffers](), list[str](), ThreadPoolExecutor(_THREADS)
    try:
        asked = {
            pool.submit(_offers_of, aws.in_region(name), experiment, hours=hours, now=now): name
            for name in enabled
        }
        with progress(f"asks {len(enabled)} regions about {experiment.instance.name}", len(asked)) as advance:
            for future in as_completed(asked):
                if found := _answer(asked[future], silent, future.result):
                    regions.append(found)
                advance(steps=1, doing=f"{asked[future]} has answered")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return Market(
        experiment=experiment,
        asked_at=now,
        hours=hours,
        regions_asked=len(enabled),
        regions=tuple(sorted(regions, key=lambda one: one.region)),
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


def _offers_of(aws: Aws, experiment: Experiment, *, hours: float, now: datetime) -> RegionOffers | None:
    """Return what a region offers; None where it does not have the type. Raises `AwsError` where that is not known."""
    instance, nodes, problems = experiment.instance.name, experiment.nodes, list[str]()
    if not (zones := ec2.zones_with(aws, instance)):
        return None
    spot = _answer("spot prices", problems, lambda: ec2.spot_prices(aws, instance, now=now))
    needs: Any = {"nodes": nodes, "hours": hours, "now": now}
    blocks = _answer("Capacity Blocks", problems, lambda: ec2.blocks(aws, instance, **needs))
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
    cluster, kinds = market.experiment.cluster, ["spot", "capacity-block"]
    cheapest: dict[str, tuple[int, Offer]] = {}
    for number, offer in enumerate(market.offers, start=1):
        if not offer.obstacle and (not cluster.network.vpc or offer.region.region == cluster.region):
            cheapest.setdefault(offer.price.rate.kind, (number, offer))
    for number, offer in (cheapest[kind] for kind in kinds if kind in cheapest):
        command = (
            f"aws ec2 purchase-capacity-block --region {offer.region.region} --instance-platform Linux/UNIX "
            f"--capacity-block-offering-id {offer.price.rate.offer_id}"
        )
        section = _section(market.experiment, offer)
        yield {"row": number, "command": command if offer.price.rate.offer_id else None, "cluster": section}


def _section(experiment: Experiment, offer: Offer) -> dict[str, Any]:
    """Return what `cluster` of the file must say. The purchase names the reservation."""
    cluster, region, rate = experiment.cluster, offer.region, offer.price.rate
    own = cluster.availability_zones if region.region == cluster.region else ()
    zones = [*dict.fromkeys((rate.place, *own, *region.zones, *region.other_zones))]
    capacity: dict[str, Any] = {"kind": rate.kind}
    if rate.ends:
        capacity |= {"reservation_id": "cr-...", "ends_at": rate.ends}
    elif cluster.capacity.max_usd_per_hour is not None:
        capacity["max_usd_per_hour"] = cluster.capacity.max_usd_per_hour
    zones = zones[: len(cluster.availability_zones)]
    return {"region": region.region, "availability_zones": zones, "capacity": capacity}


def as_json(market: Market) -> dict[str, Any]:
    """Return the answer as JSON; the dollars of a block are for all nodes and all its hours."""
    return {
        "asked_at": stamp(market.asked_at),
        "trn2_hours": round(market.hours, 2),
        "regions_asked": market.regions_asked,
        "offers": [_offer_json(offer) for offer in market.offers],
        "regions": [
            {key: value for key, value in asdict(one).items() if key != "rates"} for one in market.regions
        ],
        "no_answer": market.no_answer,
        "not_enabled": market.not_enabled,
        "take": [*ways_to_take(market)],
        "notes": NOTES,
    }


def _offer_json(offer: Offer) -> dict[str, Any]:
    rate = offer.price.rate
    found = {**offer.price.as_json(), "median_usd": rate.median_usd, "obstacle": offer.obstacle or None}
    if rate.offer_id:
        found |= {"id": rate.offer_id, "starts": rate.starts, "ends": rate.ends}
    return found


def as_lines(market: Market) -> Iterator[str]:
    """Yield the offers as a table, what was not answered, and what to type and paste."""
    experiment, file = market.experiment, market.experiment.file
    nodes = f"{count(experiment.nodes, 'node')} of {experiment.instance.name}"
    asked = f"{count(market.regions_asked, 'region')} asked at {stamp(market.asked_at)}"
    yield from folded([f"Where to buy {nodes} for {market.hours:.1f} hours (predicted); {asked}", ""])
    headings = ("", "by", "where", "$/hour", "last 30 days", "this run, $", "note")
    if rows := [_row(number, offer) for number, offer in enumerate(market.offers, start=1)]:
        yield from (*table(headings, rows), "")
    yield from folded([*_unanswered(market), *NOTES, ""])
    for way in (ways := [*ways_to_take(market)]):
        yield f"To buy row {way['row']}:"
        if way["command"]:
            before = "  Deploy before the block starts. This command pays for the whole block at once:"
            yield from (*folded([before]), f"  {way['command']}")
        yield f"  Write into {file}:"
        yield textwrap.indent(yaml.safe_dump({"cluster": way["cluster"]}, sort_keys=False), "    ")
    if ways:
        yield "Then:"
        yield from (f"  ./trnspec {verb} {file}" for verb in ("render", "deploy"))
        yield f"  ./trnspec run {file} --wait 12h"


def _row(number: int, offer: Offer) -> Sequence[str]:
    price, rate, have = offer.price, offer.price.rate, offer.region.spot_vcpus
    usd, days = f"{price.usd:,.2f}", ""
    if rate.low_usd is not None and rate.high_usd is not None:
        days = f"{rate.low_usd:.2f} to {rate.high_usd:.2f}"
        usd = f"{usd} ({span(price.low_usd, price.high_usd, digits=0)})"
    note = "quota not known" if have is None else f"quota {have:g} vCPUs"
    if rate.starts:
        note = f"{rate.smallest_h:g} hours from {moment(rate.starts):%Y-%m-%d %H:%M} UTC"
    elif offer.obstacle:
        note = f"NOT NOW: {offer.obstacle}"
    kind = "spot" if rate.kind == "spot" else "block"
    return str(number), kind, rate.place, f"{rate.usd_per_hour:.2f}", days, usd, note


def _unanswered(market: Market) -> Iterator[str]:
    yield from (f"{one.region}: {problem}" for one in market.regions for problem in one.problems)
    yield from (f"no answer: {line}" for line in market.no_answer)
    if market.not_enabled:
        seen = [name for name in market.not_enabled if name in market.experiment.instance.zones]
        why = f" (known to offer it: {listed(seen)})" if seen else ""
        yield f"not asked, not enabled in this account: {', '.join(market.not_enabled)}{why}"
