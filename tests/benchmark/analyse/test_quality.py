"""Whether one arm answers as rightly as another: against scipy, and over many simulated comparisons."""

from __future__ import annotations

import random

import pytest
from scipy.stats import binomtest  # type: ignore[import-untyped] # scipy publishes no types

from benchmark.analyse.quality import compare, mcnemar


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (0, 6), (4, 5), (12, 3), (40, 41), (600, 700)])
def test_mcnemars_p_is_scipys(gained: int, lost: int) -> None:
    wanted = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert mcnemar(gained, lost) == pytest.approx(wanted)


def test_questions_are_paired_and_those_of_one_arm_left_out() -> None:
    found = compare(
        {"a": True, "b": True, "c": False, "only": True}, {"a": True, "b": False, "c": True, "d": True}
    )
    assert (found["n"], found["gained"], found["lost"], found["difference"]) == (3, 1, 1, 0.0)


def test_arms_without_a_question_in_common_are_not_compared() -> None:
    found = compare({"a": True}, {"b": True})
    assert (found["n"], found["difference"], found["p_value"]) == (0, None, None)


def test_equal_answers_do_not_exclude_every_difference() -> None:
    same = {str(number): number % 3 > 0 for number in range(200)}
    found = compare(same, same)
    assert found["difference"] == 0
    assert -0.015 < found["ci_low"] < 0 < found["ci_high"] < 0.015


@pytest.mark.parametrize(
    ("base", "flips_down", "flips_up"), [(0.6, 0.03, 0.03), (0.9, 0.05, 0.02), (0.5, 0.2, 0.1)]
)
def test_the_interval_covers_the_true_difference_about_as_often_as_it_says(
    base: float, flips_down: float, flips_up: float
) -> None:
    noise, questions, runs = random.Random(3), 200, 1000
    true = (1 - base) * flips_up - base * flips_down
    covered = 0
    for _ in range(runs):
        plain = {str(number): noise.random() < base for number in range(questions)}
        treated = {
            key: (noise.random() >= flips_down) if right else (noise.random() < flips_up)
            for key, right in plain.items()
        }
        found = compare(plain, treated)
        covered += found["ci_low"] <= true <= found["ci_high"]
    assert 0.93 <= covered / runs <= 0.985
