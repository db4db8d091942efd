"""What a step costs and yields: the fitted model reproduces what it was fitted to, other arms have steps of their own, and a
figure that is borrowed says so."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from statistics import mean

import pytest

from tests.conftest import ROOT
from tests.experiment.edits import Variation, put
from trnspec.experiment import Experiment, load
from trnspec.lab.emulator.timings import (
    CONDITIONAL_ACCEPTANCE,
    Draws,
    StepCosts,
    Timed,
    conditional_acceptance,
    emulated,
    tokens_in_step,
)

DRAFT = "/checkpoints/Qwen/Qwen3-1.7B"
WEAK_DRAFT = "/checkpoints/Qwen/Qwen3-0.6B"
STEPS = 4000


def _expected(prompt_class: str, k: int, draft: str = DRAFT) -> float:
    """1 + a1 + a1 a2 + ...: the target's own token and every draft that survives; k at most, not k + 1."""
    return 1.0 + sum(accumulate(conditional_acceptance(prompt_class, draft, k), float.__mul__), 0.0)


@pytest.mark.parametrize(
    ("prompt_class", "tokens", "tpot_ms"),
    [
        ("repetition", 6.5, 15),
        ("numeric", 6.1, 15),
        ("json", 5.8, 16),
        ("code", 4.9, 19),
        ("open-ended", 2.1, 45),
    ],
)
def test_the_table_yields_the_documented_tokens_and_the_blogs_times_and_fifteen_are_slower_than_seven(
    prompt_class: str, tokens: float, tpot_ms: float
) -> None:
    costs = StepCosts()
    assert [costs.step_s(0), costs.step_s(7)] == pytest.approx([0.045, 0.0944])
    assert _expected(prompt_class, 7) == pytest.approx(tokens, abs=0.06)
    seven_s, fifteen_s = (costs.step_s(k) / _expected(prompt_class, k) for k in (7, 15))
    assert seven_s * 1000 == pytest.approx(tpot_ms, abs=1)
    assert fifteen_s > seven_s


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
    accepted = _expected(prompt_class, k) - 1
    assert _expected(prompt_class, k, WEAK_DRAFT) - 1 == pytest.approx(0.4 * accepted), "60 percent fewer"


def test_an_unknown_class_is_open_ended_and_without_a_window_a_step_yields_one() -> None:
    assert conditional_acceptance("poems", DRAFT, 7) == conditional_acceptance("open-ended", DRAFT, 7)
    for k in (0, 1):
        assert conditional_acceptance("repetition", DRAFT, k) == ()
        assert tokens_in_step((), Draws(1, "p"), 5) == 1


def test_arms_beyond_the_fit_are_named_with_what_differs(reference: Experiment, variation: Variation) -> None:
    def cautions(experiment: Experiment) -> dict[str, str]:
        return {name: one.caution for name, one in emulated(experiment).items() if one.caution}

    assert cautions(reference) == {}
    baseline, treated = reference.arms
    assert treated.speculation is not None
    other = replace(treated, speculation=replace(treated.speculation, num_speculative_tokens=15))
    (said,) = cautions(replace(reference, arms=(baseline, other))).values()
    assert "qwen-sd-vllm has k = 15," in said
    further = cautions(load(variation(put("serving.max_num_seqs", [4, 8]))))
    assert [*further] == ["qwen-vllm-b8", "qwen-sd-vllm-b8"]


def _steps(name: str, arm: str) -> Timed:
    timed = emulated(load(ROOT / "experiments" / name))[arm].timed
    assert timed is not None
    return timed


def test_the_reference_keeps_the_costs_that_are_fitted(reference: Experiment) -> None:
    assert {one.timed for one in emulated(reference).values()} == {None}
    assert {one.caution for one in emulated(reference).values()} == {None}


@pytest.mark.parametrize(
    ("name", "arm", "at_once", "ms"),
    [
        ("llama-3.1-8b-eagle3.yaml", "llama-vllm", 1, 10.08),
        ("llama-3.1-8b-eagle3.yaml", "llama-eagle3", 1, 16.4),
        ("llama-3.3-70b-tp64.yaml", "llama-vllm", 1, 19.66),
        ("qwen3-4b-dflash.yaml", "qwen-sync", 1, 24.7),
        ("qwen3-4b-dflash.yaml", "qwen-sync", 4, 26.9),
        ("qwen3-4b-dflash.yaml", "qwen-dflash", 1, 29.6),
        ("qwen3-4b-dflash.yaml", "qwen-dflash", 2, 163.7),
        ("qwen3-4b-dflash.yaml", "qwen-default", 4, 12.6),
    ],
)
def test_a_step_is_the_published_one_of_the_very_configuration_else_the_forecast(
    name: str, arm: str, at_once: int, ms: float
) -> None:
    assert _steps(name, arm).step_s(0, at_once) * 1000 == pytest.approx(ms, rel=0.01)


def test_a_published_mean_of_tokens_per_step_comes_out_of_the_draws() -> None:
    for name, arm in (("llama-3.1-8b-eagle3.yaml", "llama-eagle3"), ("qwen3-4b-dflash.yaml", "qwen-dflash")):
        timed = _steps(name, arm)
        acceptance = timed.acceptance("chat", "")
        assert len(acceptance) == timed.most_tokens - 1
        draws = [tokens_in_step(acceptance, Draws(seed, "a prompt"), 0) for seed in range(STEPS)]
        assert mean(draws) == pytest.approx(timed.tokens_per_step, rel=0.04)
        assert timed.known == ("chat",)


def test_a_head_of_which_nothing_is_published_says_where_its_step_is_from() -> None:
    head = emulated(load(ROOT / "experiments" / "llama-3.3-70b-native.yaml"))["llama-eagle3"]
    assert head.timed is not None
    assert (head.timed.known, head.timed.tokens_per_step) == ((), None)
    assert head.caution is not None
    assert "(a forecast)" in head.caution
