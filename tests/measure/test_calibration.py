"""A small part of `scripts/measure intervals`: the client in simulated time finds what is true of the engine."""

from __future__ import annotations

import math
from statistics import fmean

import pytest

from tests.measure.calibration import Kind, line_of, said_of, truth_of
from trnspec.benchmark.analyse.speed_up import FASTER, SLOWER

pytestmark = pytest.mark.slow


def test_what_runs_find_is_the_steady_state_in_the_mean_and_most_intervals_hold_it() -> None:
    kind = Kind(k=1, concurrency=4)
    rows = [said_of(kind, f"small/{run}") for run in range(24)]
    assert abs(fmean(math.log(row["ratio"]) for row in rows) - truth_of(kind)) < 0.025
    assert sum(row["ci_low"] <= math.exp(truth_of(kind)) <= row["ci_high"] for row in rows) >= 20
    assert line_of(kind, rows)[1]


def test_a_server_measured_against_itself_is_no_faster() -> None:
    kind = Kind(k=1, concurrency=4, same=True)
    rows = [said_of(kind, f"small/{run}") for run in range(24)]
    assert fmean(math.log(row["ratio"]) for row in rows) == pytest.approx(0, abs=0.02)
    assert sum(row["verdict"] in (*FASTER, *SLOWER) for row in rows) <= 3
