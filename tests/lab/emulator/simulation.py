"""A closed loop of clients against a `Batch`, in simulated time: what the emulator yields without
waiting for it."""

from __future__ import annotations

from dataclasses import dataclass

from lab.emulator.acceptance import Draws, conditional_acceptance
from lab.emulator.batch import Batch, Sequence
from lab.emulator.text import write_answer
from lab.emulator.timing import StepCosts

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
