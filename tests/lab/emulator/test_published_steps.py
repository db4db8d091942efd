"""Arms that are not the reference's: which steps they are emulated with, and what comes out of one."""

from __future__ import annotations

import pytest

from experiment import Experiment, load
from lab.emulator.published_steps import emulated, read
from lab.emulator.timings import Draws, Timed, tokens_in_step
from tests.conftest import ROOT


def _steps(name: str, arm: str) -> Timed:
    timed = emulated(load(ROOT / "experiments" / name))[arm].timed
    assert timed is not None
    return timed


def test_the_reference_keeps_the_costs_that_are_fitted_to_it(reference: Experiment) -> None:
    assert {one.timed for one in emulated(reference).values()} == {None}
    assert [one.options for one in emulated(reference).values()] == [[], []]
    lab = load(ROOT / "experiments" / "lab-tiny.yaml")
    assert {one.timed for one in emulated(lab).values()} == {None}


@pytest.mark.parametrize(
    ("name", "arm", "at_once", "ms"),
    [
        ("llama-3.1-8b-eagle3.yaml", "llama-vllm", 1, 10.08),
        ("llama-3.1-8b-eagle3.yaml", "llama-eagle3", 1, 16.4),
        ("llama-3.3-70b-tp64.yaml", "llama-vllm", 1, 19.66),
        ("qwen3-4b-dflash.yaml", "qwen-host", 1, 24.7),
        ("qwen3-4b-dflash.yaml", "qwen-host", 4, 26.9),
        ("qwen3-4b-dflash.yaml", "qwen-dflash", 1, 29.6),
        ("qwen3-4b-dflash.yaml", "qwen-dflash", 2, 163.7),
        ("qwen3-4b-dflash.yaml", "qwen-dflash", 4, 163.7),
        ("qwen3-4b-dflash.yaml", "qwen-device", 4, 12.9),
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
        draws = [tokens_in_step(acceptance, Draws(seed, "a prompt"), 0) for seed in range(4000)]
        assert sum(draws) / len(draws) == pytest.approx(timed.tokens_per_step, rel=0.04)
        assert timed.known == ("chat",)


def test_a_head_of_which_nothing_is_published_has_no_known_acceptance_and_says_where_its_step_is_from() -> (
    None
):
    one = emulated(load(ROOT / "experiments" / "llama-3.3-70b-native.yaml"))["llama-eagle3"]
    assert one.timed is not None
    assert (one.timed.known, one.timed.tokens_per_step) == ((), None)
    assert one.caution is not None
    assert "(a forecast)" in one.caution


def test_what_the_lab_writes_is_what_the_process_reads() -> None:
    one = emulated(load(ROOT / "experiments" / "qwen3-4b-dflash.yaml"))["qwen-dflash"]
    assert read(one.options[-1]) == one.timed
    assert read(one.options[-1]).scaled(2).step_s(15, 1) == pytest.approx(2 * 0.0296, rel=0.01)
