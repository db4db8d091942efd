"""The continuous batch in simulated time: slots, order, cost, and the speed-up that clients will see."""

from __future__ import annotations

from statistics import mean

import pytest

from lab.emulator.engine import Batch, Output, Sequence
from lab.emulator.texts import write_answer
from lab.emulator.timings import Draws, StepCosts, conditional_acceptance

DRAFT = "/checkpoints/Qwen/Qwen3-1.7B"
TURNAROUND_S = 0.003
CONCURRENCY = 4


def _sequence(
    prompt: str = "p", name: str = "json", *, tokens: int = 64, k: int = 0, arrival_s: float = 0.0
) -> Sequence:
    return Sequence(
        answer=write_answer(prompt, name, max_tokens=tokens),
        prompt_tokens=16,
        acceptance=conditional_acceptance(name, DRAFT, k),
        draws=Draws(1, prompt),
        arrival_s=arrival_s,
    )


def _batch(k: int = 0) -> Batch:
    return Batch(slots=4, speculative_tokens=k, costs=StepCosts())


def _advance(batch: Batch) -> list[Output]:
    step = batch.next_step()
    assert step is not None
    return batch.complete(step)


def closed_loop(name: str, k: int, *, requests: int) -> list[tuple[float, float]]:
    """TTFT and time per output token of each request, seconds, as four clients would note them: each sends its next one a
    little after its last answer ended."""
    batch = _batch(k)

    def arriving(number: int, arrival_s: float) -> Sequence:
        return _sequence(f"[{number:06x}] prompt {number % 8}", name, k=k, arrival_s=arrival_s)

    arrivals = [arriving(number, 0.0) for number in range(CONCURRENCY)]
    sent, clock = CONCURRENCY, 0.0
    came: dict[Sequence, list[float]] = {}
    while arrivals or batch.running or batch.waiting:
        if not (batch.running or batch.waiting):
            clock = max(clock, arrivals[0].arrival_s)
        while arrivals and arrivals[0].arrival_s <= clock:
            batch.submit(arrivals.pop(0))
        step = batch.next_step()
        assert step is not None
        clock = max(clock, step.not_before_s) + step.duration_s
        for output in batch.complete(step):
            came.setdefault(output.sequence, []).append(clock)
            if output.finish_reason and sent < requests:
                arrivals.append(arriving(sent, clock + TURNAROUND_S))
                sent += 1
    return [(at[0] - one.arrival_s, (at[-1] - at[0]) / (one.emitted - 1)) for one, at in came.items()]


def test_prefills_come_one_by_one_before_the_next_decode_step_and_yield_one_token() -> None:
    batch = _batch()
    for number in range(3):
        batch.submit(_sequence(arrival_s=float(number)))
    steps = [batch.next_step() for _ in range(4)]
    assert [step.prefill for step in steps if step] == [True, True, True, False]
    assert [step.duration_s for step in steps if step] == [0.048] * 3 + [0.045]
    assert [step.not_before_s for step in steps if step] == [0.0, 1.0, 2.0, 0.0]
    assert steps[0] is not None
    assert [output.tokens for output in batch.complete(steps[0])] == [1]


def test_a_dropped_sequence_yields_nothing_and_frees_its_slot_or_place() -> None:
    batch, sequences = _batch(), [_sequence() for _ in range(6)]
    for sequence in sequences:
        batch.submit(sequence)
    for _ in range(4):
        _advance(batch)
    step = batch.next_step()
    assert step is not None
    batch.drop(sequences[0])
    assert sequences[0] not in [output.sequence for output in batch.complete(step)]
    assert [output.sequence for output in _advance(batch)] == [sequences[4]]
    batch.drop(sequences[5])
    assert not batch.waiting


@pytest.mark.parametrize("k", [0, 7])
@pytest.mark.parametrize("tokens", [1, 2, 64])
def test_exactly_max_tokens_come_out(k: int, tokens: int) -> None:
    batch = _batch(k)
    batch.submit(_sequence(tokens=tokens, k=k))
    outputs: list[Output] = []
    while batch.waiting or batch.running:
        outputs += _advance(batch)
    assert sum(output.tokens for output in outputs) == tokens
    assert [output.finish_reason for output in outputs] == [None] * (len(outputs) - 1) + ["length"]


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [("repetition", 2.6, 3.0), ("numeric", 2.4, 2.8), ("json", 2.2, 2.7), ("open-ended", 0.9, 1.1)],
)
def test_a_client_sees_the_fitted_speed_up_over_64_tokens(name: str, lowest: float, highest: float) -> None:
    for requests in (8, 16, 64):
        plain, drafted = (
            mean(tpot_s for _, tpot_s in closed_loop(name, k, requests=requests)) for k in (0, 7)
        )
        assert lowest <= plain / drafted <= highest


def test_one_wave_of_requests_has_the_same_ttft_in_both_arms() -> None:
    plain, drafted = ([ttft_s for ttft_s, _ in closed_loop("json", k, requests=4)] for k in (0, 7))
    assert plain == drafted
