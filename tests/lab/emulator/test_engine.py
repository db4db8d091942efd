"""The continuous batch in simulated time: slots, order and cost. The speed-up that clients see is held by `.ci/run`."""

from __future__ import annotations

from lab.emulator.engine import Batch, Output, Sequence
from lab.emulator.texts import write_answer
from lab.emulator.timings import Draws, StepCosts


def _batch(*arrivals_s: float) -> tuple[Batch, list[Sequence]]:
    batch = Batch(slots=4, speculative_tokens=0, costs=StepCosts())
    sequences = [
        Sequence(
            answer=write_answer("p", "json", max_tokens=64),
            prompt_tokens=16,
            acceptance=(),
            draws=Draws(1, "p"),
            arrival_s=arrival_s,
        )
        for arrival_s in arrivals_s
    ]
    for sequence in sequences:
        batch.submit(sequence)
    return batch, sequences


def _advance(batch: Batch) -> list[Output]:
    step = batch.next_step()
    assert step is not None
    return batch.complete(step)


def test_prefills_come_one_by_one_before_the_next_decode_step_and_yield_one_token() -> None:
    batch, costs = _batch(0.0, 1.0, 2.0)[0], StepCosts()
    steps = [batch.next_step() for _ in range(4)]
    assert [step.prefill for step in steps if step] == [True, True, True, False]
    assert [step.duration_s for step in steps if step] == [costs.prefill_s] * 3 + [costs.decode_step_s]
    assert [step.not_before_s for step in steps if step] == [0.0, 1.0, 2.0, 0.0]
    assert steps[0] is not None
    assert [output.tokens for output in batch.complete(steps[0])] == [1]


def test_a_dropped_sequence_yields_nothing_and_frees_its_slot_or_place() -> None:
    batch, sequences = _batch(*[0.0] * 6)
    for _ in range(4):
        _advance(batch)
    step = batch.next_step()
    assert step is not None
    batch.drop(sequences[0])
    assert sequences[0] not in [output.sequence for output in batch.complete(step)]
    assert [output.sequence for output in _advance(batch)] == [sequences[4]]
    batch.drop(sequences[5])
    assert not batch.waiting
