"""Why one arm is faster or slower: what a step yields against what a step costs.

A decode step of the treatment takes r times one of the baseline and yields t times as many tokens. Only where
t is above r does it pay, whatever the share of accepted drafts: the speed-up to expect is t / r
(S = t * T_base / T_step, Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, with both times as measured).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmark.analyse.cells import Cells, Place
from benchmark.analyse.comparison import EQUIVALENT
from benchmark.analyse.values import pooled
from benchmark.metrics import INTER_CHUNK_LATENCY
from benchmark.plan import Arm

Described = Mapping[str, Mapping[str, Any]]
_SURPRISE = 0.05
"""A measured speed-up this far from the expected one has another cause beside the steps."""
_ONE_CHUNK_A_STEP = 0.03


def explain(
    cells: Cells, arm: Arm, place: Place, described: Described, measured_speed_up: float | None
) -> dict[str, Any]:
    """Why `arm` is as fast as it is, or null values where its steps are not known.

    `described` holds the summary's cells by arm.
    """
    base, treated = (_step(cells, one, place, described[one.name]) for one in (cells.baseline, arm))
    said: dict[str, Any] = {
        **place.to_dict(),
        "baseline": cells.plan.baseline,
        "treatment": arm.name,
        "tokens_per_step": treated[0] if treated else None,
        "step_time_ratio": None,
        "break_even_tokens_per_step": None,
        "predicted_speed_up": None,
        "measured_speed_up": measured_speed_up,
        "text": f"the steps of an arm are not known: {_why(described, arm)}",
    }
    if base and treated:
        said["step_time_ratio"] = treated[1] / base[1]
        said["break_even_tokens_per_step"] = base[0] * said["step_time_ratio"]
        said["predicted_speed_up"] = treated[0] / said["break_even_tokens_per_step"]
        said["text"] = _in_words(said)
    return said


def _why(described: Described, arm: Arm) -> str:
    notes = [described[arm.name]["acceptance"], *(cell["acceptance"] for cell in described.values())]
    unknown = [one["note"] for one in notes if one["tokens_per_step"] is None]
    return unknown[0] if unknown else "no answer has a second chunk"


def _step(cells: Cells, arm: Arm, place: Place, cell: Mapping[str, Any]) -> tuple[float, float] | None:
    """Tokens of a typical decode step, and its seconds: the median pause between chunks, if they are steps."""
    per_step, pauses = cell["acceptance"]["tokens_per_step"], cell[INTER_CHUNK_LATENCY.name]
    known = pooled(cells.answered(arm, place), arm.max_tokens_per_step)
    if per_step is None or known is None or not pauses:
        return None
    if abs(known.tokens / pauses["n"] / per_step - 1) <= _ONE_CHUNK_A_STEP and pauses["p50"] > 0:
        return per_step, pauses["p50"]  # 0 where most chunks came in the packet of the one before
    return (per_step, known.tpot_s * per_step) if known.span_s > 0 else None


def _in_words(said: dict[str, Any]) -> str:
    needed, expected, measured = (
        said["break_even_tokens_per_step"],
        said["predicted_speed_up"],
        said["measured_speed_up"],
    )
    text = (
        f"a step takes {said['step_time_ratio']:.2f} times the baseline's, so {needed:.2f} tokens per step would "
        f"break even; it yields {said['tokens_per_step']:.2f}, {_outcome(expected)}"
    )
    if measured is None:
        return text
    off = measured / expected - 1
    text = f"{text}, measured {measured:.2f}"
    if abs(off) <= _SURPRISE:
        return text
    return (
        f"{text}: {abs(off):.0%} {'above' if off > 0 else 'below'} what the steps alone explain{_cause(off)}"
    )


def _outcome(expected: float) -> str:
    if expected > EQUIVALENT[1]:
        return f"so it should be faster: {expected:.2f} expected"
    if expected < EQUIVALENT[0]:
        return f"so it should be slower: {expected:.2f} expected"
    return f"so it should be about equal: {expected:.2f} expected"


def _cause(off: float) -> str:
    return " (prefills or a queue between the steps)" if off < 0 else ""
