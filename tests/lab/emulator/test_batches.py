"""Batches in simulated time: order, cost, budget, lockstep, and that a leap is the steps it leaps over."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from statistics import fmean

import pytest

from lab.emulator.batches import SerialBatch
from lab.emulator.h200 import (
    FURTHER_MS,
    MID,
    PREFILL_S_PER_TOKEN,
    H200StepTimes,
    conditional,
    step_ms,
)
from lab.emulator.timings import StepCosts
from tests.measure.steady_state import (
    Asked,
    LeapingBatch,
    SummedPauses,
    Workload,
    drawn_yields,
    engine,
    log_speed_up,
    span_s,
)


class Even(SummedPauses):
    """No pause differs from the mean."""

    def __init__(self) -> None:
        super().__init__(random.Random(1), 0)

    def _draw(self, first: int, count: int) -> None:
        self._sums = [float(one) for one in range(first + count + 1)]


def _batch(*, budget: int = 2048, every: int = 1, slots: int = 8) -> LeapingBatch[Asked]:
    return LeapingBatch(
        slots=slots, times=H200StepTimes(), pauses=Even(), budget_tokens=budget, admitted_every=every
    )


def _asked(prompt: int = 10, steps: int = 3, arrival_s: float = 0.0) -> Asked:
    return Asked(prompt, (1,) * steps, arrival_s)


def _steps(batch: LeapingBatch[Asked], count: int) -> list[list[tuple[Asked, int]]]:
    found = []
    for _ in range(count):
        step = batch.next_step()
        assert step is not None
        found.append(batch.complete(step))
    return found


def test_a_trn2_node_prefills_one_by_one_before_the_next_decode_step_and_a_dropped_sequence_frees_its_slot() -> (
    None
):
    costs = StepCosts()
    batch = SerialBatch[Asked](slots=4, speculative_tokens=0, costs=costs)
    asked = [_asked(arrival_s=float(number), steps=3 if number else 1) for number in range(6)]
    for one in asked:
        batch.submit(one)
    for one in asked[:4]:
        step = batch.next_step()
        assert step is not None
        assert (step.duration_s, step.not_before_s) == (costs.prefill_s, one.arrival_s)
        assert batch.complete(step) == [(one, 1)]
    step = batch.next_step()
    assert step is not None
    assert (step.duration_s, step.not_before_s) == (costs.decode_step_s, 0.0)
    batch.drop(asked[1])
    assert batch.complete(step) == [(asked[0], 1), (asked[2], 1), (asked[3], 1)]
    assert batch.running == asked[2:4], "the first one's answer has ended"
    step = batch.next_step()
    assert step is not None
    assert batch.complete(step) == [(asked[4], 1)]
    batch.drop(asked[5])
    assert not batch.waiting
    drafting = SerialBatch[Asked](slots=1, speculative_tokens=7, costs=costs)
    drafting.submit(one := Asked(10, (4, 2, 3), 0.0))
    tokens = []
    while (step := drafting.next_step()) is not None:
        tokens += drafting.complete(step)
    assert tokens == [(one, 1), (one, 4), (one, 2), (one, 3)]


def test_prefills_run_together_and_join_the_decode_step_of_the_others() -> None:
    batch, (first, second, third) = _batch(), (_asked(), _asked(), _asked())
    batch.submit(first)
    assert _steps(batch, 1) == [[(first, 1)]]
    batch.submit(second)
    batch.submit(third)
    step = batch.next_step()
    assert step is not None
    assert step.duration_s == pytest.approx(0.0184 + 20 * PREFILL_S_PER_TOKEN)
    assert batch.complete(step) == [(first, 1), (second, 1), (third, 1)]


def test_a_long_prompt_is_prefilled_in_chunks_of_what_the_decoding_ones_leave() -> None:
    batch, (first, long, last) = _batch(budget=5), (_asked(4, 9), _asked(10, 1), _asked(3, 1))
    batch.submit(first)
    _steps(batch, 1)
    batch.submit(long)
    batch.submit(last)
    chunks = []
    for _ in range(4):
        step = batch.next_step()
        assert step is not None
        chunks.append([(place.member, tokens) for place, tokens in step.chunks])
        batch.complete(step)
    assert chunks == [[(long, 4)], [(long, 4)], [(long, 2), (last, 2)], [(last, 1)]]


def test_waiting_requests_are_let_in_together_and_run_in_lockstep() -> None:
    batch, (first, *others) = _batch(every=4), [_asked(steps=9) for _ in range(3)]
    batch.submit(first)
    _steps(batch, 1)
    for other in others:
        batch.submit(other)
    alone, together = _steps(batch, 3), _steps(batch, 1)
    assert alone == [[(first, 1)]] * 3
    assert [member for member, _ in together[0]] == [first, *others]
    assert len(batch.leap(math.inf)) == 1
    assert {place.member for place in batch.leap(math.inf)} == set(others)


@pytest.mark.slow  # simulates some hundred thousand steps
def test_a_burst_that_drains_flatters_drafting_until_the_sign_is_wrong() -> None:
    """As recorded on the H200: sent at once and drained, k = 1 looked faster at a load where steady state says that it is slower."""
    work, dice = Workload(shares=(0.454,)), random.Random(4)

    def burst(k: int) -> float:
        server, logs = engine(dice, k), []
        for _ in range(24):
            rates = conditional(work.shares, k, dice.gauss(0, 1)) if k else ()
            server.submit(Asked(32, drawn_yields(dice, rates, work.drawn_tokens(dice) - 1), 0.0))
        while ended := server.leap(math.inf):
            logs += [math.log(span_s(server, place) / sum(place.member.yields)) for place in ended]
        return fmean(logs)

    assert math.exp(fmean(burst(0) - burst(1) for _ in range(20))) > 1.03
    assert math.exp(log_speed_up(24, 1, work)) < 1


def test_a_dropped_sequence_yields_nothing_and_frees_its_slot() -> None:
    batch, members = _batch(slots=2), [_asked(), _asked(), _asked()]
    for member in members:
        batch.submit(member)
    step = batch.next_step()
    assert step is not None
    batch.drop(members[0])
    assert batch.complete(step) == [(members[1], 1)]
    assert _steps(batch, 1) == [[(members[1], 1), (members[2], 1)]]
    batch.drop(members[1])
    assert batch.running == [members[2]]


@pytest.mark.parametrize("k", [0, 1, 7])
def test_a_leap_is_the_steps_that_it_leaps_over(k: int) -> None:
    """The same requests at the same times, once step by step as a server lives and once by leaps."""
    dice = random.Random(k)
    rates = conditional(MID, k) if k else ()
    asked = [
        Asked(dice.randrange(1, 3000), drawn_yields(dice, rates, dice.randrange(0, 40)), dice.uniform(0, 9))
        for _ in range(60)
    ]
    asked.sort(key=lambda one: one.arrival_s)
    leaping, stepping = (engine(random.Random("pauses"), k, 1.07) for _ in range(2))
    for one in asked:
        leaping.submit(one)
    by_leaps = dict[int, tuple[float, float]]()
    for until_s in (1.0, 1.234, 5.0, math.inf):
        while ended := leaping.leap(until_s):
            for place in ended:
                by_leaps[id(place.member)] = (leaping.now_s, span_s(leaping, place))
    by_steps, began = dict[int, tuple[float, float]](), dict[int, float]()
    now_s, due = 0.0, list(asked)
    while len(by_steps) < len(asked):
        while due and due[0].arrival_s <= now_s:
            stepping.submit(due.pop(0))
        if (step := stepping.next_step()) is None:
            now_s = due[0].arrival_s
            continue
        now_s += step.duration_s
        for member, _ in stepping.complete(step):
            began.setdefault(id(member), now_s)
            if member not in stepping.running:
                by_steps[id(member)] = (now_s, now_s - began[id(member)])
    assert len(by_leaps) == len(asked)
    for one in asked:
        assert by_leaps[id(one)] == pytest.approx(by_steps[id(one)])


def test_steps_are_the_table_and_each_draft_costs_more_than_the_one_before_it() -> None:
    assert [step_ms(0, n) for n in (1, 16, 64, 100)] == [18.4, 18.5, 20.5, 20.5]
    assert [step_ms(1, n) for n in (4, 20, 64)] == [23.5, pytest.approx(27.3), 33.3]
    assert step_ms(3, 4) == pytest.approx(43.1)
    assert 85 <= step_ms(7, 4) <= 87
    steps = [step_ms(k, 4) for k in range(8)]
    added = [round(after - before, 9) for before, after in pairwise(steps)]
    assert added == sorted(added)
    assert added[-1] == FURTHER_MS


@pytest.mark.slow  # simulates some hundred thousand steps
def test_the_truth_of_a_start_moves_with_its_factors_and_crosses_one_where_the_table_does() -> None:
    work = Workload(shares=(0.454,), answer_tokens=32, differ=8)
    base = log_speed_up(4, 1, work)
    assert log_speed_up(4, 1, work, plain_factor=1.1, drafted_factor=1.05) == pytest.approx(
        base + math.log(1.1 / 1.05)
    )
    assert base == pytest.approx(math.log(1.454 * 18.6 / 23.5), abs=0.02)
    assert log_speed_up(16, 1, work) > 0 > log_speed_up(32, 1, work)


def test_accepted_shares_are_those_that_were_set() -> None:
    rates = conditional(MID, 7)
    assert rates[:2] == pytest.approx((0.62, 0.42 / 0.62))
    dice = random.Random(1)
    steps = [len(drawn_yields(dice, rates, 2000)) for _ in range(20)]
    assert 2000 / fmean(steps) == pytest.approx(2.71, rel=0.02)
    assert conditional((0.5,), 3) == (0.5, 0.0, 0.0)
    assert conditional((0.5,), 1, z=1.0)[0] > 0.5
