"""A summary without its verdicts, where the baseline did not answer sensibly: what a server that writes nonsense takes for it says
nothing about a server that works. What was measured of each arm stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_VERDICT_OF_A_RATIO = (
    *("ratio", "ci_low", "ci_high", "together", "p_value", "p_holm", "verdict_holm"),
    "detectable_ratio",
)


def is_withheld(summary: Mapping[str, Any]) -> bool:
    """Whether a summary's run gets no verdict."""
    return bool((summary.get("sense") or {}).get("withheld"))


def withheld(summary: dict[str, Any]) -> dict[str, Any]:
    """The summary as it is, or without every verdict about arms: comparisons, mix, best arm, crossovers, search, why."""
    if not is_withheld(summary):
        return summary
    return {
        **summary,
        "run": {**summary["run"], "crossover": []},
        "comparisons": [_not_judged(row) for row in summary["comparisons"]],
        "mix": [_not_judged(row) for row in summary["mix"]],
        "explanations": [],
        "best": [],
        "crossovers": [],
        "search": None,
        "objectives": [],
    }


def _not_judged(row: Mapping[str, Any]) -> dict[str, Any]:
    empty = {key: None for key in _VERDICT_OF_A_RATIO if key in row}
    return {**row, **empty, "verdict": "not judged"}
