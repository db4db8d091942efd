"""How values spread: over the run, request by request, and within a cell, as shares of all.

Requests, gaps between chunks and tokens of a step, by class and arm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from benchmark.analyse.cells import Cells, Place
from benchmark.analyse.stats import percentile
from benchmark.analyse.values import Records, gaps, request_values
from benchmark.metrics import E2E, INTER_CHUNK_LATENCY, TPOT, TTFT, Metric
from benchmark.plan import Load, Plan
from benchmark.show.canvas import Axis, Figure, Look, Panel, Plot, Points, figure

Members = Sequence[tuple[Look, Records]]
"""By arm, what was recorded at one place, in the order in which it was sent."""
MOST_POINTS = 240
"""Of one arm in one panel; beyond them the time axis is cut into spans."""
SPANS = 60
OVER_TIME = (
    (E2E, "End-to-end latency", "s", 1.0),
    (TPOT, "Time per output token", "ms", 1000.0),
    (TTFT, "Time to first token", "ms", 1000.0),
)
_OVER_TIME_CAPTION = (
    "Each mark is a request, at the moment when it was sent; the dashed line is the arm's median. Where an arm "
    f"has more than {MOST_POINTS} answers, a line shows medians of parts of the time and a band their "
    "10th to 90th percentile. One scale for all classes under the same load. × is a request that failed."
)
_SPREAD = (
    (TPOT, "Distribution of the time per output token", "over requests"),
    (
        INTER_CHUNK_LATENCY,
        "Distribution of the inter-chunk latency",
        "over chunks: the stutter that a reader sees",
    ),
)
_END = 99
"""Percentile at which the axes of values end."""

_Curves = Sequence[tuple[Look, Sequence[float]]]


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
                yield f"{number}-{index}", place, _title(place, cells.plan), members


def _title(place: Place, plan: Plan) -> str:
    return str(place) if len(plan.loads) > 1 else place.class_


def points(plan: Plan, metric: Metric, records: Records, begin_unix_s: float) -> Points:
    """Seconds since the beginning of the run and the value, of each answer that has one."""
    found = []
    for record in records:
        value = request_values(record, plan.arm(record.arm).max_tokens_per_step).get(metric.name)
        if value is not None:
            found.append((record.started_unix_s - begin_unix_s, value))
    return found


def values(plan: Plan, metric: Metric, records: Records) -> list[float]:
    """All values of a metric, sorted; of the inter-chunk latency one for each pair of chunks."""
    if metric is INTER_CHUNK_LATENCY:
        return sorted(gap for record in records if record.error is None for gap in gaps(record))
    return sorted(value for _, value in points(plan, metric, records, 0.0))


def spans(of: Points) -> list[Span]:
    """The points of equal parts of the time, each as its middle and its tenth and ninetieth percentile."""
    begin, end = of[0][0], of[-1][0]
    width = (end - begin) / SPANS or 1.0
    parts: dict[int, list[float]] = {}
    for at_s, value in sorted(of, key=itemgetter(1)):
        parts.setdefault(min(int((at_s - begin) / width), SPANS - 1), []).append(value)
    return [
        Span(begin + (index + 0.5) * width, *(percentile(part, percent) for percent in (10, 50, 90)))
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


def over_time(cells: Cells, arms: Mapping[str, Look]) -> list[Figure]:
    """A figure for each metric with a value."""
    found: list[Figure] = []
    for metric, title, unit, scale in OVER_TIME:
        panels = _time_panels(cells, arms, metric, title, unit, scale)
        caption = "" if found else _OVER_TIME_CAPTION
        name = metric.name.removesuffix("_s")
        found += figure(f"time-{name}", f"{title} over the run", caption, panels, arms.values())
    return found


def _time_panels(
    cells: Cells, arms: Mapping[str, Look], metric: Metric, title: str, unit: str, scale: float
) -> Iterator[Panel]:
    """A panel for each place; all have one time axis, and those under one load one scale."""
    started = [record.started_unix_s for records in cells.requests.values() for record in records]
    begin = min(started, default=0.0)
    time_name, per = time_unit(max(started, default=0.0) - begin)
    x = Axis(
        low=0,
        high=(max(started, default=0.0) - begin) / per or 1,
        title=f"{time_name} since the first request",
    )
    drawn = [
        (id_, place, where, members, [points(cells.plan, metric, records, begin) for _, records in members])
        for id_, place, where, members in places(cells, arms)
    ]
    tops: dict[Load, float] = {}
    for _, place, _, _, lines in drawn:
        tops[place.load] = max(tops.get(place.load, 0.0), *map(_highest, lines))
    for id_, place, where, members, lines in drawn:
        if top := tops[place.load]:
            plot, said = Plot(x, Axis(low=0, high=top * scale * 1.08, title=unit, most=5)), []
            for (look, records), line in zip(members, lines, strict=True):
                scaled = [(at_s / per, value * scale) for at_s, value in line]
                said.append(f"{look.name} {_draw_times(plot, look, scaled, x.high, unit)}")
                plot.crosses((record.started_unix_s - begin) / per for record in records if record.error)
            alt = f"{title} over the run, {where}: {'; '.join(said)}."
            yield plot.panel(f"t{id_}-{metric.name.removesuffix('_s')}", where, alt)


def _draw_times(plot: Plot, look: Look, line: Points, end: float, unit: str) -> str:
    """One arm's values; returns in words what is drawn."""
    if not line:
        return "no value"
    middle = percentile(sorted(value for _, value in line), 50)
    if len(line) > MOST_POINTS:
        parts = spans(line)
        plot.band([(one.at_s, one.low) for one in parts], [(one.at_s, one.high) for one in parts], look)
        plot.line([(one.at_s, one.middle) for one in parts], look)
    else:
        plot.dots(line, look)
        plot.line([(0, middle), (end, middle)], look, dashed=True)
    return f"median {middle:.3g} {unit} of {len(line)} requests"


