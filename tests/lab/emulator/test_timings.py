"""The fitted model reproduces what it was fitted to.

An emulated figure that was fitted to something else must say so.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from operator import mul
from statistics import mean
from typing import Any

import pytest

from experiment import Experiment, load
from lab.emulator.timings import (
    CONDITIONAL_ACCEPTANCE,
    Draws,
    StepCosts,
    cautions,
    conditional_acceptance,
    tokens_in_step,
)
from tests.experiment.edits import put

DRAFT = "/checkpoints/Qwen/Qwen3-1.7B"
WEAK_DRAFT = "/checkpoints/Qwen/Qwen3-0.6B"
STEPS = 4000


def _expected(prompt_class: str, k: int, draft: str = DRAFT) -> float:
    """1 + a1 + a1 a2 + ...: the target's own token and every draft that survives; k at most, not k + 1."""
    return 1.0 + sum(accumulate(conditional_acceptance(prompt_class, draft, k), mul), 0.0)


def _tpot_s(prompt_class: str, k: int, draft: str = DRAFT) -> float:
    return StepCosts().step_s(k) / _expected(prompt_class, k, draft)


@pytest.mark.parametrize(
    ("prompt_class", "tokens"),
    [("repetition", 6.5), ("numeric", 6.1), ("json", 5.8), ("code", 4.9), ("open-ended", 2.1)],
)
def test_the_table_yields_the_documented_tokens_per_step_and_fifteen_are_slower_than_seven(
    prompt_class: str, tokens: float
) -> None:
    assert _expected(prompt_class, 7) == pytest.approx(tokens, abs=0.06)
    assert _tpot_s(prompt_class, 15) > _tpot_s(prompt_class, 7)


@pytest.mark.parametrize("k", [2, 7, 15])
@pytest.mark.parametrize("prompt_class", sorted(CONDITIONAL_ACCEPTANCE))
def test_drawn_steps_have_the_expected_mean_and_stay_within_one_and_k(prompt_class: str, k: int) -> None:
    acceptance, draws = conditional_acceptance(prompt_class, DRAFT, k), Draws(1, prompt_class)
    steps, position = [], 1
    for _ in range(STEPS):
        steps.append(tokens_in_step(acceptance, draws, position))
        position += steps[-1]
    assert min(steps) >= 1
    assert max(steps) <= k
    assert mean(steps) == pytest.approx(_expected(prompt_class, k), rel=0.03)


def test_structured_prompts_reach_the_blogs_15_ms_and_open_ended_ones_stay_at_45() -> None:
    assert StepCosts().step_s(0) == 0.045
    assert StepCosts().step_s(7) == pytest.approx(0.0944)
    assert _tpot_s("repetition", 7) == pytest.approx(0.015, abs=0.001)
    assert _tpot_s("open-ended", 7) == pytest.approx(0.045, abs=0.002)


@pytest.mark.parametrize("k", [3, 7, 15])
def test_the_small_draft_has_60_percent_fewer_drafts_accepted(k: int) -> None:
    accepted = _expected("json", k) - 1
    assert _expected("json", k, WEAK_DRAFT) - 1 == pytest.approx(0.4 * accepted)


def test_an_unknown_class_is_like_open_ended_prompts_and_without_a_window_a_step_yields_one() -> None:
    assert conditional_acceptance("poems", DRAFT, 7) == conditional_acceptance("open-ended", DRAFT, 7)
    for k in (0, 1):
        assert conditional_acceptance("repetition", DRAFT, k) == ()
        assert tokens_in_step((), Draws(1, "p"), 5) == 1


def test_acceptance_is_decided_by_seed_prompt_and_position_alone() -> None:
    assert Draws(1, "p").at(3) == Draws(1, "p").at(3)
    assert len({Draws(1, "p").at(3), Draws(2, "p").at(3), Draws(1, "q").at(3), Draws(1, "p").at(4)}) == 4


def test_arms_beyond_the_fit_are_named_with_what_differs(reference: Experiment) -> None:
    assert cautions(reference) == {}
    baseline, treated = reference.arms
    assert treated.speculation is not None
    other = replace(treated, speculation=replace(treated.speculation, num_speculative_tokens=15))
    wider = replace(baseline, serving=baseline.serving.model_copy(update={"max_num_seqs": 2}))
    first, second = cautions(replace(reference, arms=(wider, other))).values()
    assert "qwen-vllm has 2 sequences;" in first
    assert "qwen-sd-vllm has k = 15;" in second


def test_arms_of_a_further_batch_are_named_and_those_of_the_published_one_are_not(variation: Any) -> None:
    found = cautions(load(variation(put("serving.max_num_seqs", [4, 8]))))
    assert [*found] == ["qwen-vllm-b8", "qwen-sd-vllm-b8"]
    assert all("has 8 sequences;" in told for told in found.values())
