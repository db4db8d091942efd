"""What EC2 sells of an instance type: every region of the account is asked, and one that does not answer is a line of the answer.

Shapes and limits: botocore's models of EC2 (2016-11-15) and of Pricing (2017-10-15)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any, TypeVar

from trnspec.core.console import progress
from trnspec.experiment.catalogue.prices import NodeRate
from trnspec.experiment.cost import BLOCK_END_H
from trnspec.operations.cloud.aws import Aws, AwsError
from trnspec.operations.cloud.clock import stamp
from trnspec.operations.preflight.ec2_offers import SPOT_QUOTA, TRN_QUOTA

HISTORY = timedelta(days=30)
_AT_ONCE = 12
_SCORED_REGIONS = 10
"""The most that one request for placement scores may name."""
_PRICES_IN = "us-east-1"
"""One of the regions where the Pricing API answers, for all
(https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html)."""
_SOLD_H = (*range(24, 14 * 24 + 1, 24), *range(3 * 168, 26 * 168 + 1, 168))
"""Durations that blocks are sold for: whole days up to 14, whole weeks up to 26. The answer to one has blocks that are somewhat
shorter and longer, because all end at 11:30 UTC (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-purchase.html)."""
_ON_DEMAND = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "marketoption": "OnDemand",
}
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A capacity block that can be bought."""

    id: str
    nodes: int
    starts: datetime
    ends: datetime
    usd: float
    """For all nodes and the whole time, paid in advance."""

    @property
    def hours(self) -> float:
        return (self.ends - self.starts) / timedelta(hours=1)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "starts": stamp(self.starts), "ends": stamp(self.ends), "hours": self.hours}


@dataclass(frozen=True, kw_only=True)
class Quote:
    """A price of a node."""

    rate: NodeRate
    median_usd: float | None = None
    """Spot: the median of 30 days, in which each price counts for as long as it held."""
    offer: Offer | None = None


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
    quotes: tuple[Quote, ...]
    scores: Mapping[str, int]
    """Spot placement scores by zone."""
    problems: tuple[str, ...]
    """What could not be asked, in lines."""


@dataclass(frozen=True, kw_only=True)
class Market:
    """The whole answer."""

    asked_at: datetime
    asked: int
    """Regions."""
    places: tuple[RegionOffers, ...]
    silent: tuple[str, ...] = ()
    """Who did not answer, in lines."""
    not_enabled: tuple[str, ...] = ()
    """Regions that the account has not enabled, and that were not asked."""


