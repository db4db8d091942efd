"""Numbers of a summary as words, the same in the table and on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmark.analyse.cells import Place
from benchmark.metrics import COMPARED

UNKNOWN = "-"


def planned_text(run: Mapping[str, Any]) -> str:
    """How many requests a cell should have: `8`, or `8 in each of 3 rounds`."""
    rounds = run["rounds"]
    return f"{run['requests_per_cell']}" + (f" in each of {rounds} rounds" if rounds > 1 else "")


def headline(summary: Mapping[str, Any], cell: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The comparison of a treatment's cell by the headline metric; None for the baseline's."""
    sought = cell["arm"], COMPARED[0].name, Place.of(cell)
    for found in summary["comparisons"]:
        if (found["treatment"], found["metric"], Place.of(found)) == sought:
            return dict(found)
    return None


def plain(value: float | None, form: str, unit: str = "") -> str:
    """`value` in a format; `-` where it is not known."""
    return UNKNOWN if value is None else f"{value:{form}}{unit}"


def number(values: Mapping[str, float] | None, scale: float, digits: int, statistic: str = "p50") -> str:
    """One statistic of a distribution, in other units."""
    return plain(None if values is None else values[statistic] * scale, f".{digits}f")


def tokens_per_step(cell: Mapping[str, Any]) -> str:
    """Of a cell, over all its steps."""
    return plain(cell["acceptance"]["tokens_per_step"], ".2f")


def ratio_text(comparison: Mapping[str, Any]) -> str:
    """Speed-up and interval, for example `2.90 [2.70, 3.10]`."""
    if comparison["ci_low"] is None:
        return plain(comparison["ratio"], ".2f")
    return f"{comparison['ratio']:.2f} [{comparison['ci_low']:.2f}, {comparison['ci_high']:.2f}]"


def verdict_text(comparison: Mapping[str, Any]) -> str:
    """The verdict; a `*` where Holm's correction over the classes upholds it."""
    verdict: str = comparison["verdict"]
    upheld = verdict in ("faster", "slower") and comparison["verdict_holm"] == verdict
    return f"{verdict}*" if upheld else verdict


def money(usd: float) -> str:
    """Dollars, with cents or, below a tenth of a dollar, with three significant digits."""
    return f"${usd:,.2f}" if usd >= 0.1 or usd == 0 else f"${usd:.3g}"
