"""The short version of tests/benchmark/analyse/coverage.py: limits as wide as a few hundred runs need."""

from __future__ import annotations

import math
import random

import pytest

from benchmark.analyse.comparison import compare
from tests.benchmark.analyse.noise import ARMS, Measurement, Noise, heavy, log_normal, stalls

RUNS = 300


@pytest.mark.parametrize("noise", [log_normal, heavy, stalls])
@pytest.mark.parametrize("prompts", [8, 16])
def test_intervals_contain_the_true_speed_up(noise: Noise, prompts: int) -> None:
    dice = random.Random(11)
    cell = Measurement(noise=noise, prompts=prompts, requests=prompts * 3 // 2)
    found = [compare(ARMS, cell.pairs(dice))[0] for _ in range(RUNS)]
    covered = sum(one["ci_low"] <= math.exp(cell.log_speed_up) <= one["ci_high"] for one in found)
    assert 0.91 <= covered / RUNS <= 0.99


@pytest.mark.parametrize("noise", [log_normal, heavy, stalls])
def test_an_arm_hardly_ever_differs_from_itself(noise: Noise) -> None:
    dice = random.Random(12)
    cell = Measurement(noise=noise, prompts=16, requests=32).without_difference()
    found = [compare(ARMS, cell.pairs(dice))[0] for _ in range(RUNS)]
    assert sum(one["verdict"] in ("faster", "slower") for one in found) / RUNS <= 0.09
