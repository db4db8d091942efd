"""Tables with a picture in each row, all on one axis: speed-up by class, what a step yields and costs, the forecast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.analyse.beside import QUANTITIES, VERDICTS
from benchmark.analyse.cells import Place
from benchmark.analyse.comparison import EQUIVALENT, VERDICT_WORDS
from benchmark.analyse.decision import AtLoad, Gain
from benchmark.analyse.sentences import interval, money
from benchmark.metrics import COMPARED
from benchmark.show.drawing import DOT, Axis, Look, ratio_axis
from benchmark.show.tables import Row, Table, change, ms, plain

ALL_CLASSES = "all classes"
_KINDS = {word: code.replace(" ", "-") for code, word in VERDICT_WORDS.items()}
"""The class of each verdict in the page's style."""
_NUMBERS = ("speed-up [95 %]", "ms per token", "$ per million tokens")
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
    zone: tuple[float, float] | None
    """A range that is shaded, begin and width."""
    total: bool
    """Whether the last row is about all others."""


def answer(at: AtLoad, axis: Axis) -> Picture | None:
    """Each class with its best treatment, then the best treatment over all classes; None where nothing could be compared."""
    gains = [*at.by_class, *([at.mix] if at.mix and len(at.by_class) > 1 else ())]
    rows = [((gain.class_ or ALL_CLASSES, gain.arm, *_numbers(gain)), _of_gain(axis, gain)) for gain in gains]
    known = rows if any(gain.ratio for gain in gains) else ()
    total = len(gains) > len(at.by_class)
    title = f"Speed-up by class, {at.load.in_words}"
    return _picture(title, ("class", "arm", *_NUMBERS), known, axis, total=total)


def treatments(at: AtLoad, axis: Axis) -> Picture | None:
    """Every treatment over all classes, the best first; None where there is but one."""
    rows = [((gain.arm, gain.baseline, *_numbers(gain)), _of_gain(axis, gain)) for gain in at.over_mix]
    several = rows if len(at.by_arm) > 1 else ()
    return _picture(f"Arms over {ALL_CLASSES}", ("arm", "baseline", *_NUMBERS), several, axis)


def _numbers(gain: Gain) -> Row:
    """Verdict and speed-up, time and dollars."""
    return (
        _verdict_and_ratio(gain.verdict, gain.ratio, gain.low, gain.high),
        change(gain.tpot_before_s, gain.tpot_after_s, ms, "→"),
        change(gain.usd_before, gain.usd_after, money, "→"),
    )


def by_other_metrics(summary: Mapping[str, Any], at: AtLoad) -> Iterator[Picture]:
    """The same arms and classes by the metrics that do not decide, all on one axis."""
    wanted = {(at.load, gain.class_, gain.baseline, gain.arm) for gain in at.by_class}
    known = [
        (one, (one["ratio"], one["ci_low"], one["ci_high"]))
        for one in summary["comparisons"]
        if (Place.of(one).load, one["class"], one["baseline"], one["treatment"]) in wanted and one["ratio"]
    ]
    axis = ratio_axis(numbers for _, numbers in known)
    for metric in COMPARED[1:]:
        rows = []
        for one, numbers in (entry for entry in known if entry[0]["metric"] == metric.name):
            verdict = VERDICT_WORDS[one["verdict"]]
            row = (one["class"], one["treatment"], _verdict_and_ratio(verdict, *numbers))
            rows.append((row, _lane(axis, _KINDS[verdict], *numbers)))
        if picture := _picture(metric.title, ("class", "arm", _NUMBERS[0]), rows, axis):
            yield picture


def step_costs(at: AtLoad) -> Picture | None:
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


def forecast(expectations: Sequence[Mapping[str, Any]]) -> Picture | None:
    """The run over what published results predict: each row has its own quantity, its bounds are shaded. None without a forecast."""
    ratios = [
        tuple(one[key] / one["expected"] if one.get(key) else None for key in ("measured", *_ENDS, *_BOUNDS))
        for one in expectations
    ]
    axis = ratio_axis([ends for r in ratios for ends in ((r[0], r[1], r[2]), (1.0, r[3], r[4]))])
    rows = []
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
        what = f": {', '.join(one['classes']) or ALL_CLASSES}, {one['concurrency']} at a time"
        kind = "tolerance"
    value, expected, *ends = quantity.shown(*map(one.get, ("measured", "expected", *_ENDS, *_BOUNDS)))
    bounds = f"{ends[2]} to {ends[3]}".replace(" ", _NO_BREAK)
    value += f" [{ends[0]},{_NO_BREAK}{ends[1]}]" if one.get("ci_low") else ""
    return one["arm"], f"{quantity.label}{what}", value, expected, f"{bounds} ({kind})"


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


def _verdict_and_ratio(verdict: str, ratio: float | None, low: float | None, high: float | None) -> str:
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
