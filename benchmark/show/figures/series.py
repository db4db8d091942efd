"""What figures draw, taken from raw records: values over time, and sorted values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmark.analyse.cells import Cells, Place
from benchmark.analyse.stats import percentile
from benchmark.analyse.values import gaps, request_values
from benchmark.measure.records import RequestRecord
from benchmark.metrics import INTER_CHUNK_LATENCY, Metric
from benchmark.plan import Plan
from benchmark.show.figures.canvas import Look

Members = Sequence[tuple[Look, Sequence[RequestRecord]]]
"""By arm, what was recorded at one place, in the order in which it was sent."""
Points = Sequence[tuple[float, float]]
"""Seconds since the beginning of the run, and a value."""

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


def places(cells: Cells, arms: Mapping[str, Look]) -> Iterator[tuple[str, Place, str, Members]]:
    """Each place with a record: an identifier, the place, its name in a title, and what is there."""
    for number, load in enumerate(cells.plan.loads):
        for index, class_ in enumerate(cells.plan.classes):
            place = Place(class_, load)
            members = [
                (look, sorted(records, key=lambda one: one.started_unix_s))
                for arm, look in arms.items()
                if (records := cells.requests.get((arm, place)))
            ]
            if members:
                title = str(place) if len(cells.plan.loads) > 1 else class_
                yield f"{number}-{index}", place, title, members


def points(plan: Plan, metric: Metric, records: Sequence[RequestRecord], begin_unix_s: float) -> Points:
    """Of each answer that has a value."""
    found = []
    for record in records:
        value = request_values(record, plan.arm(record.arm).max_tokens_per_step).get(metric.name)
        if value is not None:
            found.append((record.started_unix_s - begin_unix_s, value))
    return found


def values(plan: Plan, metric: Metric, records: Sequence[RequestRecord]) -> list[float]:
    """All values of a metric, sorted; of the inter-chunk latency one for each pair of chunks."""
    if metric is INTER_CHUNK_LATENCY:
        return sorted(gap for record in records if record.error is None for gap in gaps(record))
    return sorted(value for _, value in points(plan, metric, records, 0.0))


def spans(of: Points) -> list[Span]:
    """The points of equal parts of the time, each as its middle and its tenth and ninetieth percentile."""
    begin, end = of[0][0], of[-1][0]
    width = (end - begin) / SPANS or 1.0
    parts: dict[int, list[float]] = {}
    for at_s, value in of:
        parts.setdefault(min(int((at_s - begin) / width), SPANS - 1), []).append(value)
    return [
        Span(begin + (index + 0.5) * width, *(percentile(sorted(part), percent) for percent in (10, 50, 90)))
        for index, part in sorted(parts.items())
    ]


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
