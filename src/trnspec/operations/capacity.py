"""`capacity`: what can be bought for an experiment now, in every region, and how to take it. A region that does not answer is a line
of the answer."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml

from trnspec.core.console import print_json, print_table, print_text, progress
from trnspec.core.words import count, listed
from trnspec.experiment import Experiment, load
from trnspec.experiment.catalogue.prices import NodeRate
from trnspec.experiment.cost import run_price
from trnspec.experiment.purchase import PurchaseOption, purchase_options
from trnspec.operations.cloud import ec2
from trnspec.operations.cloud.aws import Aws, AwsError, aws_of
from trnspec.operations.cloud.clock import Clock, stamp
from trnspec.operations.cloud.ec2 import BlockOffer
from trnspec.operations.options import with_experiment

_AT_ONCE, _RATE = 12, fields(NodeRate)
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class RegionOffers:
    """What a region that offers the type answered."""

    region: str
    zones: tuple[str, ...]
    """The zones that offer it."""
    zone_ids: Mapping[str, str]
    """Names of all zones of the region, by the id that is the same in every account."""
    vcpus: Mapping[str, float | None]
    """Quota by `spot` and `on-demand`; None where it is not known."""
    quotes: tuple[NodeRate, ...]
    problems: tuple[str, ...]
    """What could not be asked, in lines."""


@dataclass(frozen=True, kw_only=True)
class Market:
    """The whole answer."""

    asked_at: datetime
    regions_asked: int
    places: tuple[RegionOffers, ...]
    on_demand: tuple[NodeRate, ...] = ()
    scores: Mapping[str, int] = field(default_factory=dict)
    """Spot placement scores by id of the zone."""
    silent: tuple[str, ...] = ()
    """Who did not answer, in lines."""
    not_enabled: tuple[str, ...] = ()
    """Regions that the account has not enabled, and that were not asked."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way of buying the nodes in one place."""

    kind: str
    place: RegionOffers
    way: PurchaseOption | None = None
    """None where nobody publishes a price, as on demand."""
    score: int | None = None
    """Spot placement score."""
    obstacle: str = ""
    """Why it cannot be had as things are."""

    @property
    def quote(self) -> NodeRate | None:
        return self.way.rate if self.way else None

    @property
    def zone(self) -> str | None:
        return self.quote.zone if self.quote else None

    @property
    def block(self) -> BlockOffer | None:
        return self.quote if isinstance(self.quote, BlockOffer) else None


@with_experiment
def command(path: Path, as_json: bool) -> int:
    """Ask every region what can be bought for this experiment now, with the dollars of its answer; the cheapest first.

    Under the table: the AWS command that buys the block, and the section of the file to paste. Exit 1 when nothing is offered
    anywhere.
    """
    experiment = load(path)
    aws, hours = aws_of(experiment), run_price(experiment).hours
    name, nodes = experiment.instance.name, experiment.nodes
    found = ask(aws, instance=name, nodes=nodes, hours=hours, now=Clock().now())
    rows = rows_of(experiment, found, hours)
    if as_json:
        print_json(as_data(experiment, found, rows, hours))
    else:
        _print(path, experiment, found, rows, hours)
    return 0 if rows else 1


def ask(aws: Aws, *, instance: str, nodes: int, hours: float, now: datetime) -> Market:
    """Everything that can be bought of so many nodes for so many hours. Raises `AwsError` where not even the regions are known."""
    enabled, not_enabled = ec2.regions(aws)
    places, silent, pool = list[RegionOffers](), list[str](), ThreadPoolExecutor(_AT_ONCE)
    try:
        how: dict[str, Any] = {"instance": instance, "nodes": nodes, "hours": hours, "now": now}
        asked = {pool.submit(_place, aws.elsewhere(name), **how): name for name in enabled}
        with progress(f"asks {len(enabled)} regions about {instance}", len(enabled)) as advance:
            for future in as_completed(asked):
                if place := _asked(asked[future], silent, future.result):
                    places.append(place)
                advance(steps=1, doing=f"{asked[future]} has answered")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    places.sort(key=lambda place: place.region)
    named = [place.region for place in places]
    asks: Any = partial(ec2.placement_scores, aws, instance, nodes=nodes, regions=named)
    scores = _asked("placement scores", silent, asks) or {}
    asks = partial(ec2.on_demand_prices, aws, instance, now=now)
    prices, odd = _asked("on-demand prices", silent, asks) or ({}, [])
    return Market(
        asked_at=now,
        regions_asked=len(enabled),
        places=tuple(places),
        on_demand=tuple(prices.values()),
        scores=scores,
        silent=tuple(sorted([*silent, *(f"on-demand prices: {line}" for line in odd)])),
        not_enabled=tuple(not_enabled),
    )


