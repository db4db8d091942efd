"""Numbers of a summary as words, the same in the table and on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmark.metrics import COMPARED

Place = tuple[str, int | None, float | None]
"""Class and load of a cell or a comparison."""

UNKNOWN = "-"
_SHOWN = ("faster", "slower")


def load_text(concurrency: int | None, rate_per_s: float | None) -> str:
    """How a cell was loaded: `4 at a time` or `2.5 requests/s`."""
    return f"{concurrency} at a time" if rate_per_s is None else f"{rate_per_s:g} requests/s"


def load_of(item: Mapping[str, Any]) -> tuple[int | None, float | None]:
    """The load of a cell, a comparison or an explanation."""
    return item["concurrency"], item.get("rate_per_s")


def place_of(item: Mapping[str, Any]) -> Place:
    """Where a cell, a comparison or an explanation belongs."""
    return item["class"], *load_of(item)


def planned_text(run: Mapping[str, Any]) -> str:
    """How many requests a cell should have: `8`, or `8 in each of 3 rounds`."""
    rounds = run.get("rounds") or 1
    return f"{run['requests_per_cell']}" + (f" in each of {rounds} rounds" if rounds > 1 else "")


def headline(summary: Mapping[str, Any], cell: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The comparison of a treatment's cell by the headline metric; None for the baseline's."""
    for found in summary["comparisons"]:
        same = found["treatment"] == cell["arm"] and found["metric"] == COMPARED[0].name
        if same and place_of(found) == place_of(cell):
            return dict(found)
    return None


def number(values: Mapping[str, float] | None, scale: float, digits: int, statistic: str = "p50") -> str:
    """One statistic of a distribution, in other units; `-` where nothing is known."""
    return UNKNOWN if values is None else f"{values[statistic] * scale:.{digits}f}"


def tokens_per_step(cell: Mapping[str, Any]) -> str:
    """Of a cell, over all its steps; `-` where it is not known."""
    per_step = cell["acceptance"]["tokens_per_step"]
    return UNKNOWN if per_step is None else f"{per_step:.2f}"


def ratio_text(comparison: Mapping[str, Any]) -> str:
    """Speed-up and interval, for example `2.90 [2.70, 3.10]`."""
    if comparison["ratio"] is None:
        return UNKNOWN
    if comparison["ci_low"] is None:
        return f"{comparison['ratio']:.2f}"
    return f"{comparison['ratio']:.2f} [{comparison['ci_low']:.2f}, {comparison['ci_high']:.2f}]"


def verdict_text(comparison: Mapping[str, Any]) -> str:
    """The verdict; a `*` where Holm's correction over the classes upholds it."""
    upheld = comparison["verdict"] in _SHOWN and comparison.get("verdict_holm") == comparison["verdict"]
    return f"{comparison['verdict']}*" if upheld else str(comparison["verdict"])


def money(usd: float) -> str:
    """Dollars, with cents or, below a tenth of a dollar, with three significant digits."""
    return f"${usd:,.2f}" if usd >= 0.1 or usd == 0 else f"${usd:.3g}"
