"""End-to-end time, time per output token and time to first token over the run, by class and arm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from matplotlib.axes import Axes

from benchmark.analyse.stats import percentile
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from benchmark.metrics import E2E, TPOT, TTFT, Metric
from benchmark.plan import Load, Plan
from benchmark.show.figures import series
from benchmark.show.figures.canvas import FAILED, Figure, Look, Panel, looks, panel
from benchmark.show.wording import load_text

SHOWN = (
    (E2E, "End-to-end latency", "s", 1.0),
    (TPOT, "Time per output token", "ms", 1000.0),
    (TTFT, "Time to first token", "ms", 1000.0),
)
CAPTION = (
    "Each mark is a request, at the moment when it was sent; the dashed line is the arm's median. Where an arm "
    f"has more than {series.MOST_POINTS} answers, a line shows medians of parts of the time and a band their "
    "10th to 90th percentile. One scale for all classes under the same load. × is a request that failed."
)


def figures(raw: RawRun) -> list[Figure]:
    """A figure for each metric with a value."""
    plan = raw.plan
    cells = series.cells_of(raw)
    arms = looks([arm.name for arm in plan.arms])
    found: list[Figure] = []
    for metric, title, unit, scale in SHOWN:
        panels = tuple(_panels(plan, cells, arms, (metric, title, unit, scale)))
        if panels:
            name = metric.name.removesuffix("_s")
            found.append(
                Figure(
                    id=f"time-{name}",
                    title=f"{title} over the run",
                    caption="" if found else CAPTION,
                    panels=panels,
                    arms=tuple(arms.values()),
                )
            )
    return found


def _panels(
    plan: Plan, cells: series.Cells, arms: dict[str, Look], shown: tuple[Metric, str, str, float]
) -> Iterator[Panel]:
    metric, title, unit, scale = shown
    begin = min((r.started_unix_s for records in cells.values() for r in records), default=0.0)
    for number, load in enumerate(plan.loads):
        top = _top(plan, metric, cells, load) * scale
        for index, class_ in enumerate(plan.classes):
            members = [(arms[arm], cells[key]) for arm in arms if (key := (arm, class_, load)) in cells]
            if not members or not top:
                continue
            where = (
                class_
                if len(plan.loads) == 1
                else f"{class_}, {load_text(load.concurrency, load.rate_per_s)}"
            )
            draw = partial(_draw, plan=plan, metric=metric, members=members, begin=begin)
            yield panel(
                f"t{number}-{index}-{metric.name.removesuffix('_s')}",
                where,
                _alt(plan, metric, title, where, members, (unit, scale)),
                partial(draw, axis=(unit, scale, top)),
            )


def _draw(
    axes: Axes,
    *,
    plan: Plan,
    metric: Metric,
    members: Sequence[tuple[Look, Sequence[RequestRecord]]],
    begin: float,
    axis: tuple[str, float, float],
) -> None:
    unit, scale, top = axis
    ends = [record.started_unix_s - begin for _, records in members for record in records]
    time_name, per = series.time_unit(max(ends))
    for look, records in members:
        points = series.over_time(plan, metric, records, begin)
        if len(points) > series.MOST_POINTS:
            _band(axes, look, series.spans(points), per, scale)
        elif points:
            _marks(axes, look, points, per, scale)
    failed = [(r.started_unix_s - begin) / per for _, records in members for r in records if r.error]
    if failed:
        axes.plot(failed, [0] * len(failed), "x", color=FAILED, markersize=5, clip_on=False, zorder=5)
    axes.set_ylim(0, top * 1.08)
    axes.set_ylabel(unit)
    axes.set_xlabel(f"since the first request, {time_name}")


def _marks(axes: Axes, look: Look, points: list[tuple[float, float]], per: float, scale: float) -> None:
    times = [at_s / per for at_s, _ in points]
    heights = [value * scale for _, value in points]
    axes.plot(times, heights, look.marker, color=look.colour, markersize=3.4, markeredgewidth=0, alpha=0.85)
    middle = percentile(sorted(heights), 50)
    axes.axhline(middle, color=look.colour, linestyle=(0, (4, 3)), linewidth=0.9)


def _band(axes: Axes, look: Look, spans: list[series.Span], per: float, scale: float) -> None:
    times = [span.at_s / per for span in spans]
    low, high = [span.low * scale for span in spans], [span.high * scale for span in spans]
    axes.fill_between(times, low, high, color=look.colour, alpha=0.18, linewidth=0)
    axes.plot(times, [span.middle * scale for span in spans], color=look.colour)


def _top(plan: Plan, metric: Metric, cells: series.Cells, load: Load) -> float:
    """The largest value that is drawn under `load`."""
    tops = [0.0]
    for (_, _, at), records in cells.items():
        points = series.over_time(plan, metric, records, 0.0) if at == load else []
        if len(points) > series.MOST_POINTS:
            tops += [span.high for span in series.spans(points)]
        else:
            tops += [value for _, value in points]
    return max(tops)


def _alt(
    plan: Plan,
    metric: Metric,
    title: str,
    where: str,
    members: Sequence[tuple[Look, Sequence[RequestRecord]]],
    axis: tuple[str, float],
) -> str:
    unit, scale = axis
    parts = []
    for look, records in members:
        ordered = series.values(plan, metric, records)
        middle = f"median {percentile(ordered, 50) * scale:.3g} {unit}" if ordered else "no value"
        parts.append(f"{look.arm} {middle} of {len(ordered)} requests")
    return f"{title} over the run, {where}: {'; '.join(parts)}."
