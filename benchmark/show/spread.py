"""How values spread: over the run, request by request, and within a cell, as shares of all.

Requests, gaps between chunks and tokens of a step, by class and arm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from benchmark.analyse.cells import Cells, Place
from benchmark.analyse.stats import percentile
from benchmark.analyse.values import Records, gaps, request_values
from benchmark.metrics import E2E, INTER_CHUNK_LATENCY, TPOT, TTFT, Metric
from benchmark.plan import Load, Plan
from benchmark.show.canvas import FAILED, Figure, Look, Panel, figure, panel

Members = Sequence[tuple[Look, Records]]
"""By arm, what was recorded at one place, in the order in which it was sent."""
Points = Sequence[tuple[float, float]]
"""Seconds since the beginning of the run, and a value."""

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
    (TTFT, "Distribution of the time to first token", "over requests"),
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
                title = str(place) if len(cells.plan.loads) > 1 else class_
                yield f"{number}-{index}", place, title, members


def points(plan: Plan, metric: Metric, records: Records, begin_unix_s: float) -> Points:
    """Of each answer that has a value."""
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
) -> list[Panel]:
    """A panel for each place; those under one load have one scale."""
    begin = min((r.started_unix_s for records in cells.requests.values() for r in records), default=0.0)
    drawn = [
        (id_, place, where, members, [points(cells.plan, metric, records, begin) for _, records in members])
        for id_, place, where, members in places(cells, arms)
    ]
    tops: dict[Load, float] = {}
    for _, place, _, _, lines in drawn:
        tops[place.load] = max(tops.get(place.load, 0.0), *map(_highest, lines))
    found = []
    for id_, place, where, members, lines in drawn:
        if top := tops[place.load]:
            said = []
            for (look, _), line in zip(members, lines, strict=True):
                ordered = sorted(value for _, value in line)
                middle = f"median {percentile(ordered, 50) * scale:.3g} {unit}" if ordered else "no value"
                said.append(f"{look.arm} {middle} of {len(ordered)} requests")
            draw = partial(_draw_times, members=members, lines=lines, begin=begin, scale=scale)
            found.append(
                panel(
                    f"t{id_}-{metric.name.removesuffix('_s')}",
                    where,
                    f"{title} over the run, {where}: {'; '.join(said)}.",
                    partial(draw, unit=unit, top=top * scale),
                )
            )
    return found


def _highest(line: Points) -> float:
    """The largest value that is drawn of a line."""
    if len(line) > MOST_POINTS:
        return max(span.high for span in spans(line))
    return max((value for _, value in line), default=0.0)


def _draw_times(
    axes: Axes,
    *,
    members: Members,
    lines: Sequence[Points],
    begin: float,
    unit: str,
    scale: float,
    top: float,
) -> None:
    records = [record for _, of_arm in members for record in of_arm]
    time_name, per = time_unit(max(record.started_unix_s for record in records) - begin)
    for (look, _), line in zip(members, lines, strict=True):
        if len(line) > MOST_POINTS:
            band = spans(line)
            times = [span.at_s / per for span in band]
            low, high = [span.low * scale for span in band], [span.high * scale for span in band]
            axes.fill_between(times, low, high, color=look.colour, alpha=0.18, linewidth=0)
            axes.plot(times, [span.middle * scale for span in band], color=look.colour)
        elif line:
            times, heights = [at_s / per for at_s, _ in line], [value * scale for _, value in line]
            axes.plot(
                times, heights, look.marker, color=look.colour, markersize=3.4, markeredgewidth=0, alpha=0.85
            )
            middle = percentile(sorted(heights), 50)
            axes.axhline(middle, color=look.colour, linestyle=(0, (4, 3)), linewidth=0.9)
    failed = [(record.started_unix_s - begin) / per for record in records if record.error]
    if failed:
        axes.plot(failed, [0] * len(failed), "x", color=FAILED, markersize=5, clip_on=False, zorder=5)
    axes.set_ylim(0, top * 1.08)
    axes.set_ylabel(unit)
    axes.set_xlabel(f"since the first request, {time_name}")


def distributions(cells: Cells, arms: Mapping[str, Look], summary: Mapping[str, Any]) -> list[Figure]:
    """Cumulated shares of three metrics, and tokens per step where an arm speculates."""
    found = []
    for metric, title, over in _SPREAD:
        caption = (
            f"Share of values, {over}, that are not above the one on the axis; the further left a curve, the "
            f"better. An axis ends where the {_END}th percentile of the slowest arm does, rarer values lie beyond."
        )
        name = metric.name.removesuffix("_s")
        panels = []
        for id_, _, where, members in places(cells, arms):
            known = [(look, values(cells.plan, metric, records)) for look, records in members]
            if curves := [(look, ordered) for look, ordered in known if ordered]:
                alt = _in_percentiles(metric, where, curves)
                panels.append(panel(f"d{id_}-{name}", where, alt, partial(_draw_curves, curves=curves)))
        found += figure(f"spread-{name}", title, caption, panels, arms.values())
    return found + _tokens(cells, arms, summary)


def _draw_curves(axes: Axes, *, curves: _Curves) -> None:
    for look, ordered in curves:
        xs, ys = shares(ordered)
        axes.step([xs[0], *xs], [0.0, *ys], where="post", color=look.colour)
        shown = slice(None, None, max(1, len(xs) // 8))
        axes.plot(xs[shown], ys[shown], look.marker, color=look.colour, markersize=3.2, markeredgewidth=0)
    axes.set_xlim(0, max(percentile(ordered, _END) for _, ordered in curves) * 1.05 or 1.0)
    axes.set_ylim(0, 1.02)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value * 1000:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("ms")


def _in_percentiles(metric: Metric, where: str, curves: _Curves) -> str:
    parts = [
        f"{look.arm} median {percentile(ordered, 50) * 1000:.3g} ms, 95th percentile "
        f"{percentile(ordered, 95) * 1000:.3g} ms, n {len(ordered)}"
        for look, ordered in curves
    ]
    return f"Cumulated distribution of {metric.name}, {where}: {'; '.join(parts)}."


def _tokens(cells: Cells, arms: Mapping[str, Look], summary: Mapping[str, Any]) -> list[Figure]:
    """Bars of how many tokens a step yielded, where a chunk stands for a step."""
    plan = cells.plan
    speculating = {arm.name: arm for arm in plan.arms if arm.speculative_tokens}
    groups: dict[Place, list[tuple[Look, dict[int, float], int]]] = {}
    for cell in summary["cells"]:
        spread = cell["acceptance"]["distribution"]
        if cell["arm"] in speculating and spread and not cell["acceptance"]["caution"]:
            total = sum(spread.values())
            bars = {int(tokens): times / total for tokens, times in spread.items()}
            ceiling = speculating[cell["arm"]].max_tokens_per_step
            groups.setdefault(Place.of(cell), []).append((arms[cell["arm"]], bars, ceiling))
    panels = []
    for index, (place, members) in enumerate(groups.items()):
        where = str(place) if len(plan.loads) > 1 else place.class_
        means = "; ".join(
            f"{look.arm} {sum(t * s for t, s in bars.items()):.2f}" for look, bars, _ in members
        )
        alt = (
            f"Share of decode steps by the tokens that they yielded, {where}. Mean tokens per step: {means}."
        )
        panels.append(panel(f"k{index}", where, alt, partial(_draw_bars, members=members)))
    caption = (
        "Share of decode steps (chunks but the first of each answer) by the tokens that they yielded. Most of it "
        "to the right: the draft is nearly always right; at 1: its work is thrown away."
    )
    return figure("steps", "Tokens per decode step", caption, panels, [arms[name] for name in speculating])


def _draw_bars(axes: Axes, *, members: Sequence[tuple[Look, dict[int, float], int]]) -> None:
    width = 0.8 / len(members)
    for index, (look, bars, _) in enumerate(members):
        shift = (index - (len(members) - 1) / 2) * width
        axes.bar(
            [tokens + shift for tokens in bars], list(bars.values()), width=width * 0.95, color=look.colour
        )
    most = max(max(*bars, ceiling) for _, bars, ceiling in members)
    axes.set_xlim(0.4, most + 0.6)
    axes.set_xlabel("tokens of a step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
