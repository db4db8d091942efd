"""The figures of the page, and its tables with a mark in each row. Panels of one figure, and tables that are compared, have the same
axes.

The window is the number of draft tokens per step. Values by window are measured if arms of one family had several windows, and
otherwise predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trnspec.benchmark.analyse.cells import RequestsByCell
from trnspec.benchmark.analyse.decision import AtLoad
from trnspec.benchmark.analyse.request_table import CellKey, Requests
from trnspec.benchmark.analyse.result import Comparison, Result, Verdict
from trnspec.benchmark.analyse.sentences import interval, money
from trnspec.benchmark.analyse.speed_up import EQUIVALENT
from trnspec.benchmark.analyse.statistics import Array
from trnspec.benchmark.analyse.values import gaps
from trnspec.benchmark.metrics import COMPARED, E2E, INTER_CHUNK_LATENCY, TPOT, TTFT, Metric
from trnspec.benchmark.plan import Load
from trnspec.benchmark.show.drawing import (
    FAILED,
    LEVEL,
    NARROW,
    WIDE,
    Axis,
    Figure,
    Look,
    Plot,
    Points,
    looks,
    ratio_axis,
)
from trnspec.benchmark.show.tables import Row, RowPlot, Table, change, ms, plain

Arms = Mapping[str, Look]
ALL_CLASSES = "all classes"
MAX_POINTS = 240
"""The maximum number of marks of one arm in one panel."""
_TIMES = ((E2E, "s", 1.0), (TPOT, "ms", 1000.0), (TTFT, "ms", 1000.0))
_SPREAD = (
    (TPOT, "requests"),
    (INTER_CHUNK_LATENCY, "pauses between chunks, which show how evenly the text appears,"),
)
_END = 99
"""The percentile at which the axes of values end."""
_MAX_STEPS = 200
"""The maximum number of steps of a distribution."""
_DASHED = "mark line dashed"
_NUMBERS = ("speed-up [95 %]", "ms per token", "$ per million tokens")
_TAILS = ("ms per token, p95", "ms to first token", "ms to first token, p95")


def against_windows(loads: Sequence[AtLoad], predicted: Sequence[Mapping[str, Any]]) -> Iterator[Figure]:
    """Speed-up against window, with a panel for each family of arms and each load: measured if several windows were run, else predicted. No
    panel if only one window is known."""
    gains: dict[tuple[str, Load, str], list[Comparison]] = {}
    for at in loads:
        for gain in (*at.by_window, *at.by_arm):
            if gain.window and gain.ratio:
                gains.setdefault((gain.family, at.load, gain.class_ or ALL_CLASSES), []).append(gain)
    arms = {(gain.family, gain.treatment) for own in gains.values() for gain in own}
    formula: dict[tuple[str, Load, str], Points] = {}
    for row in predicted:
        place, families = CellKey.of(row), [family for family, arm in arms if arm == row["arm"]]
        for family in families if len([arm for one, arm in arms if [one] == families]) == 1 else ():
            formula[family, place.load, place.class_] = [(at["k"], at["speed_up"]) for at in row["by_k"]]
    lines = {key: sorted((g.window, g.ratio or 1.0) for g in gains.get(key, ())) for key in gains | formula}
    shown = {key: line if len(line) > 1 else formula.get(key, line) for key, line in lines.items()}
    where = list(dict.fromkeys(key[:2] for key, line in shown.items() if len(line) > 1))
    lines = {key: line for key, line in lines.items() if key[:2] in where}
    points = [point for key, line in lines.items() for point in (*line, *formula.get(key, ()))]
    last, highest = (max((point[i] for point in points), default=1) for i in (0, 1))
    x = Axis(high=last + 0.4, title="window (draft tokens)", whole=True, max_ticks=8)
    y, width = Axis(high=highest * 1.15, unit="×", max_ticks=5), WIDE if len(where) == 1 else NARROW
    styles, panels = looks(("", *dict.fromkeys(class_ for *_, class_ in lines))), []
    for index, (family, load) in enumerate(where):
        title = f"{family}, {load.in_words}" if len({load for _, load in where}) > 1 else family
        plot = Plot(f"w{index}", title, x, y, width, f"Speed-up against the window, {title}")
        plot.line([(x.low, 1), (x.high, 1)], LEVEL)
        for key, line in ((key, line) for key, line in lines.items() if key[:2] == (family, load)):
            look, best = styles[key[2]], max(shown[key], key=lambda point: point[1])
            for gain in gains.get(key, ()):
                plot.interval((gain.window, gain.window), (gain.ci_low, gain.ci_high), look)
            plot.line(formula.get(key, ()), look, _DASHED)
            plot.line(line if len(line) > 1 else (), look)
            plot.dots(line, look)
            kind = "observed" if shown[key] == line else "predicted"
            plot.said.append(f"{key[2]} {kind}, best {best[1]:.2f} with {best[0]:g} draft tokens")
        panels.append(plot)
    yield Figure("windows", "Speed-up against the window", panels, [*styles.values()][1:], {})


def _places(cells: RequestsByCell, arms: Arms) -> Iterator[tuple[str, str, Sequence[tuple[Look, Requests]]]]:
    """Each class and load with requests: an identifier, a title, and the requests of each arm."""
    for number, load in enumerate(cells.plan.loads):
        for index, class_ in enumerate(cells.plan.classes):
            place = CellKey(class_, load)
            members = [
                (look, cells.requests[arm, place])
                for arm, look in arms.items()
                if (arm, place) in cells.requests
            ]
            if members:
                yield f"{number}-{index}", str(place) if len(cells.plan.loads) > 1 else class_, members


def over_time(cells: RequestsByCell, arms: Arms) -> Iterator[Figure]:
    """A figure for each metric with values: every request over time."""
    known = [
        (id_, where, [(look, own, _started(own)) for look, own in members])
        for id_, where, members in _places(cells, arms)
    ]
    started = [at_s for own in cells.requests.values() for at_s in _started(own)] or [0.0]
    begin, span_s = min(started), max(started) - min(started)
    units = (("s", 1.0, 180.0), ("min", 60.0, 3 * 3600.0), ("h", 3600.0, float("inf")))
    time_name, per = next((name, length) for name, length, maximum in units if span_s < maximum)
    x = Axis(high=span_s / per or 1, title=f"{time_name} since the first request")
    for metric, unit, scale in _TIMES:
        name, title, panels = metric.name.removesuffix("_s"), f"{metric.title} over the run", []
        top = max(
            (_known(own, metric).max(initial=0) * scale for *_, lines in known for _, own, _ in lines),
            default=0.0,
        )
        y = Axis(high=top * 1.08 or 1, title=unit, max_ticks=5)
        for id_, where, lines in known if top else ():
            plot = Plot(f"t{id_}-{name}", where, x, y, NARROW, f"{title}, {where}")
            for look, own, at_s in lines:
                values, order = own.metrics[metric.name] * scale, np.argsort(at_s, kind="stable")
                line = [((at_s[i] - begin) / per, values[i]) for i in order if not np.isnan(values[i])]
                plot.dots(line[:: -(-len(line) // MAX_POINTS) or 1], look)
                failures = [((at_s[i] - begin) / per, y.low) for i in order if not own.ok[i]]
                plot.dots(failures, FAILED, "mark cross")
                if line:
                    middle = float(np.nanmedian(values))
                    plot.line([(x.low, middle), (x.high, middle)], look, _DASHED)
                    plot.said.append(f"{look.name} median {middle:.3g} {unit} of {len(line)} requests")
            panels.append(plot)
        yield Figure(f"time-{name}", title, panels, [*arms.values()], {"metric": metric})


def _started(requests: Requests) -> Array:
    return np.array([one.started_unix_s for one in requests.answers], float)


def _known(requests: Requests, metric: Metric) -> Array:
    values = requests.metrics[metric.name]
    return values[~np.isnan(values)]


def distributions(cells: RequestsByCell, arms: Arms) -> Iterator[Figure]:
    """Cumulative shares of two metrics. The inter-chunk latency has a value for each pair of chunks."""
    for metric, over in _SPREAD:
        name, known = metric.name.removesuffix("_s"), []
        for id_, where, members in _places(cells, arms):
            curves = []
            for look, own in members:
                if metric is INTER_CHUNK_LATENCY:
                    values = np.array([gap for one in own.answered.answers for gap in gaps(one)], float)
                else:
                    values = _known(own, metric)
                if len(values):
                    curves.append((look, np.sort(1000 * values)))
            known += [(id_, where, curves)] if curves else []
        ends = [float(np.percentile(ordered, _END)) for *_, curves in known for _, ordered in curves]
        x = Axis(high=max(ends, default=0) * 1.05 or 1, title="ms")
        y, panels = Axis(high=100, unit=" %", max_ticks=5), []
        for id_, where, curves in known:
            what = f"Cumulative distribution of the {metric.title[0].lower()}{metric.title[1:]}, {where}"
            plot = Plot(f"d{id_}-{name}", where, x, y, NARROW, what)
            for look, ordered in curves:
                steps = [(value, share) for value, share in _shares(ordered) if value <= x.high]
                corners = [(steps[0][0], 0.0)] if steps else []
                for value, share in steps:
                    corners += [(value, corners[-1][1]), (value, share)]
                plot.line([*corners, *((x.high, share) for _, share in corners[-1:])], look)
                plot.dots(steps[:: max(1, len(steps) // 8)], look)
                middle, tail = np.percentile(ordered, (50, 95))
                text = f"{look.name} median {middle:.3g} ms, 95th percentile {tail:.3g} ms, n {len(ordered)}"
                plot.said.append(text)
            panels.append(plot)
        title = f"Distribution of the {metric.title[0].lower()}{metric.title[1:]}"
        yield Figure(f"spread-{name}", title, panels, [*arms.values()], {"over": over})


def _shares(ordered: Array) -> Points:
    """(value, percentage of values that are not above it), in a limited number of steps."""
    count = len(ordered)
    if count <= _MAX_STEPS:
        return [(float(value), 100 * ((index + 1) / count)) for index, value in enumerate(ordered)]
    shares = np.linspace(0, 100, _MAX_STEPS)
    return list(zip(np.percentile(ordered, shares).tolist(), shares.tolist(), strict=True))


def answer(result: Result, at: AtLoad, axis: Axis) -> Table:
    """The best treatment of each class, with medians and 95th percentiles of its requests, then the best treatment over all classes;
    empty if nothing could be compared."""
    gains = [*at.by_class, *([at.mix] if at.mix and len(at.by_class) > 1 else ())]
    known = gains if any(gain.ratio for gain in gains) else []
    rows = [((gain.class_ or ALL_CLASSES, gain.treatment), gain) for gain in known]
    total, title = len(gains) > len(at.by_class), f"Speed-up by class, {at.load.in_words}"
    cells = {(cell.place, cell.arm): cell for cell in result.cells}

    def tails(gain: Comparison) -> Row:
        pair = [cells.get((gain.place, arm)) for arm in (gain.baseline, gain.treatment)]
        known = (
            [getattr(getattr(cell, metric.name, None), part, None) for cell in pair]
            for metric, part in ((TPOT, "p95"), (TTFT, "p50"), (TTFT, "p95"))
        )
        return tuple(change(before, after, ms, "→") if gain.class_ else "" for before, after in known)

    return _of_gains(title, ("class", "arm"), rows, axis, total=total, tails=tails)


def treatments(at: AtLoad, axis: Axis) -> Table:
    """Every treatment over all classes, the best first; empty if there is only one."""
    rows = [((gain.treatment, gain.baseline), gain) for gain in at.by_arm if len(at.by_arm) > 1]
    return _of_gains(f"Arms over {ALL_CLASSES}", ("arm", "baseline"), rows, axis)


def _of_gains(
    title: str,
    names: Row,
    gains: Sequence[tuple[Row, Comparison]],
    axis: Axis,
    *,
    total: bool = False,
    tails: Callable[[Comparison], Row] | None = None,
) -> Table:
    """`tails`: more columns, before the dollars."""
    rows, more = [], _TAILS if tails else ()
    for words, gain in gains:
        times = change(gain.baseline_tpot_s, gain.treatment_tpot_s, ms, "→")
        dollars = change(gain.usd_before, gain.usd_after, money, "→")
        speed_up, plot = _compared(axis, gain)
        rows.append(((*words, speed_up, times, *(tails(gain) if tails else ()), dollars), plot))
    headings = (*names, *_NUMBERS[:2], *more, _NUMBERS[2])
    return pictured(title, headings, rows, axis, total=total)


def _compared(axis: Axis, one: Comparison) -> tuple[str, RowPlot]:
    """A verdict with its ratio and interval, if known, and their picture."""
    text, ends = str(one.verdict), (one.ci_low, one.ci_high)
    text += "" if one.ratio is None else f": {one.ratio:.2f}×{interval(*ends)}"
    return text, row_plot(axis, one.verdict, one.ratio, *ends)


def by_other_metrics(result: Result, at: AtLoad) -> Iterator[Table]:
    """The same arms and classes by the other metrics, on one axis."""
    wanted = {(at.load, one.class_, one.baseline, one.treatment) for one in at.by_class}
    compared = (one for one in result.comparisons if one.ratio)
    known = [one for one in compared if (one.load, one.class_, one.baseline, one.treatment) in wanted]
    axis = ratio_axis((one.ratio, one.ci_low, one.ci_high) for one in known)
    for metric in COMPARED[1:]:
        rows = []
        for one in (one for one in known if one.metric == metric.name):
            speed_up, plot = _compared(axis, one)
            rows.append(((one.class_ or "", one.treatment, speed_up), plot))
        if table := pictured(metric.title, ("class", "arm", _NUMBERS[0]), rows, axis):
            yield table


def step_costs(at: AtLoad) -> Table:
    """Tokens per step against the cost of a step, for drafting arms with known steps."""
    known = [(gain, gain.tokens_per_step, gain.step_cost) for gain in at.by_class if gain.window]
    steps = [(gain, tokens, cost) for gain, tokens, cost in known if tokens and cost]
    axis = Axis(high=max((max(tokens, cost) for _, tokens, cost in steps), default=1) * 1.05)
    rows = []
    for gain, tokens, cost in steps:
        expected, measured = f"{tokens / cost:.2f}×", plain(gain.ratio, ".2f", "×")
        row = (gain.class_ or "", gain.treatment, f"{tokens:.2f}", f"{cost:.2f}", expected, measured)
        shapes = ("bar", f"M0 10H{axis.percent(tokens)}"), ("need", f"M{axis.percent(cost)} 2v16")
        rows.append((row, RowPlot(verdict_class(gain.verdict), shapes)))
    headings = ("class", "arm", "tokens per step", "cost of a step", "expected speed-up", "observed speed-up")
    return pictured("Tokens per step", headings, rows, axis)


def acceptance(result: Result, at: AtLoad) -> Iterator[Figure]:
    """The share of steps in which draft 1, 2, ... was accepted, with a panel for each arm that drafts and a line for each class."""
    drafted = [cell for cell in result.cells if cell.load == at.load and cell.acceptance.per_position]
    styles = looks(("", *dict.fromkeys(cell.class_ or "" for cell in drafted)))
    most = max((len(cell.acceptance.per_position or ()) for cell in drafted), default=1)
    x = Axis(high=most + 0.4, title="draft position", whole=True, max_ticks=8)
    y = Axis(high=100, unit=" %", max_ticks=5)
    panels, arms = [], dict.fromkeys(cell.arm for cell in drafted)
    for index, arm in enumerate(arms):
        title = f"Accepted drafts by position, {arm}"
        plot = Plot(f"a{index}", arm, x, y, WIDE if len(arms) == 1 else NARROW, title)
        for cell in (cell for cell in drafted if cell.arm == arm):
            shares = [100 * share for share in cell.acceptance.per_position or ()]
            points, look = [*enumerate(shares, start=1)], styles[cell.class_ or ""]
            plot.line(points, look)
            plot.dots(points, look)
            plot.said.append(f"{cell.class_} {', '.join(f'{share:.0f} %' for share in shares)}")
        panels.append(plot)
    yield Figure("acceptance", "Accepted drafts by position", panels, [*styles.values()][1:], {})


def verdict_class(verdict: Verdict) -> str:
    """The class of a verdict in the style sheet."""
    return verdict.replace(" ", "-")


def row_plot(
    axis: Axis, verdict: Verdict, ratio: float | None, low: float | None, high: float | None
) -> RowPlot:
    """A line for the interval and a mark for the ratio. The mark is hollow if there are too few prompts for a verdict."""
    if ratio is None:
        return RowPlot(verdict_class(verdict), ())
    at, begin, end = (axis.percent(value or ratio) for value in (ratio, low, high))
    shapes = [("range", f"M{begin} 10H{end}"), ("point", f"M{at} 10h0")]
    hole = [("hole", f"M{at} 10h0")] if verdict == "too few prompts" else []
    return RowPlot(verdict_class(verdict), (*shapes, *hole))


def pictured(
    title: str,
    headings: Row,
    rows: Sequence[tuple[Row, RowPlot]],
    axis: Axis,
    *,
    total: bool = False,
    shaded: tuple[float, ...] = EQUIVALENT,
) -> Table:
    """A table with a plot in each row."""
    words, plots = [row for row, _ in rows], [plot for _, plot in rows]
    return Table(title, headings, words, 2, plots, axis, shaded if axis.log else (), total)
