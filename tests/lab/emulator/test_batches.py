"""Batches in simulated time: order and cost of steps."""

from __future__ import annotations

from itertools import count

from trnspec.lab.emulator.engine import Batch, Sequence
from trnspec.lab.emulator.payloads import EmulatedAnswer
from trnspec.lab.emulator.timings import Draws, StepCosts


def _sequence(tokens: int, arrival_s: float = 0.0, acceptance: tuple[float, ...] = ()) -> Sequence:
    answer = EmulatedAnswer(("x",) * tokens, "length")
    return Sequence(answer=answer, acceptance=acceptance, draws=Draws(1, "p"), arrival_s=arrival_s)


def _steps(batch: Batch, sequences: list[Sequence]) -> list[tuple[float, float, list[int]]]:
    """Duration, earliest begin and the sequences that got a token, step by step to the end."""
    found = []
    while (step := batch.next_step()) is not None:
        served = [sequences.index(one) for one, output in batch.complete(step) if output.tokens]
        found.append((step.duration_s, step.not_before_s, served))
    return found


def test_a_trn2_node_prefills_one_by_one_before_the_next_decode_step() -> None:
    costs = StepCosts()
    batch = Batch(slots=2, speculative_tokens=0, costs=costs)
    asked = [_sequence(tokens, float(number)) for number, tokens in enumerate((2, 3, 2))]
    batch.waiting.extend(asked)
    decode = costs.decode_step_s
    assert _steps(batch, asked) == [
        (costs.prefill_s, 0.0, [0]),
        (costs.prefill_s, 1.0, [1]),
        (decode, 0.0, [0, 1]),  # the first answer ends, so its slot is filled
        (costs.prefill_s, 2.0, [2]),
        (decode, 0.0, [1, 2]),
    ]


def test_a_dropped_sequence_frees_its_slot_and_gets_nothing_more() -> None:
    batch = Batch(slots=1, speculative_tokens=0, costs=StepCosts())
    first, second, third = asked = [_sequence(2) for _ in range(3)]
    batch.waiting.extend(asked)
    step = batch.next_step()
    assert step is not None
    batch.drop(first)
    batch.drop(second)
    assert batch.complete(step) == []
    assert [served for *_, served in _steps(batch, asked)] == [[2], [2]]
    assert third.emitted == 2


def test_a_drafting_step_costs_its_window_and_yields_what_is_accepted_up_to_the_answers_end() -> None:
    costs = StepCosts()
    batch = Batch(slots=1, speculative_tokens=4, costs=costs)
    batch.waiting.append(one := _sequence(10, acceptance=(1.0, 1.0, 1.0)))
    tokens, durations = list[int](), list[float]()
    for _ in count():
        if (step := batch.next_step()) is None:
            break
        durations.append(step.duration_s)
        tokens += [output.tokens for _, output in batch.complete(step)]
    assert tokens == [1, 4, 4, 1]
    assert durations == [costs.prefill_s, *[costs.step_s(4)] * 3]
    assert one.emitted == 10
