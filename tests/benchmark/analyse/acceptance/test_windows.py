from __future__ import annotations

import math
import random

import pytest

from benchmark.analyse.acceptance.windows import Sample, StepTimes, mixture, predict, recommended
from benchmark.analyse.stats import clustered_mean
from tests.benchmark.analyse.acceptance.process import Process

TIMES = StepTimes(plain_s=0.045, verify_s=0.045, draft_s=0.0068)


def test_step_times_that_leave_a_step_no_time_are_refused() -> None:
    sample = Sample(survival=(0.5,), times=StepTimes(plain_s=0.045, verify_s=-0.1, draft_s=0.01))
    with pytest.raises(ValueError, match="for k = 1"):
        predict([sample], 1, unused=0)


def test_what_an_answers_end_cuts_off_is_counted() -> None:
    engine = Process(conditional=(0.95,) * 7, k=7, tokens=65)
    sample = Sample(survival=engine.survival(7), times=TIMES, tokens=64)
    found = math.exp(predict([sample], 7, unused=0).log_speed_up.mean)
    assert found == pytest.approx(engine.measured_speed_up(7), rel=0.01)
    assert engine.speed_up(7) > 1.03 * found


@pytest.mark.parametrize(
    ("speed_ups", "k"),
    [
        ({1: 1.5, 2: 2.0, 3: 2.01}, 2),
        ({1: 1.5, 2: 2.0, 3: 2.1}, 3),
        ({1: 1.005, 2: 1.0}, 0),
        ({1: 1.05, 2: 1.0}, 1),
    ],
)
def test_the_smallest_window_within_one_percent_is_recommended(speed_ups: dict[int, float], k: int) -> None:
    assert recommended(speed_ups) == k


def test_the_mixtures_interval_contains_the_truth_as_often_as_it_says() -> None:
    dice = random.Random(5)
    truth = math.log(2 / (1 / 3 + 1))
    covered = 0
    for _ in range(300):
        parts = []
        for gain in (3.0, 1.0):
            values = {str(i): [math.log(gain) + dice.gauss(0, 0.2)] for i in range(8)}
            parts.append((0.5, 0.04, clustered_mean(values)))
        found = mixture(parts)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high
    assert 0.92 <= covered / 300 <= 0.98
