"""From which load on plain decoding is the cheaper one, where the measured loads show it.

In a closed loop an arm's tokens per second at a given concurrency are what its cost goes by, so the ratio of the
arms' costs is the ratio of their prices over the paired ratio of `output_tokens_per_s`, with that one's interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmark.metrics import OUTPUT_TOKENS_PER_S
from benchmark.plan import Arm, Plan


def crossovers(plan: Plan, comparisons: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each class and treatment, the lowest measured concurrency from which plain decoding stays cheaper."""
    base = plan.arm(plan.baseline)
    found = []
    for class_ in plan.classes:
        for arm in plan.arms:
            rows = [
                row
                for row in comparisons
                if (row["class"], row["treatment"], row["metric"])
                == (class_, arm.name, OUTPUT_TOKENS_PER_S.name)
                and row["concurrency"] is not None
                and row["ratio"] is not None
            ]
            if len(rows) > 1 or (rows and rows[0]["ratio"] < _price(base, arm)):
                rows.sort(key=lambda row: row["concurrency"])
                found.append(_crossover(class_, base, arm, rows))
    return found


def _crossover(class_: str, base: Arm, arm: Arm, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`shown` says whether the intervals bear it out."""
    price = _price(base, arm)
    index = len(rows)
    while index and rows[index - 1]["ratio"] < price:
        index -= 1
    shown = _sure(rows, index, price)
    text = _in_words([row["concurrency"] for row in rows], index) + _doubt(shown)
    return {
        "class": class_,
        "treatment": arm.name,
        "concurrency_from_which_plain_is_cheaper": rows[index]["concurrency"] if index < len(rows) else None,
        "shown": shown,
        "text": text
        if base.usd_per_hour and arm.usd_per_hour
        else f"{text} (arms at the same price per hour)",
    }


def _price(base: Arm, arm: Arm) -> float:
    """The arm's price over the baseline's; 1 where one of them is not known."""
    return arm.usd_per_hour / base.usd_per_hour if arm.usd_per_hour and base.usd_per_hour else 1.0


def _sure(rows: Sequence[Mapping[str, Any]], index: int, price: float) -> bool:
    """Whether the interval excludes equal cost where plain decoding becomes cheaper, or anywhere if it never does."""
    if index < len(rows):
        return rows[index]["ci_high"] is not None and rows[index]["ci_high"] < price
    return all(row["ci_low"] is not None and row["ci_low"] > price for row in rows)


def _in_words(levels: Sequence[int], index: int) -> str:
    if index == len(levels):
        return f"the baseline is cheaper at no measured load up to {levels[-1]} at a time"
    if index == 0:
        return f"the baseline is cheaper from {levels[0]} at a time on, the lowest measured load"
    return f"the baseline becomes cheaper between {levels[index - 1]} and {levels[index]} at a time"


def _doubt(shown: bool) -> str:
    return "" if shown else "; an interval there leaves it open"
