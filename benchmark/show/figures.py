"""Figures: speed-up against the window and against the load, what an arm delivers at each load, values over the run and
their distributions. Panels of one figure have the same axes.

The window is the number of speculative tokens: measured where arms of one family had several, else predicted from the one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmark.analyse.cells import Cells, Place
from benchmark.analyse.comparison import EQUIVALENT
from benchmark.analyse.decision import AtLoad, Gain
from benchmark.analyse.sentences import in_words, interval
from benchmark.analyse.stats import percentile
from benchmark.analyse.values import Records, gaps, request_values
from benchmark.metrics import E2E, INTER_CHUNK_LATENCY, TPOT, TTFT, Metric
from benchmark.objectives import limits
from benchmark.plan import Load, Plan
from benchmark.show.drawing import (
    LEVEL,
    NARROW,
    WIDE,
    Axis,
    Figure,
    Look,
    Plot,
    Points,
    figure,
    looks,
    ratio_axis,
)
from benchmark.show.pictures import ALL_CLASSES
from benchmark.show.tables import Table

Arms = Mapping[str, Look]
MOST_POINTS = 240
"""Marks of one arm in one panel."""
_TIMES = ((E2E, "s", 1.0), (TPOT, "ms", 1000.0), (TTFT, "ms", 1000.0))
_SPREAD = ((TPOT, "over requests"), (INTER_CHUNK_LATENCY, "over chunks: how even the text appears"))
_END = 99
"""Percentile at which the axes of values end."""
_MOST_STEPS = 200
"""Steps of a distribution."""


@dataclass
class _Line:
    """One class in a panel: speed-up by window."""

    measured: dict[int, Gain] = field(default_factory=dict)
    predicted: dict[int, float] = field(default_factory=dict)

    @property
    def points(self) -> Points:
        return [(k, gain.ratio) for k, gain in sorted(self.measured.items()) if gain.ratio]

    @property
    def shown(self) -> Points:
        """The points to read off: the observed ones if several windows were run, else the predicted ones."""
        return self.points if len(self.points) > 1 or not self.predicted else [*self.predicted.items()]


def against_windows(loads: Sequence[AtLoad], predicted: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """A panel for each family of arms and each load; none where only one window is known."""
    gains = [
        (gain, at.load) for at in loads for gain in (*at.by_window, *at.by_arm) if gain.window and gain.ratio
    ]
    families = {gain.arm: gain.family for gain, _ in gains}
    lines: dict[tuple[str, Load], dict[str, _Line]] = {}
    for gain, load in gains:
        of_class = lines.setdefault((gain.family, load), {})
        of_class.setdefault(gain.class_ or ALL_CLASSES, _Line()).measured[gain.window] = gain
    for one in predicted:
        family, place = families.get(one["arm"]), Place.of(one)
        if family and list(families.values()).count(family) == 1:
            line = lines[family, place.load].setdefault(place.class_, _Line())
            line.predicted = {row["k"]: row["speed_up"] for row in one["by_k"]}
    drawn = {
        where: of_class
        for where, of_class in lines.items()
        if any(len(line.shown) > 1 for line in of_class.values())
    }
    return figure("windows", "Speed-up against the window", _windows(drawn))


def _windows(drawn: Mapping[tuple[str, Load], Mapping[str, _Line]]) -> Iterator[Plot]:
    lines = [line for of_class in drawn.values() for line in of_class.values()]
    points = [point for line in lines for point in (*line.points, *line.predicted.items())]
    last, highest = (max((point[i] for point in points), default=1) for i in (0, 1))
    x = Axis(low=0, high=last + 0.4, title="speculative tokens", whole=True, most=8)
    y = Axis(low=0, high=highest * 1.15, unit="×", most=5)
    styles = looks(("", *dict.fromkeys(class_ for of_class in drawn.values() for class_ in of_class)))
    several = len({load for _, load in drawn}) > 1
    for index, ((family, load), of_class) in enumerate(drawn.items()):
        title = f"{family}, {load.in_words}" if several else family
        ends = [(styles[class_], line.shown[-1][1]) for class_, line in of_class.items()]
        plot = Plot(f"w{index}", title, x, y, width=WIDE if len(drawn) == 1 else NARROW, labels=ends)
        plot.line([(x.low, 1), (x.high, 1)], LEVEL)
        classes = []
        for class_, line in of_class.items():
            look = styles[class_]
            for k, gain in line.measured.items():
                plot.interval((k, 0), look, y=(gain.low, gain.high))
            plot.line([*line.predicted.items()], look, dashed=True)
            plot.line(line.points if len(line.points) > 1 else [], look)
            plot.dots(line.points, look)
            window, best = max(line.shown, key=lambda point: point[1])
            kind = "observed" if line.shown == line.points else "predicted"
            classes.append(f"{class_} {kind}, best {best:.2f} with {window:g} speculative tokens")
        plot.alt = f"Speed-up against the window, {title}: {'; '.join(classes)}."
        yield plot


def over_load(summary: Mapping[str, Any], loads: Sequence[AtLoad], arms: Arms) -> list[Figure]:
    """Speed-up over all classes against the load, with the crossover of each arm and its interval, of a run that searched its loads."""
    curves = []
    known = [
        (at.load.size, gain) for at in sorted(loads, key=lambda at: at.load.size) for gain in at.over_mix
    ]
    for edge in summary["crossovers"] if summary.get("search") else ():
        pair = edge["baseline"], edge["treatment"]
        gains = [(size, gain) for size, gain in known if gain.ratio and (gain.baseline, gain.arm) == pair]
        if gains and edge["class"] is None and edge["treatment"] in arms:
            curves.append((arms[edge["treatment"]], edge, gains))
    if not curves:
        return []
    sizes = sorted({size for *_, gains in curves for size, _ in gains})
    title = f"load, {'requests per second' if summary['search']['by'] == 'rate' else 'requests at once'}"
    x = Axis(low=sizes[0] / 1.1, high=sizes[-1] * 1.1, title=title, log=True, most=12, marked=tuple(sizes))
    y = ratio_axis((gain.ratio, gain.low, gain.high) for *_, gains in curves for _, gain in gains)
    ends = [(look, gains[-1][1].ratio or 1.0) for look, _, gains in curves]
    title = f"all classes in equal shares, over {curves[0][1]['baseline']}"
    plot = Plot("o", title, x, y, width=WIDE, labels=ends)
    plot.zone(*EQUIVALENT)
    plot.line([(x.low, 1), (x.high, 1)], LEVEL)
    alt = []
    for look, edge, gains in curves:
        if edge["found"] == "crossing":
            plot.line([(edge["load"], y.low), (edge["load"], y.high)], look, dashed=True)
            plot.span(edge["low"], edge["high"], 1, look)
        points = [(size, gain.ratio or 1.0) for size, gain in gains]
        for point, (_, gain) in zip(points, gains, strict=True):
            plot.interval(point, look, y=(gain.low, gain.high))
        plot.line(points, look)
        plot.dots(points, look)
        marks = [f"{gain.ratio:.2f}{interval(gain.low, gain.high)} at {size:g}" for size, gain in gains]
        alt.append(f"{look.name} {in_words(edge)}. Speed-up {', '.join(marks)}.")
    plot.alt = " ".join(alt)
    crossing = any(edge["found"] == "crossing" for _, edge, _ in curves)
    crossings = [f"{look.name} {in_words(edge)}." for look, edge, _ in curves]
    return figure(
        "over-load", "Speed-up against load", [plot], about={"crossing": crossing, "said": crossings}
    )


def crossovers(summary: Mapping[str, Any]) -> Table | None:
    """Up to which load each treatment pays, for the mix and by class, of a run that searched its loads."""
    known = summary["crossovers"] if summary.get("search") else ()
    several = len({one["class"] for one in known}) > 2
    rows = [
        (one["treatment"], one["class"] or ALL_CLASSES, in_words(one))
        for one in known
        if several or one["class"] is None
    ]
    headings = ("arm", "class", "load")
    return Table(title="Up to which load", headings=headings, rows=rows, names=3) if rows else None


def frontier(summary: Mapping[str, Any], arms: Arms) -> list[Figure]:
    """Output of each arm for a dollar against its time per token, at every load that a search measured."""
    search = summary.get("search")
    price = {arm["name"]: arm["usd_per_hour"] for arm in summary["run"]["arms"]}
    known = [one for one in search["arms"] if one["arm"] in arms and one["points"]] if search else []
    if search is None or not known:
        return []
    priced = all(price[one["arm"]] for one in known)
    limit = next((one for one in limits(search["objective"]) if one.metric == TPOT.name), None)

    def values(one: Mapping[str, Any]) -> list[tuple[list[float], list[float | None]]]:
        """For each load the time of a token and the output, each with its interval: where an objective limits the time, it is
        the percentile that it limits."""
        per, pairs = price[one["arm"]] if priced else 1.0, []
        for point in one["points"]:
            slow_s = point["tpot_percentile_s"] if limit else None
            times = [1000 * value for value in ([slow_s] * 3 if slow_s else point["tpot_s"])]
            pairs.append((times, [value and value / per for value in point["output_tokens_per_s"]]))
        return pairs

    drawn = [(arms[one["arm"]], one, values(one)) for one in known]
    every = [pair for *_, pairs in drawn for pair in pairs]
    title = f"ms per output token{f', {limit.percentile} of requests' if limit else ''}"
    x = Axis(low=0, high=max(times[2] for times, _ in every) * 1.05, title=title)
    unit = "output tokens/s for $1 an hour" if priced else "output tokens/s of an arm"
    y = Axis(low=0, high=max(out[2] or out[0] or 0.0 for _, out in every) * 1.1, title=unit, most=5)
    of = "requests/s" if search["by"] == "rate" else "at a time"
    plot = Plot("f", f"Loads from {search['low']:g} to {search['high']:g} {of}", x, y, width=WIDE)
    limit_ms, described, where = 1000 * limit.seconds if limit else 0.0, [], ""
    if limit:
        where = "Dashed: the objective" if limit_ms <= x.high else "Beyond the right edge: the objective"
        where += f", {limit_ms:g} ms for {limit.percentile} of requests."
    if 0 < limit_ms <= x.high:
        plot.line([(limit_ms, y.low), (limit_ms, y.high)], LEVEL, dashed=True)
    for look, one, pairs in drawn:
        middles = [(times[0], out[0] or 0.0) for times, out in pairs]
        for point, (times, out) in zip(middles, pairs, strict=True):
            plot.interval(point, look, x=(times[1], min(times[2], x.high)), y=out[1:])
        plot.line(middles, look)
        plot.dots(middles, look)
        marks = [
            f"load {point['load']:g}: {out:.3g} at {time:.3g} ms"
            for point, (time, out) in zip(one["points"], middles, strict=True)
        ]
        best = one["cheapest"]
        ends = f"best at load {best['load']:g}" if best else "no load that meets the objective"
        described.append(f"{look.name}: {', '.join(marks)}; {ends}")
    plot.alt = f"{unit} against the time per output token. {'. '.join(described)}."
    loads = ", ".join(f"{load:g}" for load in sorted({p["load"] for one in known for p in one["points"]}))
    about = {"loads": f"{loads} {of}", "objective": where}
    legend = [look for look, *_ in drawn]
    return figure("frontier", "Output tokens against the time of each", [plot], legend, about)


Members = Sequence[tuple[Look, Records]]
"""The requests of each arm at one place, in the order in which they were sent."""


def _places(cells: Cells, arms: Arms) -> Iterator[tuple[str, str, Members]]:
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


def _points(plan: Plan, metric: Metric, records: Records, begin_unix_s: float = 0.0) -> Points:
    """Seconds since the beginning of the run and the value, of each answer that has one."""
    known = (
        (one, request_values(one, plan.arm(one.arm).max_tokens_per_step).get(metric.name)) for one in records
    )
    return [(one.started_unix_s - begin_unix_s, value) for one, value in known if value is not None]


def over_time(cells: Cells, arms: Arms) -> list[Figure]:
    """A figure for each metric with a value, request by request."""
    started = [record.started_unix_s for records in cells.requests.values() for record in records] or [0.0]
    begin, span_s = min(started), max(started) - min(started)
    units = (("s", 1.0, 180.0), ("min", 60.0, 3 * 3600.0), ("h", 3600.0, float("inf")))
    time_name, per = next((name, length) for name, length, most in units if span_s < most)
    x = Axis(low=0, high=span_s / per or 1, title=f"{time_name} since the first request")
    made: list[Figure] = []
    for metric, unit, scale in _TIMES:
        name, title = metric.name.removesuffix("_s"), f"{metric.title} over the run"
        known = [
            (
                id_,
                where,
                [(look, records, _points(cells.plan, metric, records, begin)) for look, records in members],
            )
            for id_, where, members in _places(cells, arms)
        ]
        top = max((v * scale for *_, lines in known for *_, points in lines for _, v in points), default=0.0)
        if not top:
            continue
        y, panels = Axis(low=0, high=top * 1.08, title=unit, most=5), []
        for id_, where, lines in known:
            plot, medians = Plot(f"t{id_}-{name}", where, x, y), []
            for look, records, points in lines:
                line = [(at_s / per, value * scale) for at_s, value in points]
                plot.dots(line[:: -(-len(line) // MOST_POINTS) or 1], look)
                plot.crosses((one.started_unix_s - begin) / per for one in records if one.error)
                if line:
                    middle = percentile(sorted(value for _, value in line), 50)
                    plot.line([(x.low, middle), (x.high, middle)], look, dashed=True)
                    medians.append(f"{look.name} median {middle:.3g} {unit} of {len(line)} requests")
            plot.alt = f"{title}, {where}: {'; '.join(medians) or 'no value'}."
            panels.append(plot)
        made += figure(f"time-{name}", title, panels, arms.values(), {"first": not made})
    return made


def distributions(cells: Cells, arms: Arms) -> list[Figure]:
    """Cumulative shares of two metrics."""
    made = []
    for metric, over in _SPREAD:
        name = metric.name.removesuffix("_s")
        known = []
        for id_, where, members in _places(cells, arms):
            curves = [(look, _values_ms(cells.plan, metric, records)) for look, records in members]
            known += [(id_, where, filled)] if (filled := [one for one in curves if one[1]]) else []
        ends = [percentile(ordered, _END) for *_, curves in known for _, ordered in curves]
        x = Axis(low=0, high=max(ends, default=0) * 1.05 or 1, title="ms")
        panels = [_distribution(f"d{id_}-{name}", where, metric, curves, x) for id_, where, curves in known]
        title = f"Distribution of the {metric.title[0].lower()}{metric.title[1:]}"
        made += figure(f"spread-{name}", title, panels, arms.values(), {"over": over})
    return made


def _values_ms(plan: Plan, metric: Metric, records: Records) -> list[float]:
    """All values of a metric, sorted; of the inter-chunk latency one for each pair of chunks."""
    if metric is INTER_CHUNK_LATENCY:
        return sorted(1000 * gap for record in records if record.error is None for gap in gaps(record))
    return sorted(1000 * value for _, value in _points(plan, metric, records))


def _shares(ordered: Sequence[float]) -> Points:
    """Values and the percentage of all that is not above each, in a limited number of steps."""
    count, last = len(ordered), _MOST_STEPS - 1
    if count <= _MOST_STEPS:
        return [(value, 100 * ((index + 1) / count)) for index, value in enumerate(ordered)]
    return [(percentile(ordered, 100 * i / last), 100 * (i / last)) for i in range(_MOST_STEPS)]


def _distribution(
    id_: str, where: str, metric: Metric, curves: Sequence[tuple[Look, Sequence[float]]], x: Axis
) -> Plot:
    plot, quantiles = Plot(id_, where, x, Axis(low=0, high=100, unit=" %", most=5)), []
    for look, ordered in curves:
        steps = [(value, share) for value, share in _shares(ordered) if value <= x.high]
        corners = [(steps[0][0], 0.0)] if steps else []
        for value, share in steps:
            corners += [(value, corners[-1][1]), (value, share)]
        plot.line([*corners, *((x.high, share) for _, share in corners[-1:])], look)
        plot.dots(steps[:: max(1, len(steps) // 8)], look)
        middle, tail = percentile(ordered, 50), percentile(ordered, 95)
        quantiles.append(
            f"{look.name} median {middle:.3g} ms, 95th percentile {tail:.3g} ms, n {len(ordered)}"
        )
    plot.alt = f"Cumulative distribution of {metric.name}, {where}: {'; '.join(quantiles)}."
    return plot
