"""A closed loop of clients against a `Batch`, in simulated time: what the emulator yields without
waiting for it.

The continuous batch in simulated time: slots, order, cost, and the speed-up that clients will see.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

import pytest

from lab.emulator.engine import Batch, Output, Sequence
from lab.emulator.texts import write_answer
from lab.emulator.timings import Draws, StepCosts, conditional_acceptance

DRAFT = "/checkpoints/Qwen/Qwen3-1.7B"


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What a client would note about one request; seconds."""

    ttft_s: float
    tpot_s: float
    chunks: tuple[int, ...]
    """Tokens of each chunk, the first one from the prefill."""


def closed_loop(
    prompt_class: str,
    speculative_tokens: int,
    *,
    requests: int = 64,
    concurrency: int = 4,
    max_tokens: int = 64,
    turnaround_s: float = 0.003,
) -> list[Timed]:
    """`concurrency` clients, each sending its next request `turnaround_s` after its last answer ended."""
    batch = Batch(slots=4, speculative_tokens=speculative_tokens, costs=StepCosts())
    acceptance = conditional_acceptance(prompt_class, DRAFT, speculative_tokens)

    def sequence(number: int, arrival_s: float) -> Sequence:
        prompt = f"[{number:06x}] prompt {number % 8}"
        return Sequence(
            answer=write_answer(prompt, prompt_class, max_tokens=max_tokens),
            prompt_tokens=16,
            acceptance=acceptance,
            draws=Draws(1, prompt),
            arrival_s=arrival_s,
        )

    arrivals = [sequence(number, 0.0) for number in range(concurrency)]
    sent, clock = concurrency, 0.0
    deliveries: dict[Sequence, list[tuple[float, int]]] = {}
    while arrivals or batch.running or batch.waiting:
        if not (batch.running or batch.waiting):
            clock = max(clock, arrivals[0].arrival_s)
        while arrivals and arrivals[0].arrival_s <= clock:
            batch.submit(arrivals.pop(0))
        step = batch.next_step()
        assert step is not None
        clock = max(clock, step.not_before_s) + step.duration_s
        for output in batch.complete(step):
            deliveries.setdefault(output.sequence, []).append((clock, output.tokens))
            if output.finish_reason and sent < requests:
                arrivals.append(sequence(sent, clock + turnaround_s))
                sent += 1
    return [_timed(sequence, chunks) for sequence, chunks in deliveries.items()]


def _timed(sequence: Sequence, chunks: list[tuple[float, int]]) -> Timed:
    first, last = chunks[0][0], chunks[-1][0]
    return Timed(
        ttft_s=first - sequence.arrival_s,
        tpot_s=(last - first) / sum(tokens for _, tokens in chunks[1:]),
        chunks=tuple(tokens for _, tokens in chunks),
    )


def _batch(k: int = 0) -> Batch:
    return Batch(slots=4, speculative_tokens=k, costs=StepCosts())


def _sequence(number: int = 0, *, tokens: int = 10, k: int = 0) -> Sequence:
    return Sequence(
        answer=write_answer(f"p{number}", "json", max_tokens=tokens),
        prompt_tokens=8,
        acceptance=conditional_acceptance("json", DRAFT, k),
        draws=Draws(1, f"p{number}"),
        arrival_s=float(number),
    )


def _advance(batch: Batch) -> list[Output]:
    step = batch.next_step()
    assert step is not None
    return batch.complete(step)


def _drain(batch: Batch) -> list[Output]:
    outputs: list[Output] = []
    while batch.waiting or batch.running:
        outputs.extend(_advance(batch))
    return outputs


def test_prefills_come_one_by_one_before_the_next_decode_step_and_yield_one_token() -> None:
    batch = _batch()
    for number in range(3):
        batch.submit(_sequence(number))
    steps = [batch.next_step() for _ in range(4)]
    assert [step.prefill for step in steps if step] == [True, True, True, False]
    assert [step.duration_s for step in steps if step] == [0.048] * 3 + [0.045]
    assert [step.not_before_s for step in steps if step] == [0.0, 1.0, 2.0, 0.0]
    assert steps[0] is not None
    assert [output.tokens for output in batch.complete(steps[0])] == [1]


def test_a_dropped_sequence_yields_nothing_and_frees_its_slot_or_place() -> None:
    batch = _batch()
    sequences = [_sequence(number) for number in range(5)]
    for sequence in sequences:
        batch.submit(sequence)
    for _ in range(4):
        _advance(batch)
    step = batch.next_step()
    assert step is not None
    batch.drop(sequences[0])
    assert sequences[0] not in [output.sequence for output in batch.complete(step)]
    assert [output.sequence for output in _advance(batch)] == [sequences[4]]
    waiting = _sequence(6)
    batch.submit(waiting)
    batch.drop(waiting)
    assert not batch.waiting


@pytest.mark.parametrize("k", [0, 7])
@pytest.mark.parametrize("tokens", [1, 2, 64])
def test_exactly_max_tokens_come_out(k: int, tokens: int) -> None:
    batch = _batch(k)
    batch.submit(_sequence(tokens=tokens, k=k))
    outputs = _drain(batch)
    assert sum(output.tokens for output in outputs) == tokens
    assert [output.finish_reason for output in outputs] == [None] * (len(outputs) - 1) + ["length"]


@pytest.mark.parametrize(
    ("prompt_class", "lowest", "highest"),
    [("repetition", 2.6, 3.0), ("numeric", 2.4, 2.8), ("json", 2.2, 2.7), ("open-ended", 0.9, 1.1)],
)
def test_a_client_sees_the_fitted_speed_up_over_64_tokens(
    prompt_class: str, lowest: float, highest: float
) -> None:
    for requests in (8, 16, 64):
        plain = mean(timed.tpot_s for timed in closed_loop(prompt_class, 0, requests=requests))
        speculative = mean(timed.tpot_s for timed in closed_loop(prompt_class, 7, requests=requests))
        assert lowest <= plain / speculative <= highest


def test_one_wave_of_requests_has_the_same_ttft_in_both_arms() -> None:
    plain, speculative = (closed_loop("json", k, requests=4) for k in (0, 7))
    assert [timed.ttft_s for timed in plain] == [timed.ttft_s for timed in speculative]