def _asked(what: str, problems: list[str], ask: Callable[[], _T]) -> _T | None:
    """The answer; None, and a line among the problems, where AWS refuses or does not answer."""
    try:
        return ask()
    except AwsError as error:
        problems.append(f"{what}: {error}")
        return None


def _place(aws: Aws, *, instance: str, nodes: int, hours: float, now: datetime) -> RegionOffers | None:
    """What a region answers; None where it does not offer the type. Raises `AwsError` where it does not say so much."""
    problems = list[str]()
    if not (zones := ec2.zones_with(aws, instance)):
        return None
    sold: dict[str, Any] = {"nodes": nodes, "hours": hours, "now": now}
    quotes = [
        *(_asked("spot prices", problems, lambda: ec2.spot_prices(aws, instance, now=now)) or ()),
        *(_asked("capacity blocks", problems, lambda: ec2.blocks(aws, instance, **sold)) or ()),
    ]
    return RegionOffers(
        region=aws.region,
        zones=tuple(zones),
        zone_ids=_asked("zones", problems, lambda: ec2.zone_ids(aws)) or {},
        vcpus={
            "on-demand": _asked("on-demand quota", problems, lambda: ec2.vcpu_quota(aws, ec2.TRN_QUOTA)),
            "spot": _asked("spot quota", problems, lambda: ec2.vcpu_quota(aws, ec2.SPOT_QUOTA)),
        },
        quotes=tuple(one for one in quotes if one.zone in zones),
        problems=tuple(problems),
    )


def rows_of(experiment: Experiment, found: Market, hours: float) -> tuple[Row, ...]:
    """The cheapest first; what has no price comes last."""
    need, most = _vcpus(experiment), experiment.cluster.capacity.max_usd_per_hour
    places, rows = {place.region: place for place in found.places}, list[Row]()
    quotes = [quote for place in found.places for quote in place.quotes]
    quotes += [quote for quote in found.on_demand if quote.region in places]
    for way in purchase_options(experiment, hours, quotes):
        rate, place = way.rate, places[way.rate.region]
        score = next(
            (found.scores.get(key) for key, name in place.zone_ids.items() if name == rate.zone), None
        )
        obstacle = _short(place, rate.kind, need)
        if rate.kind == "spot" and most is not None and rate.usd_per_hour > most:
            obstacle = f"the price is above max_usd_per_hour, ${most:g}"
        rows.append(Row(kind=rate.kind, place=place, way=way, score=score, obstacle=obstacle))
    kind, sold = "on-demand", {quote.region for quote in found.on_demand}
    left = [place for place in found.places if place.region not in sold]
    return (*rows, *(Row(kind=kind, place=place, obstacle=_short(place, kind, need)) for place in left))


def _vcpus(experiment: Experiment) -> int:
    return experiment.instance.vcpus * experiment.nodes


def _short(place: RegionOffers, kind: str, need: int) -> str:
    """What a quota hinders; a block does not count against one."""
    have = place.vcpus.get(kind)
    return "" if have is None or have >= need else f"quota {have:g} vCPUs, needs {need}"


