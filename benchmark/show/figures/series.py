"""What figures draw, taken from raw records: values over time, and sorted values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmark.analyse.stats import percentile
from benchmark.analyse.values import gaps, request_values
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from benchmark.metrics import INTER_CHUNK_LATENCY, Metric
from benchmark.plan import Load, Plan

Cells = Mapping[tuple[str, str, Load], Sequence[RequestRecord]]
"""Measured records by arm, class and load."""

MOST_POINTS = 240
"""Of one arm in one panel; beyond them the time axis is cut into spans."""
SPANS = 60


@dataclass(frozen=True)
class Span:
    """Several values that follow each other, as percentiles."""

    at_s: float
    low: float
    middle: float
    high: float


def cells_of(raw: RawRun) -> Cells:
    """Measured records by cell, in the order in which they were sent."""
    found: dict[tuple[str, str, Load], list[RequestRecord]] = {}
    for record in sorted(raw.requests, key=lambda one: one.started_unix_s):
        if record.phase == "measured":
            load = Load(concurrency=record.concurrency, rate_per_s=record.rate_per_s)
            found.setdefault((record.arm, record.class_, load), []).append(record)
    return found


def over_time(
    plan: Plan, metric: Metric, records: Sequence[RequestRecord], zero_unix_s: float
) -> list[tuple[float, float]]:
    """Seconds since `zero_unix_s` and value of each answer that has one."""
    found = []
    for record in records:
        value = request_values(record, plan.arm(record.arm).max_tokens_per_step).get(metric.name)
        if value is not None:
            found.append((record.started_unix_s - zero_unix_s, value))
    return found


def values(plan: Plan, metric: Metric, records: Sequence[RequestRecord]) -> list[float]:
    """All values of a metric, sorted; of the inter-chunk latency one for each pair of chunks."""
    if metric is INTER_CHUNK_LATENCY:
        return sorted(gap for record in records if record.error is None for gap in gaps(record))
    return sorted(value for _, value in over_time(plan, metric, records, 0.0))


def spans(points: Sequence[tuple[float, float]]) -> list[Span]:
    """The points of equal parts of the time, each as its middle and its tenth and ninetieth percentile."""
    begin, end = points[0][0], points[-1][0]
    width = (end - begin) / SPANS or 1.0
    parts: dict[int, list[float]] = {}
    for at_s, value in points:
        parts.setdefault(min(int((at_s - begin) / width), SPANS - 1), []).append(value)
    found = []
    for index, members in sorted(parts.items()):
        ordered = sorted(members)
        low, middle, high = (percentile(ordered, percent) for percent in (10, 50, 90))
        found.append(Span(begin + (index + 0.5) * width, low, middle, high))
    return found


def shares(ordered: Sequence[float], most: int = 200) -> tuple[list[float], list[float]]:
    """Values and the share of all that is not above each, in at most `most` steps."""
    count = len(ordered)
    if count <= most:
        return list(ordered), [(index + 1) / count for index in range(count)]
    steps = [index / (most - 1) for index in range(most)]
    return [percentile(ordered, 100 * step) for step in steps], steps


def time_unit(span_s: float) -> tuple[str, float]:
    """Name and length in seconds of the unit for an axis of `span_s`."""
    if span_s < 180:
        return "s", 1.0
    return ("min", 60.0) if span_s < 3 * 3600 else ("h", 3600.0)
