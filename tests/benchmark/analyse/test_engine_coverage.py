"""The client in simulated time holds its loads, and finds what is true of the engine; `scripts/measure engine` has the figures."""

from __future__ import annotations

import math
from statistics import fmean

import pytest

from tests.benchmark.analyse import engine_coverage
from tests.benchmark.analyse.engine_coverage import Kind, advised, crossing_of, fixed, searched, work_of
from tests.measure.steady_state import log_speed_up


@pytest.mark.parametrize(
    "kind", [Kind(k=1, concurrency=4), Kind(k=7, concurrency=4), Kind(k=1, concurrency=4, starts=2)]
)
def test_what_runs_find_is_the_steady_state_in_the_mean(kind: Kind) -> None:
    """Of a start, or of all starts: the error over several runs is small, and most intervals hold the truth."""
    found = [fixed(kind, f"smoke/{run}") for run in range(24)]
    errors = [math.log(one["ratio"]) - truth for one, truth in found]
    each = 0.065 / math.sqrt(kind.starts) if kind.starts > 1 else 0.04
    assert abs(fmean(errors)) < 3 * each / math.sqrt(len(found))
    held = sum(one["ci_low"] <= math.exp(truth) <= one["ci_high"] for one, truth in found)
    assert held >= (15 if kind.starts == 1 else 5)


def test_a_run_against_itself_finds_no_difference_in_the_mean() -> None:
    found = [fixed(Kind(k=1, concurrency=8, same=True), f"smoke/{run}")[0] for run in range(20)]
    assert fmean(math.log(one["ratio"]) for one in found) == pytest.approx(0, abs=0.02)
    assert sum(one["verdict"] in ("faster", "slower") for one in found) <= 6


def test_a_search_in_simulated_time_ends_near_the_crossing(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [(16.0, 0.063), (20.0, 0.02), (24.0, -0.025), (32.0, -0.07)]
    monkeypatch.setattr(engine_coverage, "_curve", lambda k: known)
    assert crossing_of(1, 0.0) == pytest.approx(21.8, abs=0.1)
    assert crossing_of(1, 0.1) is None
    found, truth, cells = searched(Kind(k=1), "smoke/3")
    assert isinstance(truth, float)
    assert found["found"] == "crossing"
    assert found["load"] == pytest.approx(truth, rel=0.35)
    assert 4 <= cells <= 12


def test_advice_in_simulated_time_ranges_over_the_truth_of_windows_that_were_not_timed() -> None:
    truth = {k: log_speed_up(4, k, work_of(7)) for k in (1, 3)}
    for beside in ((), (1,)):
        rows, choice, shift = advised(beside, "smoke/2")
        assert math.log(rows[3]["low"]) <= truth[3] + shift <= math.log(rows[3]["high"])
        assert 1 in choice, "the window that is best in truth"
    assert math.log(rows[1]["speed_up"]) == pytest.approx(truth[1] + shift, abs=0.06)
