"""Raw records as CloudWatch metric data: distributions, so that the console can show percentiles.

PutMetricData takes at most 150 distinct values in a datum, 1000 data and 1 MB in a call
(https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutMetricData.html).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from benchmark.analyse.values import gaps, request_values
from benchmark.measure.records import RequestRecord
from benchmark.metrics import ERRORS, INTER_CHUNK_LATENCY, PUBLISHED, Metric
from benchmark.plan import Plan

MAX_VALUES = 150
MAX_DATA = 1000
MAX_BYTES = 900_000
"""Below CloudWatch's 1 MB, since a datum's size is estimated."""
_BYTES_PER_VALUE = 90
_BYTES_PER_DATUM = 800
_RESOLUTION_S = 60
"""A standard-resolution datum belongs to a minute."""
_REQUESTS_PER_PARCEL = 50
_DIGITS = 3
"""Significant digits of published values, so that equal ones share an entry; the raw file keeps them all."""


@dataclass(frozen=True)
class Parcel:
    """All data of some requests. It is sent in one call, so that a request is counted whole or not at all."""

    request_ids: tuple[str, ...]
    data: tuple[dict[str, Any], ...]

    @property
    def size(self) -> int:
        """Bytes on the wire, estimated from above."""
        values = sum(len(datum["Values"]) for datum in self.data)
        return values * _BYTES_PER_VALUE + len(self.data) * _BYTES_PER_DATUM


def request_id(record: RequestRecord) -> str:
    """Identity of a measured request within its run."""
    return f"{record.arm} {record.pair_id}"


def parcels(plan: Plan, records: Iterable[RequestRecord]) -> list[Parcel]:
    """The measured records of a run as parcels, by cell and minute. Failed ones count as errors only."""
    groups: dict[tuple[str, str, str, float], list[RequestRecord]] = {}
    for record in records:
        if record.phase == "measured":
            # As many values as the plan has loads: requests in flight, or arrivals as `2.5/s`.
            load = str(record.concurrency) if record.rate_per_s is None else f"{record.rate_per_s:g}/s"
            minute = record.started_unix_s // _RESOLUTION_S * _RESOLUTION_S
            groups.setdefault((record.arm, record.class_, load, minute), []).append(record)
    return [
        _parcel(plan, cell, minute, members[start : start + _REQUESTS_PER_PARCEL])
        for (*cell, minute), members in groups.items()
        for start in range(0, len(members), _REQUESTS_PER_PARCEL)
    ]


def calls(waiting: Sequence[Parcel]) -> Iterator[tuple[Parcel, ...]]:
    """Parcels packed into as few calls as the limits allow, in order."""
    batch: list[Parcel] = []
    for parcel in waiting:
        data = sum(len(one.data) for one in (*batch, parcel))
        size = sum(one.size for one in (*batch, parcel))
        if batch and (data > MAX_DATA or size > MAX_BYTES):
            yield tuple(batch)
            batch = []
        batch.append(parcel)
    if batch:
        yield tuple(batch)


def _parcel(plan: Plan, cell: Sequence[str], minute: float, records: Sequence[RequestRecord]) -> Parcel:
    """Records of one cell (arm, class, load) and one minute."""
    names = zip(Metric.dimensions, (plan.experiment, *cell), strict=True)
    dimensions = [{"Name": name, "Value": value} for name, value in names]
    values = _values(plan, records)
    data = [
        {
            "MetricName": metric.cloudwatch_name,
            "Dimensions": dimensions,
            "Timestamp": datetime.fromtimestamp(minute, UTC),
            "Unit": metric.cloudwatch_unit,
            "Values": list(part),
            "Counts": [float(part[value]) for value in part],
        }
        for metric in PUBLISHED
        for part in _parts(values[metric.name])
    ]
    return Parcel(tuple(map(request_id, records)), tuple(data))


def _values(plan: Plan, records: Sequence[RequestRecord]) -> Mapping[str, list[float]]:
    by_name: dict[str, list[float]] = {metric.name: [] for metric in PUBLISHED}
    for record in records:
        by_name[ERRORS.name].append(0.0 if record.error is None else 1.0)
        by_name[INTER_CHUNK_LATENCY.name] += gaps(record)
        for name, value in request_values(record, plan.arm(record.arm).max_tokens_per_step).items():
            by_name[name].append(value)
    return by_name


def _parts(values: Sequence[float]) -> Iterator[dict[float, int]]:
    """Values with their counts, at most MAX_VALUES distinct ones at a time."""
    counted = iter(sorted(Counter(float(f"{value:.{_DIGITS}g}") for value in values).items()))
    while part := dict(islice(counted, MAX_VALUES)):
        yield part
