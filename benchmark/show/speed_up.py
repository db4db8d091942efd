"""Speed-up: a row of a table for each class with its interval on one axis, lines against the window, and what a search of
the load found.

The window is the number of speculative tokens: measured where arms of one family had several, else predicted from the one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmark.analyse.beside import QUANTITIES, VERDICTS
from benchmark.analyse.cells import Place
from benchmark.analyse.comparison import EQUIVALENT, VERDICT_WORDS
from benchmark.analyse.decision import AtLoad, Gain
from benchmark.analyse.sentences import in_words, interval, money
from benchmark.metrics import COMPARED, TPOT
from benchmark.objectives import limits
from benchmark.plan import Load
from benchmark.show.canvas import DOT, NARROW, WIDE, Axis, Figure, Look, Panel, Plot, Points, figure, looks
from benchmark.show.tables import Row, Table
from benchmark.show.wording import change, plain

ALL_CLASSES = "all classes"
_LEVEL = Look("", "--muted", "")
_KINDS = {word: code.replace(" ", "-") for code, word in VERDICT_WORDS.items()}
"""The class of each verdict in the page's style."""
_NUMBERS = ("speed-up [95 %]", "ms per token", "$ per million tokens")
_CAPTION = (
    "Speed-up in time per output token, on one scale. Solid: observed, each mark with its 95 % interval. Dashed: "
    "predicted from the acceptance at each position and the step times of the window that was run, as if each draft cost the same; its mark "
    "is observed."
)
_OVER_LOAD = (
    "Speed-up in time per output token over all classes at each load of the run, with 95 % intervals. Shaded: 0.95 to 1.05, "
    "too small to matter."
)


