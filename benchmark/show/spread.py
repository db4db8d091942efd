"""How values spread: over the run, request by request, and within a cell, as shares of all.

By class and arm; the panels of a figure have the same axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmark.analyse.cells import Cells, Place
from benchmark.analyse.stats import percentile
from benchmark.analyse.values import Records, gaps, request_values
from benchmark.metrics import E2E, INTER_CHUNK_LATENCY, TPOT, TTFT, Metric
from benchmark.plan import Plan
from benchmark.show.canvas import Axis, Figure, Look, Panel, Plot, Points, figure

Members = Sequence[tuple[Look, Records]]
"""The requests of each arm at one place, in the order in which they were sent."""
MOST_POINTS = 240
"""Marks of one arm in one panel."""
OVER_TIME = (
    (E2E, "s", 1.0),
    (TPOT, "ms", 1000.0),
    (TTFT, "ms", 1000.0),
)
_OVER_TIME_CAPTION = (
    "Each mark is a request, at the moment when it was sent; the dashed line is the arm's median. Of an arm with more than "
    f"{MOST_POINTS} answers in a class, that many are drawn, evenly over the run. × is a request that failed."
)
_SPREAD = (
    (TPOT, "over requests"),
    (INTER_CHUNK_LATENCY, "over chunks: how even the text appears"),
)
_END = 99
"""Percentile at which the axes of values end."""
_Times = tuple[Look, Points, Sequence[float], Sequence[float]]
"""An arm's marks, its failures and its sorted values."""
_Curves = Sequence[tuple[Look, Sequence[float]]]


def places(cells: Cells, arms: Mapping[str, Look]) -> Iterator[tuple[str, str, Members]]:
    """Each class and load with a record: an identifier, its name in a title, and what is there."""
    for number, load in enumerate(cells.plan.loads):
        for index, class_ in enumerate(cells.plan.classes):
            place = Place(class_, load)
            members = [
                (look, sorted(records, key=lambda one: one.started_unix_s))
                for arm, look in arms.items()
                if (records := cells.requests.get((arm, place)))
            ]
            if members:
                yield f"{number}-{index}", str(place) if len(cells.plan.loads) > 1 else class_, members


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


def shares(ordered: Sequence[float], most: int = 200) -> Points:
    """Values and the share of all that is not above each, in at most `most` steps."""
    count = len(ordered)
    if count <= most:
        return [(value, (index + 1) / count) for index, value in enumerate(ordered)]
    return [(percentile(ordered, 100 * index / (most - 1)), index / (most - 1)) for index in range(most)]


def time_unit(span_s: float) -> tuple[str, float]:
    """Name and length in seconds of the unit for an axis of `span_s`."""
    if span_s < 180:
        return "s", 1.0
    return ("min", 60.0) if span_s < 3 * 3600 else ("h", 3600.0)


def over_time(cells: Cells, arms: Mapping[str, Look]) -> list[Figure]:
    """A figure for each metric with a value."""
    started = [record.started_unix_s for records in cells.requests.values() for record in records] or [0.0]
    begin, (time_name, per) = min(started), time_unit(max(started) - min(started))
    x = Axis(low=0, high=(max(started) - begin) / per or 1, title=f"{time_name} since the first request")
    found: list[Figure] = []
    for metric, unit, scale in OVER_TIME:
        panels, top, title = [], 0.0, f"{metric.title} over the run"
        for id_, where, members in places(cells, arms):
            lines = []
            for look, records in members:
                line = [(at_s / per, v * scale) for at_s, v in points(cells.plan, metric, records, begin)]
                failed = [(record.started_unix_s - begin) / per for record in records if record.error]
                lines.append(
                    (look, line[:: -(-len(line) // MOST_POINTS) or 1], failed, sorted(v for _, v in line))
                )
            top = max([top, *(ordered[-1] for *_, ordered in lines if ordered)])
            panels.append((f"t{id_}-{metric.name.removesuffix('_s')}", where, lines))
        if top:
            y = Axis(low=0, high=top * 1.08, title=unit, most=5)
            drawn = [_times(id_, title, where, lines, Plot(x, y)) for id_, where, lines in panels]
            id_, caption = f"time-{metric.name.removesuffix('_s')}", "" if found else _OVER_TIME_CAPTION
            found += figure(id_, title, caption, drawn, arms.values())
    return found


def _times(id_: str, title: str, where: str, lines: Sequence[_Times], plot: Plot) -> Panel:
    said = []
    for look, line, failed, ordered in lines:
        plot.dots(line, look)
        plot.crosses(failed)
        if ordered:
            middle = percentile(ordered, 50)
            plot.line([(plot.x.low, middle), (plot.x.high, middle)], look, dashed=True)
            said.append(f"{look.name} median {middle:.3g} {plot.y.title} of {len(ordered)} requests")
    return plot.panel(id_, where, f"{title}, {where}: {'; '.join(said) or 'no value'}.")


def distributions(cells: Cells, arms: Mapping[str, Look]) -> list[Figure]:
    """Cumulative shares of two metrics."""
    found = []
    for metric, over in _SPREAD:
        caption = (
            f"Share of values, {over}, that are not above the one on the axis; the further left a curve, the "
            f"better. The axis ends where the {_END}th percentile of the slowest arm is, rarer values are beyond it."
        )
        name = metric.name.removesuffix("_s")
        title = f"Distribution of the {metric.title[0].lower()}{metric.title[1:]}"
        drawn = []
        for id_, where, members in places(cells, arms):
            known = [
                (look, [1000 * v for v in values(cells.plan, metric, records)]) for look, records in members
            ]
            if curves := [(look, ordered) for look, ordered in known if ordered]:
                drawn.append((f"d{id_}-{name}", where, curves))
        ends = [percentile(ordered, _END) for _, _, curves in drawn for _, ordered in curves]
        x = Axis(low=0, high=max(ends, default=0) * 1.05 or 1, title="ms")
        panels = [_curves(id_, where, metric, curves, x) for id_, where, curves in drawn]
        found += figure(f"spread-{name}", title, caption, panels, arms.values())
    return found


def _curves(id_: str, where: str, metric: Metric, curves: _Curves, x: Axis) -> Panel:
    plot, said = Plot(x, Axis(low=0, high=100, unit=" %", most=5)), []
    for look, ordered in curves:
        steps = [(value, 100 * share) for value, share in shares(ordered) if value <= x.high]
        corners = [(steps[0][0], 0.0)] if steps else []
        for value, share in steps:
            corners += [(value, corners[-1][1]), (value, share)]
        plot.line([*corners, *((x.high, share) for _, share in corners[-1:])], look)
        plot.dots(steps[:: max(1, len(steps) // 8)], look)
        middle, tail = percentile(ordered, 50), percentile(ordered, 95)
        said.append(f"{look.name} median {middle:.3g} ms, 95th percentile {tail:.3g} ms, n {len(ordered)}")
    return plot.panel(id_, where, f"Cumulative distribution of {metric.name}, {where}: {'; '.join(said)}.")
