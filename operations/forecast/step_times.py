"""How long a decode step takes on Trn2, as far as published results tell.

A plain step is published. A step that drafts is not: only speed-ups are, and a speed-up is tokens per step over
the step's length. So its length is bounded from both sides and the bounds go through the whole forecast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmark.analyse.forecast import StepTimes, step_times
from experiment.catalogue.published import DRAFT, PLAIN_TPOT_S, SPEED_UP, TARGET, TENSOR_PARALLEL, WINDOW
from experiment.finding import Misuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiment import Arm
    from experiment.catalogue.models import Model

FITTED_STEP_RATIO = 2.11
"""A step with 7 drafts over a plain one, as the emulator is fitted to that result with nearly all drafts accepted
(`lab/emulator/timings.py`); between the bounds, and no more certain than they are."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Step times as they likely are, and at both ends of what is possible."""

    likely: StepTimes
    slow: StepTimes
    fast: StepTimes
    origin: str


def published(arm: Arm) -> Steps:
    """For the pair of which a result is published.

    Raises Misuse for any other: nothing is guessed from model to model.
    """
    assert arm.speculation is not None
    target, draft = arm.target.model, arm.speculation.draft.model
    if (target.name, draft.name) != (
        TARGET,
        DRAFT,
    ) or arm.serving.tensor_parallel != TENSOR_PARALLEL:
        raise Misuse(
            f"{arm.name}: no step times of {target.name} with {draft.name} at TP {arm.serving.tensor_parallel} are "
            "published; give --step-times 0=S,K=S, seconds of a plain step and of one with K drafts"
        )
    return Steps(
        likely=_with_draft_cost((FITTED_STEP_RATIO - 1) / WINDOW),
        slow=_with_draft_cost(most_draft_cost()),
        fast=_with_draft_cost(least_draft_cost(target, draft)),
        origin=f"a plain step of {PLAIN_TPOT_S * 1000:.0f} ms is quoted (AWS Machine Learning Blog, April 2026); "
        "a draft costs at least its share of the weights, at most what the published "
        f"{SPEED_UP:.1f} at k = {WINDOW} leaves room for",
    )


def measured(points: Mapping[int, float]) -> Steps:
    """From somebody's own seconds of a step by window, 0 among them; no bounds are put around them."""
    times = step_times(points)
    return Steps(likely=times, slow=times, fast=times, origin="step times as given")


def least_draft_cost(target: Model, draft: Model) -> float:
    """In plain steps: decoding reads all weights once a step, so a draft cannot cost less than its share of them."""
    return draft.parameters / target.parameters


def most_draft_cost() -> float:
    """In plain steps: k drafts yield k tokens at most, so (1 + k * d) <= k / speed-up."""
    return (WINDOW / SPEED_UP - 1) / WINDOW


def _with_draft_cost(cost: float) -> StepTimes:
    plain = PLAIN_TPOT_S
    return StepTimes(plain_s=plain, verify_s=plain, draft_s=cost * plain)
