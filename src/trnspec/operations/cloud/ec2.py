"""The questions that EC2 and Service Quotas answer about an instance type: quotas, offers, prices and reservations.

An answer that cannot be used is an `AwsError`. A price or a quota must be a number from 0 up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from itertools import accumulate
from typing import Any, ParamSpec, TypeVar

from trnspec.core.findings import Finding
from trnspec.core.safe_output import shortened
from trnspec.experiment.catalogue.prices import NodeRate
from trnspec.experiment.cost import BLOCK_END_H
from trnspec.operations.cloud.aws import Aws, AwsError
from trnspec.operations.cloud.clock import moment, stamp

TRN_QUOTA = "L-2C3B7624"
"""`Running On-Demand Trn instances`, in vCPUs: the code that `aws service-quotas list-service-quotas --service-code ec2`
prints for it, as recorded in several public listings of accounts."""
SPOT_QUOTA = "L-6B0D517C"
"""`All Trn Spot Instance Requests`, in vCPUs, 0 in a new account
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-spot-limits.html)."""
STANDARD_QUOTA = "L-1216C47A"
"""`Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances`, in vCPUs; new accounts begin with 5
(https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html)."""
HISTORY = timedelta(days=30)
SOLD_H = (*range(24, 14 * 24 + 1, 24), *range(3 * 168, 26 * 168 + 1, 168))
"""Durations that blocks are sold for: whole days up to 14, whole weeks up to 26. The answer to one has blocks that are somewhat
shorter and longer, because all end at 11:30 UTC (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-purchase.html)."""
_UNREADABLE = LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError
_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A capacity reservation or block of the account."""

    state: str
    instance: str
    zone: str
    instances: int
    starts: datetime | None
    ends: datetime | None


