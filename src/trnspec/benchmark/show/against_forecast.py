"""The table of a run against its forecast, with a mark in each row."""

from __future__ import annotations

from collections.abc import Sequence

from trnspec.benchmark.analyse.attached import Expectation
from trnspec.benchmark.analyse.attachments import QUANTITIES, VERDICTS
from trnspec.benchmark.analyse.result import Verdict
from trnspec.benchmark.plan import Load
from trnspec.benchmark.show.drawing import ratio_axis
from trnspec.benchmark.show.figures import ALL_CLASSES, pictured, row_plot, verdict_class
from trnspec.benchmark.show.tables import Row, RowPlot, Table


def forecast(expectations: Sequence[Expectation]) -> Table:
    """The run compared with the forecast from published results. Each row has its own quantity; its bounds are shaded."""
    ratios = [
        tuple(value / row.expected if value else None for value in (row.measured, *_ends(row)))
        for row in expectations
    ]
    axis = ratio_axis([ends for r in ratios for ends in ((r[0], r[1], r[2]), (1.0, r[3], r[4]))])
    rows = []
    for row, (ratio, begin, end, low, high) in zip(expectations, ratios, strict=True):
        kind, result = _against(row)
        left, right = (axis.percent(bound or 1.0) for bound in (low, high))
        shapes = (("zone", f"M{left} 2H{right}V18H{left}z"), *row_plot(axis, kind, ratio, begin, end).shapes)
        rows.append(((*_expected(row), result), RowPlot(verdict_class(kind), shapes)))
    headings = ("arm", "quantity", "this run", "expected", "bounds", "result")
    return pictured("Compared with the forecast", headings, rows, axis, shaded=())


def _ends(row: Expectation) -> tuple[float | None, ...]:
    return row.ci_low, row.ci_high, row.low, row.high


def _expected(row: Expectation) -> Row:
    """The columns of a row: arm, quantity, value of the run with its interval, expected value, bounds."""
    quantity, what, kind = QUANTITIES[row.what], "", "forecast range"
    if row.verdict:
        what = f": {', '.join(row.classes) or ALL_CLASSES}, {Load(concurrency=row.concurrency).in_words}"
        kind = "tolerance"
    value, expected, *ends = quantity.shown(row.measured, row.expected, *_ends(row))
    bounds = f"{ends[2]} to {ends[3]}".replace(" ", "\N{NO-BREAK SPACE}")
    value += f" [{ends[0]},\N{NO-BREAK SPACE}{ends[1]}]" if row.ci_low else ""
    return row.arm, f"{quantity.label}{what}", value, expected, f"{bounds} ({kind})"


def _against(row: Expectation) -> tuple[Verdict, str]:
    """The verdict that colours a row against the forecast, and its result in words."""
    if row.verdict == "cannot tell" or row.measured is None:
        return "cannot tell", VERDICTS["cannot tell"]
    side = (row.measured > row.high) - (row.measured < row.low)
    if not side:
        return "same", VERDICTS["reproduced"] if row.verdict else "within the range"
    good = (side > 0) == (QUANTITIES[row.what].better == "higher")
    missed = f"{VERDICTS['not reproduced']}, " if row.verdict else ""
    return ("faster", f"{missed}better") if good else ("slower", f"{missed}worse")
