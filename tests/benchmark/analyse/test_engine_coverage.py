"""The client in simulated time holds its loads, and finds what is true of the engine; `scripts/measure engine` has the figures."""

from __future__ import annotations

import math
import random
from itertools import product
from statistics import fmean, median

import pytest

from benchmark.cell_size import ANSWERS_A_BLOCK
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from tests.benchmark.analyse import engine_coverage
from tests.benchmark.analyse.engine_coverage import (
    Kind,
    Search,
    advised,
    crossing_of,
    fixed,
    searched,
    work_of,
)
from tests.benchmark.analyse.held_runs import PLAIN, SimulatedRun, plan_of, servers
from tests.measure.steady_state import log_speed_up

AT_ONCE = 8


@pytest.fixture(scope="module")
def run() -> RawRun:
    """Two starts of two servers."""
    dice = random.Random(1)
    arms = servers(dice, {PLAIN: 0, "spec": 1}, 2)
    plan = plan_of(arms, work_of(1), prompts=8, concurrency=[AT_ONCE], requests=32, starts=2)
    return SimulatedRun(plan=plan, arms=arms, work=work_of(1), dice=dice).listed()


def _span(one: RequestRecord) -> tuple[float, float]:
    return one.started_unix_s, one.started_unix_s + (one.e2e_s or 0.0)


def test_a_simulated_block_keeps_the_load_up_while_it_is_measured(run: RawRun) -> None:
    assert len(run.blocks) == 8
    for block in run.blocks:
        own = [one for one in run.requests if (one.arm, one.block) == (block.arm, block.block)]
        counted = [one for one in own if one.phase == "measured"]
        assert block.steady_from_s is not None
        assert block.steady_until_s is not None
        answer_s = median(one.e2e_s or 0.0 for one in counted)
        assert block.steady_until_s - block.steady_from_s >= 0.9 * ANSWERS_A_BLOCK * answer_s
        spans = [_span(one) for one in own]
        ends = [_span(one)[1] for one in counted]
        for at in (one.started_unix_s + 0.0005 for one in counted):
            under_way = sum(begun <= at < ended for begun, ended in spans)
            assert under_way >= AT_ONCE - 1, "one at most is between two requests"
        assert max(ends) <= block.started_unix_s + block.duration_s + 1e-6
        assert {one.phase for one in own} == {"ramp", "measured", "drain"}


def test_both_arms_are_asked_the_same_in_the_same_order_under_each_start(run: RawRun) -> None:
    for start, number in product((1, 2), range(1, 5)):
        plain, spec = (
            [
                (one.pair_id, one.prompt_id)
                for one in sorted(run.requests, key=lambda one: one.pair_id)
                if (one.arm, one.start, one.block, one.phase) == (arm, start, number, "measured")
            ]
            for arm in (PLAIN, "spec")
        )
        both = min(len(plain), len(spec))
        assert plain[:both] == spec[:both]
        assert bool(both) is (number in ((1, 2) if start == 1 else (3, 4)))


@pytest.mark.parametrize("kind", [Kind(k=1, at_once=4), Kind(k=7, at_once=4), Kind(k=1, at_once=4, starts=2)])
def test_what_runs_find_is_the_steady_state_in_the_mean(kind: Kind) -> None:
    """Of a start, or of all starts: the error over several runs is small, and most intervals hold the truth."""
    found = [fixed(kind, f"smoke/{run}") for run in range(24)]
    errors = [math.log(one["ratio"]) - truth for one, truth in found]
    each = 0.065 / math.sqrt(kind.starts) if kind.starts > 1 else 0.04
    assert abs(fmean(errors)) < 3 * each / math.sqrt(len(found))
    held = sum(one["ci_low"] <= math.exp(truth) <= one["ci_high"] for one, truth in found)
    assert held >= (15 if kind.starts == 1 else 5)


def test_a_run_against_itself_finds_no_difference_in_the_mean() -> None:
    found = [fixed(Kind(k=1, at_once=8, same=True), f"smoke/{run}")[0] for run in range(20)]
    assert fmean(math.log(one["ratio"]) for one in found) == pytest.approx(0, abs=0.02)
    assert sum(one["verdict"] in ("faster", "slower") for one in found) <= 6


def test_a_search_in_simulated_time_ends_near_the_crossing(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [(16.0, 0.063), (20.0, 0.02), (24.0, -0.025), (32.0, -0.07)]
    monkeypatch.setattr(engine_coverage, "_curve", lambda k: known)
    assert crossing_of(1, 0.0) == pytest.approx(21.8, abs=0.1)
    assert crossing_of(1, 0.1) is None
    found, truth, cells = searched(Search(k=1), "smoke/3")
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
