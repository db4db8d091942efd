"""End-to-end time, time per output token and time to first token over the run, by class and arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes

from benchmark.analyse.cells import Cells
from benchmark.analyse.stats import percentile
from benchmark.metrics import E2E, TPOT, TTFT, Metric
from benchmark.plan import Load
from benchmark.show.figures.canvas import FAILED, Figure, Look, Panel, figure, panel
from benchmark.show.figures.series import (
    MOST_POINTS,
    Members,
    Points,
    Span,
    places,
    points,
    spans,
    time_unit,
)

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
            draw = partial(_draw_times, members=members, lines=lines, begin=begin, scale=scale)
            said = [_median(look, line, unit, scale) for (look, _), line in zip(members, lines, strict=True)]
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


def _median(look: Look, line: Points, unit: str, scale: float) -> str:
    ordered = sorted(value for _, value in line)
    middle = f"median {percentile(ordered, 50) * scale:.3g} {unit}" if ordered else "no value"
    return f"{look.arm} {middle} of {len(ordered)} requests"


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
            _draw_band(axes, look, spans(line), per, scale)
        elif line:
            _draw_marks(axes, look, line, per, scale)
    failed = [(record.started_unix_s - begin) / per for record in records if record.error]
    if failed:
        axes.plot(failed, [0] * len(failed), "x", color=FAILED, markersize=5, clip_on=False, zorder=5)
    axes.set_ylim(0, top * 1.08)
    axes.set_ylabel(unit)
    axes.set_xlabel(f"since the first request, {time_name}")


def _draw_marks(axes: Axes, look: Look, line: Points, per: float, scale: float) -> None:
    times = [at_s / per for at_s, _ in line]
    heights = [value * scale for _, value in line]
    axes.plot(times, heights, look.marker, color=look.colour, markersize=3.4, markeredgewidth=0, alpha=0.85)
    middle = percentile(sorted(heights), 50)
    axes.axhline(middle, color=look.colour, linestyle=(0, (4, 3)), linewidth=0.9)


def _draw_band(axes: Axes, look: Look, band: Sequence[Span], per: float, scale: float) -> None:
    times = [span.at_s / per for span in band]
    low, high = [span.low * scale for span in band], [span.high * scale for span in band]
    axes.fill_between(times, low, high, color=look.colour, alpha=0.18, linewidth=0)
    axes.plot(times, [span.middle * scale for span in band], color=look.colour)