def ways_to_take(experiment: Experiment, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """How to take the cheapest row that needs no purchase and has no obstacle, and the cheapest block with the command that buys it
    (https://docs.aws.amazon.com/cli/latest/reference/ec2/purchase-capacity-block.html); of an existing VPC in its own region."""
    home, fixed = experiment.cluster.region, experiment.cluster.network.vpc
    known = [*enumerate(rows, start=1)]
    here = [(number, row) for number, row in known if row.place.region == home] if fixed else known
    free = ((number, row) for number, row in here if row.way and not row.block and not row.obstacle)
    blocks = ((number, row) for number, row in here if row.block)
    for number, row in filter(None, (next(free, None), next(blocks, None))):
        buy = f"aws ec2 purchase-capacity-block --region {row.place.region} --instance-platform Linux/UNIX"
        order = f"{buy} --capacity-block-offering-id {row.block.id}" if row.block else None
        yield {"row": number, "command": order, "cluster": _section(experiment, row)}


def _section(experiment: Experiment, row: Row) -> dict[str, Any]:
    """What `cluster` of the file must say; the order names the reservation."""
    cluster, place = experiment.cluster, row.place
    own = cluster.availability_zones if place.region == cluster.region else ()
    first = row.zone or next((zone for zone in own if zone in place.zones), place.zones[0])
    zones = dict.fromkeys((first, *own, *place.zones, *sorted(place.zone_ids.values())))
    capacity: dict[str, Any] = {"kind": row.kind}
    if row.block:
        capacity |= {"reservation_id": "cr-...", "availability_zone": row.zone}
        capacity["ends_at"] = stamp(row.block.ends)
    elif row.kind == "spot" and cluster.capacity.max_usd_per_hour is not None:
        capacity["max_usd_per_hour"] = cluster.capacity.max_usd_per_hour
    zones_of = [*zones][: len(cluster.availability_zones)]
    return {"region": place.region, "availability_zones": zones_of, "capacity": capacity}


NOT_KNOWN = (
    "Nobody can know before whether EC2 has a node by spot or on demand. A placement score is no promise, and AWS says that it is "
    "always low where one instance type is asked about: 1 says little. `./trnspec run --wait 12h` asks again and again.",
    "A spot price changes while nodes run. A block is paid whole in advance and cannot be cancelled; somebody else may buy it first. "
    "The hours are predicted.",
)
"""https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-placement-score.html, GetSpotPlacementScores in the API reference, and
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CancelCapacityReservation.html."""


def as_data(experiment: Experiment, found: Market, rows: Sequence[Row], hours: float) -> dict[str, Any]:
    """The answer for a machine."""
    return {
        "experiment": experiment.name,
        "instance": experiment.instance.name,
        "nodes": experiment.nodes,
        "trn2_hours": round(hours, 2),
        "asked_at": stamp(found.asked_at),
        "regions_asked": found.regions_asked,
        "rows": [
            {
                "kind": row.kind,
                "region": row.place.region,
                "zone": row.zone,
                "answer": row.way.as_json() if row.way else None,
                "rate": {one.name: getattr(row.quote, one.name) for one in _RATE} if row.quote else None,
                "placement_score": row.score if row.kind == "spot" else None,
                "offering": _offering(row.block) if row.block else None,
                "obstacle": row.obstacle or None,
            }
            for row in rows
        ],
        "regions": [
            {key: getattr(place, key) for key in ("region", "zones", "vcpus", "problems")}
            for place in found.places
        ],
        "no_answer": found.silent,
        "not_enabled": found.not_enabled,
        "take": [*ways_to_take(experiment, rows)],
        "not_known": NOT_KNOWN,
    }


def _offering(block: BlockOffer) -> dict[str, Any]:
    """A Capacity Block; its dollars are for all nodes and the whole time, paid in advance."""
    return {
        "id": block.id,
        "nodes": block.nodes,
        "starts": stamp(block.starts),
        "ends": stamp(block.ends),
        "usd": round(block.usd_per_hour * block.smallest_h * block.nodes, 2),
        "hours": block.smallest_h,
    }


def _print(path: Path, experiment: Experiment, found: Market, rows: Sequence[Row], hours: float) -> None:
    where = listed([place.region for place in found.places]) or "no region"
    wanted = f"{count(experiment.nodes, 'node')} of {experiment.instance.name}"
    asked = f"{count(found.regions_asked, 'region')} asked at {stamp(found.asked_at)}; offered in {where}."
    print_text(f"{experiment.name}: {wanted} for {hours:.1f} hours, predicted. {asked}", "")
    cells = [(str(number), *_cells(experiment, row, hours)) for number, row in enumerate(rows, start=1)]
    if cells:
        print_table(("", "by", "where", "$/hour", "30 days", "this answer, $", "what is known"), cells)
        print()
    for number, block in ((number, row.block) for number, row in enumerate(rows, start=1) if row.block):
        print_text(f"row {number}: {block.id}, {stamp(block.starts)} to {stamp(block.ends)}")
    print_text(*_remarks(experiment, found), "", *NOT_KNOWN, "")
    ways = [*ways_to_take(experiment, rows)]
    for way in ways:
        print_text(f"To take row {way['row']}:")
        if way["command"]:
            print_text("  Deploy before it begins. AWS takes the dollars at once, and nobody can cancel it:")
            print(f"  {way['command']}")
        print_text(f"  In {path}:")
        print(textwrap.indent(yaml.safe_dump({"cluster": way["cluster"]}, sort_keys=False), "  "))
    if ways:
        verbs = (f"  ./trnspec {verb} {path}" for verb in ("render", "preflight", "deploy"))
        print("Then:", *verbs, f"  ./trnspec run {path} --wait 12h", sep="\n")


def _cells(experiment: Experiment, row: Row, hours: float) -> tuple[str, ...]:
    bought = {"capacity-block": "block", "on-demand": "on demand"}.get(row.kind, row.kind)
    where, known = row.zone or row.place.region, _known(experiment, row, hours)
    if row.quote is None or row.way is None:
        return bought, where, "", "", "not published", known
    rate, way, median = row.quote, row.way, row.quote.median_usd
    held = f"{rate.low_usd:.2f} / {median:.2f} / {rate.high_usd:.2f}" if median is not None else ""  # pyrefly: ignore[invalid-format-spec]  # who has one has both
    most = f" ({way.low_usd:,.0f} to {way.high_usd:,.0f})" if median is not None else ""
    return bought, where, f"{rate.usd_per_hour:.2f}", held, f"{way.usd:,.2f}{most}", known


def _known(experiment: Experiment, row: Row, hours: float) -> str:
    if row.block:
        return f"{row.block.smallest_h:g} h, uses {hours:.1f}"
    have, score, parts = row.place.vcpus.get(row.kind), row.score, list[str]()
    if row.kind == "spot":
        parts.append("no score" if score is None else f"score {score} of 10")
    parts.append("quota not known" if have is None else f"quota {have:g} vCPUs, needs {_vcpus(experiment)}")
    known = "; ".join(part for part in parts if part != row.obstacle)
    return "; ".join(filter(None, (f"NOT NOW: {row.obstacle}" if row.obstacle else "", known)))


def _remarks(experiment: Experiment, found: Market) -> Iterator[str]:
    """What was not offered, and what was not answered."""
    for place in found.places:
        kinds = {quote.kind for quote in place.quotes}
        said = " ".join(place.problems)
        if "spot" not in kinds and "spot prices" not in said:
            yield f"{place.region}: no spot price in 30 days"
        if "capacity-block" not in kinds and "capacity blocks" not in said:
            yield f"{place.region}: no capacity block for so many hours"
        yield from (f"{place.region}: {problem}" for problem in place.problems)
    yield from (f"no answer: {line}" for line in found.silent)
    if found.not_enabled:
        seen = [name for name in found.not_enabled if name in experiment.instance.zones]
        why = f"; {listed(seen)} offered it when others looked" if seen else ""
        yield f"not asked, because the account has not enabled them: {', '.join(found.not_enabled)}{why}"
