"""The continuous batch of one arm, without a clock: who waits, who runs, what the next step is and what
it yields."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from lab.emulator.acceptance import Draws, tokens_in_step
from lab.emulator.text import Answer
from lab.emulator.timing import StepCosts


@dataclass(eq=False, kw_only=True)
class Sequence:
    """One request in the engine."""

    answer: Answer
    prompt_tokens: int
    acceptance: tuple[float, ...]
    """Per position of the window; empty for plain decoding."""
    draws: Draws
    arrival_s: float
    """On the engine's clock."""
    emitted: int = 0
    """Tokens that the client has been sent."""

    @property
    def finished(self) -> bool:
        return self.emitted >= len(self.answer.pieces)


@dataclass(frozen=True, kw_only=True)
class Step:
    """What the device does next: the prefill of one sequence, or a decode step of all running ones."""

    members: tuple[Sequence, ...]
    prefill: bool
    duration_s: float
    not_before_s: float
    """Arrival of the sequence to prefill; 0 for a decode step, which follows the step before it at once."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """What one step gave one sequence."""

    sequence: Sequence
    text: str
    tokens: int
    first: bool
    """Out of the prefill, which yields exactly one token."""
    finish_reason: str | None


class Batch:
    """At most `slots` sequences run, the others wait in order of arrival.

    A free slot is filled before the next decode step, one prefill after the other (ctx_batch_size 1).
    """

    def __init__(self, *, slots: int, speculative_tokens: int, costs: StepCosts) -> None:
        self._slots = slots
        self._prefill_s = costs.prefill_s
        self._decode_s = costs.step_s(speculative_tokens)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    @property
    def cached_tokens(self) -> int:
        """Tokens whose keys and values the running sequences hold."""
        return sum(sequence.prompt_tokens + sequence.emitted for sequence in self.running)

    def submit(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is; its slot is free for the next step."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence in self.running:
            self.running.remove(sequence)

    def next_step(self) -> Step | None:
        """Begin the next step; None when there is nothing to do."""
        if self.waiting and len(self.running) < self._slots:
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            return Step(
                members=(sequence,),
                prefill=True,
                duration_s=self._prefill_s,
                not_before_s=sequence.arrival_s,
            )
        if self.running:
            return Step(
                members=tuple(self.running), prefill=False, duration_s=self._decode_s, not_before_s=0.0
            )
        return None

    def complete(self, step: Step) -> list[Output]:
        """End a step: tokens for every member that was not dropped meanwhile; finished ones leave their
        slot."""
        outputs = [self._advance(sequence, step) for sequence in step.members if sequence in self.running]
        self.running = [sequence for sequence in self.running if not sequence.finished]
        return outputs

    def _advance(self, sequence: Sequence, step: Step) -> Output:
        start = sequence.emitted
        tokens = 1 if step.prefill else tokens_in_step(sequence.acceptance, sequence.draws, start)
        pieces = sequence.answer.pieces[start : start + tokens]
        sequence.emitted += len(pieces)
        return Output(
            sequence=sequence,
            text="".join(pieces),
            tokens=len(pieces),
            first=step.prefill,
            finish_reason=sequence.answer.finish_reason if sequence.finished else None,
        )