def ask(aws: Aws, *, instance: str, nodes: int, hours: float, now: datetime) -> Market:
    """Everything that can be bought of so many nodes for so many hours. Raises `AwsError` where not even the regions are known."""
    entries = aws.client("ec2").describe_regions(AllRegions=True)["Regions"]
    enabled = sorted(one["RegionName"] for one in entries if one.get("OptInStatus") != "not-opted-in")
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
    scores = _asked("placement scores", silent, lambda: _scores(aws, instance, nodes, places)) or {}
    prices = _asked("on-demand prices", silent, lambda: _on_demand(aws, instance, now)) or {}
    return Market(
        asked_at=now,
        asked=len(enabled),
        places=tuple(
            replace(
                place,
                quotes=(*place.quotes, *prices.get(place.region, ())),
                scores={name: scores[key] for key, name in place.zone_ids.items() if key in scores},
            )
            for place in places
        ),
        silent=tuple(sorted(silent)),
        not_enabled=tuple(sorted({one["RegionName"] for one in entries} - {*enabled})),
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
    ec2, problems = aws.client("ec2"), list[str]()
    named = [{"Name": "instance-type", "Values": [instance]}]
    asked = "describe_instance_type_offerings", "InstanceTypeOfferings"
    offered = ec2.every(*asked, LocationType="availability-zone", Filters=named)
    if not (zones := tuple(sorted(entry["Location"] for entry in offered))):
        return None
    quotes = [
        *(_asked("spot prices", problems, lambda: _spot(aws, instance, now)) or ()),
        *(_asked("capacity blocks", problems, lambda: _blocks(aws, instance, nodes, hours, now)) or ()),
    ]
    return RegionOffers(
        region=aws.region,
        zones=zones,
        zone_ids=_asked("zones", problems, lambda: _zone_ids(aws)) or {},
        vcpus={
            "on-demand": _asked("on-demand quota", problems, lambda: _quota(aws, TRN_QUOTA)),
            "spot": _asked("spot quota", problems, lambda: _quota(aws, SPOT_QUOTA)),
        },
        quotes=tuple(one for one in quotes if one.rate.zone in zones),
        scores={},
        problems=tuple(problems),
    )


def _zone_ids(aws: Aws) -> dict[str, str]:
    entries = aws.client("ec2").describe_availability_zones()["AvailabilityZones"]
    ours = [one for one in entries if one.get("ZoneType", "availability-zone") == "availability-zone"]
    return {one["ZoneId"]: one["ZoneName"] for one in ours}


def _quota(aws: Aws, code: str) -> float:
    """vCPUs; 0 in an account that never had a value applied."""
    asked = {"ServiceCode": "ec2", "QuotaCode": code}
    found = aws.client("service-quotas").find("get_service_quota", "NoSuchResourceException", **asked)
    return float(found["Quota"]["Value"]) if found else 0.0


def _spot(aws: Aws, instance: str, now: datetime) -> list[Quote]:
    asked = {"InstanceTypes": [instance], "ProductDescriptions": ["Linux/UNIX"], "StartTime": now - HISTORY}
    changes: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
    entries = aws.client("ec2").every("describe_spot_price_history", "SpotPriceHistory", **asked, EndTime=now)
    for entry in entries:
        changes[entry["AvailabilityZone"]].append((entry["Timestamp"], float(entry["SpotPrice"])))
    found = []
    for zone, course in sorted(changes.items()):
        low, median, high = spread(course, now=now)
        rate = NodeRate(
            **_about(instance, aws.region, now, "ec2:DescribeSpotPriceHistory"),
            kind="spot",
            zone=zone,
            usd_per_hour=max(course)[1],
            low_usd=low,
            high_usd=high,
        )
        found.append(Quote(rate=rate, median_usd=median))
    return found


def _about(instance: str, region: str, now: datetime, source: str) -> dict[str, Any]:
    return {"instance": instance, "region": region, "as_of": stamp(now), "source": source}


def spread(changes: Iterable[tuple[datetime, float]], *, now: datetime) -> tuple[float, float, float]:
    """Lowest, median and highest price of 30 days, from its changes; the first may be from before, and still held."""
    ordered = sorted(changes)
    times = [max(at, now - HISTORY) for at, _ in ordered] + [now]
    held = sorted((usd, times[place + 1] - times[place]) for place, (_, usd) in enumerate(ordered))
    half = sum((span for _, span in held), timedelta()) / 2
    passed = accumulate(span for _, span in held)
    median = next(usd for (usd, _), until in zip(held, passed, strict=True) if until >= half)
    return held[0][0], median, held[-1][0]


def _blocks(aws: Aws, instance: str, nodes: int, hours: float, now: datetime) -> list[Quote]:
    """Blocks that cover the hours and the last one, in which there are no nodes any more. The next duration that is sold is asked
    for only where the first brings none."""
    least = hours + BLOCK_END_H  # also from now on, where a block has begun
    asked: dict[str, Any] = {"InstanceType": instance, "InstanceCount": nodes}
    for length in [one for one in _SOLD_H if one >= least][:2]:
        operation = "describe_capacity_block_offerings", "CapacityBlockOfferings"
        entries = aws.client("ec2").every(*operation, **asked, CapacityDurationHours=length)
        # One reservation in one zone has to hold all nodes all the time: that is what a node group takes.
        whole = [one for one in entries if len(one.get("CapacityBlockOfferingSegments", ())) < 2]
        found = [_block(one, aws.region, now) for one in whole if one["InstanceCount"] == nodes]
        if fitting := [one for one in found if _left_h(one, now) >= least]:
            return fitting
    return []


def _left_h(quote: Quote, now: datetime) -> float:
    return (quote.offer.ends - max(now, quote.offer.starts)) / timedelta(hours=1) if quote.offer else 0.0


def _block(entry: Mapping[str, Any], region: str, now: datetime) -> Quote:
    offer = Offer(
        id=entry["CapacityBlockOfferingId"],
        nodes=entry["InstanceCount"],
        starts=entry["StartDate"].astimezone(UTC),
        ends=entry["EndDate"].astimezone(UTC),
        usd=float(entry["UpfrontFee"]),
    )
    rate = NodeRate(
        **_about(entry["InstanceType"], region, now, "ec2:DescribeCapacityBlockOfferings"),
        kind="capacity-block",
        zone=entry["AvailabilityZone"],
        usd_per_hour=offer.usd / offer.hours / offer.nodes,
        smallest_h=offer.hours,
    )
    return Quote(rate=rate, offer=offer)


def _scores(aws: Aws, instance: str, nodes: int, places: Iterable[RegionOffers]) -> dict[str, int]:
    """Placement scores by the id of the zone."""
    regions, found = [place.region for place in places], dict[str, int]()
    asked: dict[str, Any] = {"InstanceTypes": [instance], "TargetCapacity": nodes}
    asked |= {"TargetCapacityUnitType": "units", "SingleAvailabilityZone": True}
    for first in range(0, len(regions), _SCORED_REGIONS):
        operation = "get_spot_placement_scores", "SpotPlacementScores"
        some = regions[first : first + _SCORED_REGIONS]
        entries = aws.client("ec2").every(*operation, **asked, RegionNames=some)
        found |= {entry["AvailabilityZoneId"]: entry["Score"] for entry in entries}
    return found


def _on_demand(aws: Aws, instance: str, now: datetime) -> dict[str, tuple[Quote, ...]]:
    """The on-demand price by region; what is listed at 0 is paid in another way."""
    named = {"instanceType": instance, **_ON_DEMAND}
    filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in named.items()]
    pricing, found = aws.elsewhere(_PRICES_IN).client("pricing"), dict[str, float]()
    for text in pricing.every("get_products", "PriceList", ServiceCode="AmazonEC2", Filters=filters):
        product = json.loads(text)
        region = product["product"]["attributes"].get("regionCode", "")
        for term in product.get("terms", {}).get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                if (usd := float(dimension["pricePerUnit"].get("USD", 0))) and dimension["unit"] == "Hrs":
                    found[region] = min(usd, found.get(region, usd))
    source = "pricing:GetProducts"
    return {
        region: (
            Quote(rate=NodeRate(**_about(instance, region, now, source), kind="on-demand", usd_per_hour=usd)),
        )
        for region, usd in found.items()
    }
