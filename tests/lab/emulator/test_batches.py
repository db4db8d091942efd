"""Batches in simulated time: order and cost of steps."""

from __future__ import annotations

from dataclasses import dataclass

from trnspec.lab.emulator.batches import SerialBatch
from trnspec.lab.emulator.timings import StepCosts


@dataclass(eq=False, kw_only=True)
class Asked:
    yields: tuple[int, ...]
    arrival_s: float = 0.0


def test_a_trn2_node_prefills_one_by_one_before_the_next_decode_step_and_a_dropped_sequence_frees_its_slot() -> (
    None
):
    costs = StepCosts()
    batch = SerialBatch[Asked](slots=4, speculative_tokens=0, costs=costs)
    asked = [Asked(yields=(1,) * (3 if number else 1), arrival_s=float(number)) for number in range(6)]
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
    drafting.submit(one := Asked(yields=(4, 2, 3)))
    tokens = []
    while (step := drafting.next_step()) is not None:
        tokens += drafting.complete(step)
    assert tokens == [(one, 1), (one, 4), (one, 2), (one, 3)]