def _highest(line: Points) -> float:
    """The largest value that is drawn of a line."""
    if len(line) > MOST_POINTS:
        return max(span.high for span in spans(line))
    return max((value for _, value in line), default=0.0)


def distributions(cells: Cells, arms: Mapping[str, Look]) -> list[Figure]:
    """Cumulated shares of two metrics; the panels of a figure have one axis."""
    found = []
    for metric, title, over in _SPREAD:
        caption = (
            f"Share of values, {over}, that are not above the one on the axis; the further left a curve, the "
            f"better. The axis ends where the {_END}th percentile of the slowest arm is, rarer values are beyond it."
        )
        name = metric.name.removesuffix("_s")
        drawn = []
        for id_, _, where, members in places(cells, arms):
            known = [(look, values(cells.plan, metric, records)) for look, records in members]
            if curves := [(look, ordered) for look, ordered in known if ordered]:
                drawn.append((f"d{id_}-{name}", where, curves))
        ends = [percentile(ordered, _END) * 1000 for _, _, curves in drawn for _, ordered in curves]
        x = Axis(low=0, high=max(ends, default=0) * 1.05 or 1, title="ms")
        panels = [_curves(id_, where, metric, curves, x) for id_, where, curves in drawn]
        found += figure(f"spread-{name}", title, caption, panels, arms.values())
    return found


def _curves(id_: str, where: str, metric: Metric, curves: _Curves, x: Axis) -> Panel:
    plot = Plot(x, Axis(low=0, high=100, unit=" %", most=5))
    for look, ordered in curves:
        xs, ys = shares(ordered)
        corners = [(xs[0], 0.0)]
        for value, share in zip(xs, ys, strict=True):
            corners += [(value, corners[-1][1]), (value, share * 100)]
        inside = [(value * 1000, share) for value, share in corners if value * 1000 <= x.high]
        plot.line([*inside, (x.high, inside[-1][1])] if inside else [], look)
        every = max(1, len(xs) // 8)
        plot.dots(
            [(v * 1000, s * 100) for v, s in [*zip(xs, ys, strict=True)][::every] if v * 1000 <= x.high], look
        )
    parts = [
        f"{look.name} median {percentile(ordered, 50) * 1000:.3g} ms, 95th percentile "
        f"{percentile(ordered, 95) * 1000:.3g} ms, n {len(ordered)}"
        for look, ordered in curves
    ]
    return plot.panel(id_, where, f"Cumulated distribution of {metric.name}, {where}: {'; '.join(parts)}.")


def steps(cells: Cells, arms: Mapping[str, Look], summary: Mapping[str, Any]) -> list[Figure]:
    """Bars of how many tokens a step yielded, where a chunk stands for a step; all panels have the same axes."""
    ceilings = {arm.name: arm.max_tokens_per_step for arm in cells.plan.arms if arm.speculative_tokens}
    groups: dict[Place, list[tuple[Look, dict[int, float]]]] = {}
    for cell in summary["cells"]:
        spread, look = cell["acceptance"]["distribution"], arms.get(cell["arm"])
        if look and cell["arm"] in ceilings and spread and not cell["acceptance"]["caution"]:
            total = sum(spread.values())
            bars = {int(tokens): 100 * times / total for tokens, times in spread.items()}
            groups.setdefault(Place.of(cell), []).append((look, bars))
    drawn = [(look, bars) for members in groups.values() for look, bars in members]
    most = max((max(*bars, ceilings[look.name]) for look, bars in drawn), default=1)
    x = Axis(low=0.4, high=most + 0.6, title="tokens of a step", whole=True, most=10)
    y = Axis(
        low=0, high=max((max(bars.values()) for _, bars in drawn), default=100) * 1.05, unit=" %", most=5
    )
    panels = []
    for index, (place, members) in enumerate(groups.items()):
        where, plot, width = _title(place, cells.plan), Plot(x, y), 0.8 / len(members)
        for number, (look, bars) in enumerate(members):
            shift = (number - (len(members) - 1) / 2) * width
            for tokens, share in bars.items():
                plot.bar(tokens + shift, width * 0.95, share, look)
        means = "; ".join(
            f"{look.name} {sum(t * s for t, s in bars.items()) / 100:.2f}" for look, bars in members
        )
        alt = (
            f"Share of decode steps by the tokens that they yielded, {where}. Mean tokens per step: {means}."
        )
        panels.append(plot.panel(f"k{index}", where, alt))
    caption = (
        "Share of decode steps (chunks but the first of each answer) by the tokens that they yielded. Most of it "
        "to the right: the draft is nearly always right; at 1: its work is thrown away."
    )
    legend = dict.fromkeys(look for look, _ in drawn)
    return figure("steps", "Tokens per decode step", caption, panels, legend)
