"""Statistics: against scipy and tables, and against simulated measurements whose truth is known."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import product

import pytest
from scipy import stats  # type: ignore[import-untyped] # scipy publishes no types

from benchmark.analyse.beside import compare, mcnemar
from benchmark.analyse.comparison import result
from benchmark.analyse.stats import (
    Estimate,
    clustered_mean,
    fisher_more,
    holm,
    percentile,
    t_quantile,
    two_sided_tail,
    wilson,
)
from tests.benchmark.analyse.noise import Measurement, Noise, heavy, log_normal, stalls

COUNTS = [(0, 1), (1, 1), (0, 32), (2, 32), (31, 32), (32, 32), (7, 500), (0, 500)]


def of(*values: float, times: int = 1) -> Estimate:
    """Each value is another prompt's."""
    return clustered_mean({str(i): [value] * times for i, value in enumerate(values)})


def test_t_quantiles_shares_and_tests_are_those_of_scipy() -> None:
    for p, degrees in product((0.025, 0.975, 0.995), (1, 2, 7, 30, 100_000)):
        assert t_quantile(p, degrees) == pytest.approx(stats.t.ppf(p, degrees), rel=1e-3)
    assert two_sided_tail(40, 30) == pytest.approx(2 * stats.t.sf(40, 30), rel=1e-6)
    for count, n in COUNTS:
        share = stats.binomtest(count, n).proportion_ci(method="wilson")
        assert wilson(count, n) == pytest.approx((share.low, share.high), abs=1e-12)
    assert wilson(0, 0) == (0.0, 1.0), "of nothing nothing is known"
    for (count, n), (other, n_other) in product(COUNTS, COUNTS):
        table = [[count, n - count], [other, n_other - other]]
        exact = stats.fisher_exact(table, "greater").pvalue
        assert fisher_more(count, n, other, n_other) == pytest.approx(exact, rel=1e-9)
    for gained, lost in ((1, 0), (0, 6), (4, 5), (12, 3), (40, 41), (600, 700)):
        assert mcnemar(gained, lost) == pytest.approx(stats.binomtest(gained, gained + lost).pvalue)
    assert mcnemar(0, 0) == 1.0


def test_percentiles_lie_linearly_between_neighbours() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    assert [percentile(values, p) for p in (0, 25, 50, 90, 100)] == pytest.approx([1, 1.75, 2.5, 3.7, 4])
    assert percentile([7.0], 99) == 7.0


def test_an_interval_is_students_over_prompts_and_repeating_them_does_not_narrow_it() -> None:
    sample = [0.3, 0.1, 0.4, 0.1, 0.5, 0.9, 0.2, 0.6]
    once, often, theirs = of(*sample), of(*sample, times=50), stats.ttest_1samp(sample, 0)
    assert (once.low, once.high) == pytest.approx(tuple(theirs.confidence_interval()), rel=1e-6)
    assert (often.low, often.high) == pytest.approx((once.low, once.high))
    assert (once.n, often.n, often.clusters) == (8, 400, 8)
    assert once.p_value() == pytest.approx(theirs.pvalue, rel=1e-9)
    assert of(0.0, 0.0).p_value() == 1.0
    assert of(0.1, 0.1).p_value() == 0.0
    assert (of(0.1).p_value(), of(0.1).detectable) == (None, None)


def test_the_detectable_mean_is_found_in_four_of_five_repetitions() -> None:
    for prompts in (6, 8, 16, 32):
        found = of(*((-1.0) ** i for i in range(prompts)))
        assert found.detectable is not None
        assert found.error is not None
        shift = found.detectable / found.error
        power = stats.nct.sf(t_quantile(0.975, prompts - 1), prompts - 1, shift)
        assert power == pytest.approx(0.8, abs=0.02)


def test_holms_correction_is_the_one_of_his_paper() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([None, 0.02, None]) == [None, 0.02, None]
    assert holm([]) == []


RUNS = 300
"""Limits below are as wide as so many need; coverage.py has those of thousands."""


@pytest.mark.parametrize("noise", [log_normal, heavy, stalls])
@pytest.mark.parametrize("prompts", [8, 16])
def test_intervals_contain_the_true_speed_up_and_an_arm_hardly_ever_differs_from_itself(
    noise: Noise, prompts: int
) -> None:
    dice, cell = random.Random(11), Measurement(noise=noise, prompts=prompts, requests=prompts * 3 // 2)
    found = [result(cell.log_ratios(dice), judged=True) for _ in range(RUNS)]
    covered = sum(one["ci_low"] <= math.exp(cell.log_speed_up) <= one["ci_high"] for one in found)
    assert 0.91 <= covered / RUNS <= 0.99
    same = replace(cell, requests=2 * prompts).without_difference()
    verdicts = [result(same.log_ratios(dice), judged=True)["verdict"] for _ in range(RUNS)]
    assert sum(verdict in ("faster", "slower") for verdict in verdicts) / RUNS <= 0.09


def test_answers_are_compared_over_the_questions_of_both_arms() -> None:
    found = compare(
        {"a": True, "b": True, "c": False, "only": True}, {"a": True, "b": False, "c": True, "d": True}
    )
    assert (found["n"], found["gained"], found["lost"], found["difference"]) == (3, 1, 1, 0.0)
    found = compare({"a": True}, {"b": True})
    assert (found["n"], found["difference"], found["p_value"]) == (0, None, None)
    same = {str(number): number % 3 > 0 for number in range(200)}
    found = compare(same, same)
    assert found["difference"] == 0
    assert -0.015 < found["ci_low"] < 0 < found["ci_high"] < 0.015, "equal answers do not exclude everything"


@pytest.mark.parametrize(("base", "down", "up"), [(0.6, 0.03, 0.03), (0.9, 0.05, 0.02), (0.5, 0.2, 0.1)])
def test_the_interval_of_a_loss_of_answers_covers_about_as_often_as_it_says(
    base: float, down: float, up: float
) -> None:
    """Right answers become wrong with the probability `down`, wrong ones right with `up`."""
    noise, runs, covered = random.Random(3), 1000, 0
    for _ in range(runs):
        plain = {str(number): noise.random() < base for number in range(200)}
        treated = {
            key: noise.random() >= down if right else noise.random() < up for key, right in plain.items()
        }
        found = compare(plain, treated)
        covered += found["ci_low"] <= (1 - base) * up - base * down <= found["ci_high"]
    assert 0.93 <= covered / runs <= 0.985