def _reads(operation: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorate a question: an answer that cannot be read is an `AwsError` that names the operation."""

    def decorated(question: Callable[_P, _T]) -> Callable[_P, _T]:
        @wraps(question)
        def asked(*values: _P.args, **named: _P.kwargs) -> _T:
            try:
                return question(*values, **named)
            except _UNREADABLE as error:
                said = f"it has no {error.args[0]}" if isinstance(error, KeyError) else str(error)
            region = next(one.region for one in values if isinstance(one, Aws))
            why = f"unexpected answer ({shortened(said, 120)})"
            raise AwsError(Finding(f"{operation} in {region}", None, why, "run this again")) from None

        return asked

    return decorated


def _number(entry: Mapping[str, Any], name: str) -> float:
    """Return a price, a quota or a count. Raises `ValueError` if it is not a number, or is negative, infinite or NaN."""
    try:
        number = float(entry[name])
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} is {entry[name]!r}")
    return number


def _usd(entry: Mapping[str, Any], name: str) -> float:
    """Return a price, which is above 0."""
    if not (usd := _number(entry, name)):
        raise ValueError(f"{name} is 0")
    return usd


def _about(instance: str, region: str, now: datetime, source: str) -> dict[str, Any]:
    return {"instance": instance, "region": region, "as_of": stamp(now), "source": source}


@_reads("ec2:DescribeRegions")
def regions(aws: Aws) -> tuple[list[str], list[str]]:
    """Return the regions that the account has enabled, and the others."""
    entries = aws.client("ec2").describe_regions(AllRegions=True)["Regions"]
    enabled = {one["RegionName"]: one.get("OptInStatus") != "not-opted-in" for one in entries}
    yes, no = (sorted(name for name in enabled if enabled[name] is wanted) for wanted in (True, False))
    return yes, no


@_reads("service-quotas:GetServiceQuota")
def vcpu_quota(aws: Aws, code: str) -> float:
    """Return a quota in vCPUs; 0 in an account that never had a value applied."""
    asked = {"ServiceCode": "ec2", "QuotaCode": code}
    found = aws.client("service-quotas").find("get_service_quota", "NoSuchResourceException", **asked)
    return 0.0 if found is None else _number(found["Quota"], "Value")


@_reads("ec2:DescribeInstanceTypeOfferings")
def zones_with(aws: Aws, instance: str) -> list[str]:
    """Return the zones of the region that offer the type."""
    operation = "describe_instance_type_offerings", "InstanceTypeOfferings"
    named = [{"Name": "instance-type", "Values": [instance]}]
    found = aws.client("ec2").paginate(*operation, LocationType="availability-zone", Filters=named)
    return sorted(one["Location"] for one in found)


@_reads("ec2:DescribeAvailabilityZones")
def zones(aws: Aws) -> list[str]:
    """Return all availability zones of the region."""
    wanted = [{"Name": "zone-type", "Values": ["availability-zone"]}]
    entries = aws.client("ec2").describe_availability_zones(Filters=wanted)["AvailabilityZones"]
    return sorted(one["ZoneName"] for one in entries)


def _history(aws: Aws, instance: str, *, since: datetime, now: datetime, **more: Any) -> dict[str, Any]:
    """Return times and prices by zone. The last change before `since` is in the answer
    (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html)."""
    asked = {"InstanceTypes": [instance], "ProductDescriptions": ["Linux/UNIX"], "StartTime": since, **more}
    operation = "describe_spot_price_history", "SpotPriceHistory"
    changes: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
    for entry in aws.client("ec2").paginate(*operation, **asked, EndTime=now):
        at = min(entry["Timestamp"].astimezone(UTC), now)
        changes[entry.get("AvailabilityZone", "")].append((at, _usd(entry, "SpotPrice")))
    return changes


@_reads("ec2:DescribeSpotPriceHistory")
def spot_price(aws: Aws, instance: str, zone: str, *, now: datetime) -> float | None:
    """Return dollars per hour of a node in a zone now; None where EC2 has no spot price for the type there."""
    found = _history(aws, instance, since=now, now=now, AvailabilityZone=zone)
    return max((change for course in found.values() for change in course), default=(now, None))[1]


@_reads("ec2:DescribeSpotPriceHistory")
def spot_prices(aws: Aws, instance: str, *, now: datetime) -> list[NodeRate]:
    """Return the price of each zone of the region, with 30 days of its history."""
    found, about = [], _about(instance, aws.region, now, "ec2:DescribeSpotPriceHistory")
    for zone, course in sorted(_history(aws, instance, since=now - HISTORY, now=now).items()):
        low, median, high = spread(course, now=now)
        price: Any = {"usd_per_hour": max(course)[1], "low_usd": low, "median_usd": median, "high_usd": high}
        found.append(NodeRate(**about, kind="spot", zone=zone, **price))
    return found


def spread(changes: Iterable[tuple[datetime, float]], *, now: datetime) -> tuple[float, float, float]:
    """Return the lowest, the median and the highest price of 30 days. The first change may be older."""
    ordered = sorted(changes)
    times = [max(at, now - HISTORY) for at, _ in ordered] + [now]
    held = sorted((usd, times[place + 1] - times[place]) for place, (_, usd) in enumerate(ordered))
    half = sum((span for _, span in held), timedelta()) / 2
    passed = accumulate(span for _, span in held)
    median = next(usd for (usd, _), until in zip(held, passed, strict=True) if until >= half)
    return held[0][0], median, held[-1][0]


@_reads("ec2:DescribeCapacityBlockOfferings")
def blocks(aws: Aws, instance: str, *, nodes: int, hours: float, now: datetime) -> list[NodeRate]:
    """Return blocks that cover the hours and the last one, in which AWS takes the nodes away. If none has the shortest sufficient
    duration, the next one is tried."""
    least = timedelta(hours=hours + BLOCK_END_H)  # also from now on, where a block has begun
    asked: dict[str, Any] = {"InstanceType": instance, "InstanceCount": nodes}
    for length in [one for one in SOLD_H if one >= hours + BLOCK_END_H][:2]:
        operation = "describe_capacity_block_offerings", "CapacityBlockOfferings"
        entries = aws.client("ec2").paginate(*operation, **asked, CapacityDurationHours=length)
        # One reservation in one zone has to hold all nodes all the time: that is what a node group takes.
        whole = [one for one in entries if len(one.get("CapacityBlockOfferingSegments", ())) < 2]
        found = [_block(one, aws, instance, now) for one in whole if one["InstanceCount"] == nodes]
        if fitting := [one for one in found if moment(one.ends) - max(now, moment(one.starts)) >= least]:
            return fitting
    return []


def _block(entry: Mapping[str, Any], aws: Aws, instance: str, now: datetime) -> NodeRate:
    starts, ends = entry["StartDate"].astimezone(UTC), entry["EndDate"].astimezone(UTC)
    if starts >= ends or entry["CurrencyCode"] != "USD":
        raise ValueError(f"StartDate is {starts}, EndDate {ends}, CurrencyCode {entry['CurrencyCode']}")
    hours, nodes = (ends - starts) / timedelta(hours=1), entry["InstanceCount"]
    return NodeRate(
        **_about(instance, aws.region, now, "ec2:DescribeCapacityBlockOfferings"),
        kind="capacity-block",
        zone=entry["AvailabilityZone"],
        usd_per_hour=_usd(entry, "UpfrontFee") / hours / nodes,
        smallest_h=hours,
        offer_id=entry["CapacityBlockOfferingId"],
        starts=stamp(starts),
        ends=stamp(ends),
    )


@_reads("ec2:DescribeCapacityReservations")
def reservation(aws: Aws, name: str) -> Reservation | None:
    """Return a reservation or a block by its id; None if the account has none with it in the region."""
    codes = ("InvalidCapacityReservationId.NotFound", "InvalidCapacityReservationId.Malformed")
    answer = aws.client("ec2").find("describe_capacity_reservations", *codes, CapacityReservationIds=[name])
    if not answer or not answer["CapacityReservations"]:
        return None
    (entry,) = answer["CapacityReservations"]
    return Reservation(
        state=entry["State"],
        instance=entry.get("InstanceType", ""),
        zone=entry.get("AvailabilityZone", ""),
        instances=entry.get("TotalInstanceCount", 0),
        starts=entry["StartDate"].astimezone(UTC) if "StartDate" in entry else None,
        ends=entry["EndDate"].astimezone(UTC) if "EndDate" in entry else None,
    )
