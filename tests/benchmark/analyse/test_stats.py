from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from scipy import stats  # type: ignore[import-untyped] # scipy publishes no types

from benchmark.analyse.comparison import result
from benchmark.analyse.stats import (
    clustered_mean,
    holm,
    percentile,
    t_quantile,
    two_sided_tail,
)
from tests.benchmark.analyse.noise import Measurement, Noise, heavy, log_normal, stalls


@pytest.mark.parametrize(
    ("degrees", "two_sided_95", "two_sided_99"),
    [(1, 12.706, 63.657), (2, 4.303, 9.925), (7, 2.365, 3.499), (30, 2.042, 2.750), (100_000, 1.960, 2.576)],
)
def test_t_quantiles_are_those_of_the_tables(degrees: int, two_sided_95: float, two_sided_99: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(two_sided_95, abs=6e-4)
    assert t_quantile(0.995, degrees) == pytest.approx(two_sided_99, abs=6e-4)
    assert t_quantile(0.025, degrees) == pytest.approx(-two_sided_95, abs=6e-4)


def test_percentiles_lie_linearly_between_neighbours() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    assert [percentile(values, p) for p in (0, 25, 50, 90, 100)] == pytest.approx([1, 1.75, 2.5, 3.7, 4])
    assert percentile([7.0], 99) == 7.0


def test_clusters_of_one_give_the_textbook_t_interval() -> None:
    # Mean 5, sample standard deviation 2: the half width is 2.776 * 2 / sqrt(5).
    sample = [5 - 2.8284271, 5.0, 5.0, 5.0, 5 + 2.8284271]
    found = clustered_mean({str(i): [value] for i, value in enumerate(sample)})
    assert found.mean == pytest.approx(5)
    assert found.low is not None
    assert found.mean - found.low == pytest.approx(2.7764 * 2 / 5**0.5, rel=1e-4)


def test_repeating_a_prompt_does_not_narrow_the_interval() -> None:
    once = clustered_mean({"a": [1.0], "b": [2.0], "c": [4.0]})
    often = clustered_mean({"a": [1.0] * 50, "b": [2.0] * 50, "c": [4.0] * 50})
    assert (often.low, often.high) == pytest.approx((once.low, once.high))
    assert (once.n, often.n, often.clusters) == (3, 150, 3)


def test_p_values_agree_with_the_interval_and_with_scipy() -> None:
    sample = [0.3, 0.1, 0.4, 0.1, 0.5, 0.9, 0.2, 0.6]
    found = clustered_mean({str(i): [value] for i, value in enumerate(sample)})
    assert found.p_value == pytest.approx(stats.ttest_1samp(sample, 0).pvalue, rel=1e-9)
    assert two_sided_tail(40, 30) == pytest.approx(2 * stats.t.sf(40, 30), rel=1e-6)


def test_the_detectable_mean_is_found_in_four_of_five_repetitions() -> None:
    for prompts in (6, 8, 16, 32):
        found = clustered_mean({str(i): [(-1.0) ** i] for i in range(prompts)})
        assert found.detectable is not None
        assert found.error is not None
        shift = found.detectable / found.error
        power = stats.nct.sf(t_quantile(0.975, prompts - 1), prompts - 1, shift)
        assert power == pytest.approx(0.8, abs=0.02)


def test_equal_values_are_certain() -> None:
    assert clustered_mean({"a": [0.0], "b": [0.0]}).p_value == 1.0
    assert clustered_mean({"a": [0.1], "b": [0.1]}).p_value == 0.0
    assert clustered_mean({"a": [0.1]}).p_value is None
    assert clustered_mean({"a": [0.1]}).detectable is None


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