@dataclass(frozen=True)
class Lane:
    """The picture in a row: shapes in a box of 100 by 20, each with its class in the page's style."""

    kind: str
    shapes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A table with a lane in each row, between words and numbers; all lanes have one axis."""

    table: Table
    lanes: tuple[Lane, ...]
    ticks: tuple[tuple[float, str], ...]
    """Places in percent of the axis, with their texts."""
    zone: tuple[float, float] | None = None
    """A range that is shaded, begin and width."""
    total: bool = False
    """Whether the last row is about all others."""


def ratio_axis(found: Sequence[tuple[float | None, float | None, float | None]]) -> Axis:
    """An axis for ratios with their intervals: it holds 1, all ratios, and intervals as far as a factor of 20."""
    known = [(ratio, low or ratio, high or ratio) for ratio, low, high in found if ratio]
    lows = [max(min(low, ratio), ratio / 20) / 1.1 for ratio, low, _ in known]
    highs = [min(max(high, ratio), ratio * 20) * 1.1 for ratio, _, high in known]
    return Axis(low=min([0.75, *lows]), high=max([1.3, *highs]), unit="×", log=True)


def answer(at: AtLoad, axis: Axis) -> Picture | None:
    """Each class with its best treatment, then the best treatment over all classes; None where nothing could be compared."""
    gains = [*at.by_class, *([at.mix] if at.mix and len(at.by_class) > 1 else ())]
    if not any(gain.ratio for gain in gains):
        return None
    rows = [((gain.class_ or ALL_CLASSES, gain.arm, *_numbers(gain)), _of_gain(axis, gain)) for gain in gains]
    title, total = f"Speed-up by class, {at.load.in_words}", len(gains) > len(at.by_class)
    return _picture(title, ("class", "arm", *_NUMBERS), rows, axis, total=total)


def treatments(at: AtLoad, axis: Axis) -> Picture | None:
    """Every treatment over all classes, the best first; None where there is but one."""
    rows = [((gain.arm, gain.baseline, *_numbers(gain)), _of_gain(axis, gain)) for gain in at.over_mix]
    several = rows if len(at.by_arm) > 1 else ()
    return _picture(f"Arms over {ALL_CLASSES}", ("arm", "baseline", *_NUMBERS), several, axis)


def _numbers(gain: Gain) -> Row:
    """Verdict and speed-up, time and dollars."""
    return (
        verdict_and_ratio(gain.verdict, gain.ratio, gain.low, gain.high),
        change(gain.tpot_before_s, gain.tpot_after_s, lambda value_s: f"{value_s * 1000:.1f}", "→"),
        change(gain.usd_before, gain.usd_after, money, "→"),
    )


def by_other_metrics(summary: Mapping[str, Any], at: AtLoad) -> Iterator[Picture]:
    """The same arms and classes by the metrics that do not decide, all on one axis."""
    wanted = {(gain.class_, gain.baseline, gain.arm) for gain in at.by_class}
    known = [
        (one, (one["ratio"], one["ci_low"], one["ci_high"]))
        for one in summary["comparisons"]
        if Place.of(one).load == at.load
        and (one["class"], one["baseline"], one["treatment"]) in wanted
        and one["ratio"]
    ]
    axis = ratio_axis([numbers for _, numbers in known])
    for metric in COMPARED[1:]:
        rows = []
        for one, numbers in (entry for entry in known if entry[0]["metric"] == metric.name):
            verdict = VERDICT_WORDS[one["verdict"]]
            row = (one["class"], one["treatment"], verdict_and_ratio(verdict, *numbers))
            rows.append((row, _lane(axis, _KINDS[verdict], *numbers)))
        if picture := _picture(metric.title, ("class", "arm", _NUMBERS[0]), rows, axis):
            yield picture


def why(at: AtLoad) -> Picture | None:
    """Tokens that a step yields against what it costs; None where no arm drafts, or its steps are not known."""
    known = [(gain, gain.tokens_per_step, gain.step_cost) for gain in at.by_class if gain.window]
    steps = [(gain, tokens, cost) for gain, tokens, cost in known if tokens and cost]
    axis = Axis(low=0, high=max((max(tokens, cost) for _, tokens, cost in steps), default=1) * 1.05)
    rows = []
    for gain, tokens, cost in steps:
        expected, measured = f"{tokens / cost:.2f}×", plain(gain.ratio, ".2f", "×")
        row = (gain.class_ or "", gain.arm, f"{tokens:.2f}", f"{cost:.2f}", expected, measured)
        end, need = axis.percent(tokens), axis.percent(cost)
        shapes = (("mark bar", f"M0 10H{end}"), ("mark need", f"M{need} 2v16"))
        rows.append((row, Lane(_KINDS[gain.verdict], shapes)))
    headings = ("class", "arm", "tokens per step", "cost of a step", "speed-up to expect", "observed")
    return _picture("Tokens per step", headings, rows, axis)


def past_break_even(at: AtLoad) -> str:
    """A caution where the steps alone say that an arm pays in a class, and its times say that it is slower; else empty."""
    against = [
        f"{gain.class_} with {gain.arm} ({gain.tokens_per_step:.2f} tokens against a cost of {gain.step_cost:.2f})"
        for gain in at.by_class
        if gain.window and gain.verdict == VERDICT_WORDS["slower"]
        if gain.tokens_per_step and gain.step_cost and gain.tokens_per_step > gain.step_cost
    ]
    if not against:
        return ""
    return (
        f"Caution: the bar passes the mark, but the verdict is slower: {', '.join(against)}. The verdict counts, it comes from "
        "the times of whole answers; time beside the decode steps is not in the bar."
    )


def forecast(expectations: Sequence[Mapping[str, Any]]) -> Picture | None:
    """The run over what published results predict: each row has its own quantity, its bounds are shaded. None without a forecast."""
    ratios = [
        tuple(one[key] / one["expected"] if one.get(key) else None for key in ("measured", *_ENDS, *_BOUNDS))
        for one in expectations
    ]
    axis, rows = ratio_axis([ends for r in ratios for ends in ((r[0], r[1], r[2]), (1.0, r[3], r[4]))]), []
    for one, (ratio, begin, end, low, high) in zip(expectations, ratios, strict=True):
        kind, result = _against(one)
        left, right = (axis.percent(bound or 1.0) for bound in (low, high))
        shapes = (("zone", f"M{left} 2H{right}V18H{left}z"), *_lane(axis, kind, ratio, begin, end).shapes)
        rows.append(((*_expected(one), result), Lane(kind, shapes)))
    headings = ("arm", "quantity", "this run", "expected", "bounds", "result")
    return _picture("Against the forecast", headings, rows, axis, zone=False)


def _expected(one: Mapping[str, Any]) -> Row:
    """Arm, quantity, value of the run with its interval, expected value and bounds."""
    quantity, what, kind = QUANTITIES[one["what"]], "", "forecast range"
    if "verdict" in one:
        what, kind = (
            f": {', '.join(one['classes']) or ALL_CLASSES}, {one['concurrency']} at a time",
            "tolerance",
        )
    value, expected, *ends = quantity.shown(*map(one.get, ("measured", "expected", *_ENDS, *_BOUNDS)))
    bounds = f"{ends[2]} to {ends[3]}".replace(" ", _NO_BREAK)
    value += f" [{ends[0]},{_NO_BREAK}{ends[1]}]" if one.get("ci_low") else ""
    return one["arm"], f"{quantity.label}{what}", value, expected, f"{bounds} ({kind})"


_ENDS, _BOUNDS = ("ci_low", "ci_high"), ("low", "high")
_NO_BREAK = "\N{NO-BREAK SPACE}"
FORECAST_LOOKS = tuple(
    Look(name, f"--{colour}", DOT)
    for name, colour in (
        ("within the bounds", "plain"),
        ("better", "good"),
        ("worse", "bad"),
        ("inconclusive", "muted"),
    )
)
"""What the colours of a mark against the forecast mean."""


def _against(one: Mapping[str, Any]) -> tuple[str, str]:
    """How a row against the forecast is drawn, and its result in words."""
    if one.get("verdict") == "cannot tell":
        return "not-shown", VERDICTS["cannot tell"]
    side = (one["measured"] > one["high"]) - (one["measured"] < one["low"])
    if not side:
        return "equivalent", VERDICTS["reproduced"] if "verdict" in one else "within the range"
    good = (side > 0) == (QUANTITIES[one["what"]].better == "higher")
    missed = f"{VERDICTS['not reproduced']}, " if "verdict" in one else ""
    return ("faster", f"{missed}better") if good else ("slower", f"{missed}worse")


def verdict_and_ratio(verdict: str, ratio: float | None, low: float | None, high: float | None) -> str:
    """A verdict with its ratio and interval, where they are known."""
    return verdict if ratio is None else f"{verdict}: {ratio:.2f}×{interval(low, high)}"


def _of_gain(axis: Axis, gain: Gain) -> Lane:
    return _lane(axis, _KINDS[gain.verdict], gain.ratio, gain.low, gain.high)


def _lane(axis: Axis, kind: str, ratio: float | None, low: float | None, high: float | None) -> Lane:
    """A line for the interval and a mark for the ratio, hollow where there are too few prompts for a verdict."""
    if ratio is None:
        return Lane(kind, ())
    at, begin, end = (axis.percent(value or ratio) for value in (ratio, low, high))
    shapes = [("mark range", f"M{begin} 10H{end}"), ("mark point", f"M{at} 10h0")]
    return Lane(kind, (*shapes, *([("mark hole", f"M{at} 10h0")] if kind == "too-few" else ())))


def _picture(
    title: str,
    headings: Row,
    rows: Sequence[tuple[Row, Lane]],
    axis: Axis,
    *,
    total: bool = False,
    zone: bool = True,
) -> Picture | None:
    """None without a row."""
    if not rows:
        return None
    words, lanes = zip(*rows, strict=True)
    ticks = tuple((axis.percent(value), text) for value, text in axis.ticks)
    begin, end = map(axis.percent, EQUIVALENT)
    shaded = (begin, round(end - begin, 2)) if axis.log and zone else None
    table = Table(title=title, headings=headings, rows=words)
    return Picture(table=table, lanes=lanes, ticks=ticks, zone=shaded, total=total)


@dataclass
class _Line:
    """One class in a panel."""

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
    found: dict[tuple[str, Load], dict[str, _Line]] = {}
    for gain, load in gains:
        of_class = found.setdefault((gain.family, load), {})
        of_class.setdefault(gain.class_ or ALL_CLASSES, _Line()).measured[gain.window] = gain
    for one in predicted:
        family, place = families.get(one["arm"]), Place.of(one)
        if family and list(families.values()).count(family) == 1:
            line = found[family, place.load].setdefault(place.class_, _Line())
            line.predicted = {row["k"]: row["speed_up"] for row in one["by_k"]}
    drawn = {
        where: of_class
        for where, of_class in found.items()
        if any(len(line.shown) > 1 for line in of_class.values())
    }
    return figure("windows", "Speed-up against the window", _CAPTION, _panels(drawn), ())


def _panels(drawn: Mapping[tuple[str, Load], Mapping[str, _Line]]) -> Iterator[Panel]:
    lines = [line for of_class in drawn.values() for line in of_class.values()]
    points = [point for line in lines for point in (*line.points, *line.predicted.items())]
    x = Axis(
        low=0,
        high=max((k for k, _ in points), default=1) + 0.4,
        title="speculative tokens",
        whole=True,
        most=8,
    )
    y = Axis(low=0, high=max((value for _, value in points), default=1) * 1.15, unit="×", most=5)
    styles = looks(("", *dict.fromkeys(class_ for of_class in drawn.values() for class_ in of_class)))
    several = len({load for _, load in drawn}) > 1
    for index, ((family, load), of_class) in enumerate(drawn.items()):
        title = f"{family}, {load.in_words}" if several else family
        ends = [(styles[class_], line.shown[-1][1]) for class_, line in of_class.items()]
        plot = Plot(x, y, width=WIDE if len(drawn) == 1 else NARROW, labels=ends)
        plot.line([(x.low, 1), (x.high, 1)], _LEVEL)
        said = []
        for class_, line in of_class.items():
            _draw(plot, line, styles[class_])
            k, best = max(line.shown, key=lambda point: point[1])
            kind = "observed" if line.shown == line.points else "predicted"
            said.append(f"{class_} {kind}, best {best:.2f} with {k:g} speculative tokens")
        yield plot.panel(f"w{index}", title, f"Speed-up against the window, {title}: {'; '.join(said)}.")


def _draw(plot: Plot, line: _Line, look: Look) -> None:
    for k, gain in line.measured.items():
        if gain.low is not None and gain.high is not None:
            plot.line([(k, gain.low), (k, gain.high)], look)
    plot.line([*line.predicted.items()], look, dashed=True)
    plot.line(line.points if len(line.points) > 1 else [], look)
    plot.dots(line.points, look)


def over_load(summary: Mapping[str, Any], loads: Sequence[AtLoad], arms: Mapping[str, Look]) -> list[Figure]:
    """Speed-up over all classes against the load, with the crossover of each arm and its interval, of a run that searched its loads."""
    found = _curves(summary, loads, arms) if summary.get("search") else []
    if not found:
        return []
    sizes = sorted({size for *_, gains in found for size, _ in gains})
    unit = "requests per second" if summary["search"]["by"] == "rate" else "requests at once"
    x = Axis(
        low=sizes[0] / 1.1,
        high=sizes[-1] * 1.1,
        title=f"load, {unit}",
        log=True,
        most=12,
        marked=tuple(sizes),
    )
    y = ratio_axis([(gain.ratio, gain.low, gain.high) for *_, gains in found for _, gain in gains])
    plot = Plot(x, y, width=WIDE, labels=[(look, gains[-1][1].ratio or 1.0) for look, _, gains in found])
    plot.zone(*EQUIVALENT)
    plot.line([(x.low, 1), (x.high, 1)], _LEVEL)
    alt, caption = [], [_OVER_LOAD]
    if any(edge["found"] == "crossing" for _, edge, _ in found):
        caption.append("Dashed: the crossover; the bar at 1× is its 95 % interval.")
    for look, edge, gains in found:
        if edge["found"] == "crossing":
            plot.line([(edge["load"], y.low), (edge["load"], y.high)], look, dashed=True)
            plot.span(edge["low"], edge["high"], 1, look)
        points = [(size, gain.ratio or 1.0) for size, gain in gains]
        for size, gain in gains:
            if gain.low and gain.high:
                plot.line([(size, gain.low), (size, gain.high)], look)
        plot.line(points, look)
        plot.dots(points, look)
        marks = [f"{gain.ratio:.2f}{interval(gain.low, gain.high)} at {size:g}" for size, gain in gains]
        caption.append(f"{look.name} {in_words(edge)}.")
        alt.append(f"{caption[-1]} Speed-up {', '.join(marks)}.")
    panel = plot.panel("o", f"all classes in equal shares, over {found[0][1]['baseline']}", " ".join(alt))
    return figure("over-load", "Speed-up against load", " ".join(caption), [panel], ())


def _curves(
    summary: Mapping[str, Any], loads: Sequence[AtLoad], arms: Mapping[str, Look]
) -> list[tuple[Look, Mapping[str, Any], list[tuple[float, Gain]]]]:
    """The crossover over all classes and the speed-up by load of each arm."""
    ordered, found = sorted(loads, key=lambda at: at.load.size), []
    for edge in (one for one in summary["crossovers"] if one["class"] is None and one["treatment"] in arms):
        pair = edge["baseline"], edge["treatment"]
        known = [(at.load.size, gain) for at in ordered for gain in at.over_mix if gain.ratio]
        if gains := [(size, gain) for size, gain in known if (gain.baseline, gain.arm) == pair]:
            found.append((arms[edge["treatment"]], edge, gains))
    return found


def crossovers(summary: Mapping[str, Any]) -> Table | None:
    """Up to which load each treatment pays, for the mix and by class, of a run that searched its loads."""
    known = summary["crossovers"] if summary.get("search") else ()
    several = len({one["class"] for one in known}) > 2
    rows = [
        (one["treatment"], one["class"] or ALL_CLASSES, in_words(one))
        for one in known
        if several or one["class"] is None
    ]
    return Table(
        title="Up to which load", headings=("arm", "class", "load"), rows=rows, names=3
    ).unless_empty()


def frontier(summary: Mapping[str, Any], arms: Mapping[str, Look]) -> list[Figure]:
    """Output of each arm for a dollar against its time per token, at every load that a search measured."""
    search, price = (
        summary.get("search"),
        {arm["name"]: arm["usd_per_hour"] for arm in summary["run"]["arms"]},
    )
    known = [one for one in search["arms"] if one["arm"] in arms and one["points"]] if search else []
    if search is None or not known:
        return []
    priced = all(price[one["arm"]] for one in known)
    drawn = [
        (arms[one["arm"]], one["points"], price[one["arm"]] if priced else 1.0, one["cheapest"])
        for one in known
    ]
    limit = next((one for one in limits(search["objective"]) if one.metric == TPOT.name), None)
    limit_ms, of_requests = (
        (1000 * limit.seconds, f", {limit.percentile} of requests") if limit else (0.0, "")
    )

    def ms(point: Mapping[str, Any]) -> list[float]:
        """The time of a token, with its interval: where an objective limits it, the percentile that it limits."""
        slow_s = point["tpot_percentile_s"] if limit else None
        return [1000 * value for value in ([slow_s] * 3 if slow_s else point["tpot_s"])]

    ends = [
        (ms(p)[2], (p["output_tokens_per_s"][2] or p["output_tokens_per_s"][0]) / per)
        for _, points, per, _ in drawn
        for p in points
    ]
    x = Axis(low=0, high=max(end for end, _ in ends) * 1.05, title=f"ms per output token{of_requests}")
    unit = "output tokens/s for $1 an hour" if priced else "output tokens/s of an arm"
    y = Axis(low=0, high=max(end for _, end in ends) * 1.1, title=unit, most=5)
    plot, said = Plot(x, y, width=WIDE, labels=()), []
    if 0 < limit_ms <= x.high:
        plot.line([(limit_ms, y.low), (limit_ms, y.high)], _LEVEL, dashed=True)
    for look, points, per, best in drawn:
        middles = [(ms(p)[0], p["output_tokens_per_s"][0] / per) for p in points]
        for (at, height), point in zip(middles, points, strict=True):
            (_, left, right), (_, low, high) = ms(point), point["output_tokens_per_s"]
            plot.line([(left, height), (min(right, x.high), height)], look)
            if low is not None:
                plot.line([(at, low / per), (at, high / per)], look)
        plot.line(middles, look)
        plot.dots(middles, look)
        marks = [
            f"load {p['load']:g}: {b:.3g} at {a:.3g} ms" for p, (a, b) in zip(points, middles, strict=True)
        ]
        where = f"best at load {best['load']:g}" if best else "no load that meets the objective"
        said.append(f"{look.name}: {', '.join(marks)}; {where}")
    drawn_at = "Dashed: the objective" if limit_ms <= x.high else "Beyond the right edge: the objective"
    loads = ", ".join(f"{load:g}" for load in sorted({p["load"] for one in known for p in one["points"]}))
    of = "requests/s" if search["by"] == "rate" else "at a time"
    caption = (
        f"Each mark is a load of the run with its 95 % intervals, and an arm's line goes through them from the lowest to the highest: "
        f"{loads} {of}. The further up and to the left, the better.{f' {drawn_at}, {limit_ms:g} ms for {limit.percentile} of requests.' if limit else ''}"
    )
    alt = f"{unit} against the time per output token. {'. '.join(said)}."
    legend = [look for look, *_ in drawn]
    panel = plot.panel("f", f"Loads from {search['low']:g} to {search['high']:g} {of}", alt)
    return figure("frontier", "Output tokens against the time of each", caption, [panel], legend)
