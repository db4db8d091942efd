"""One arm's engine: a batch without a clock, and the loop that advances it in real time.

The schedule is absolute. A step ends when the one before it was planned to end plus its own cost, so a late wake-up does
not delay the steps after it; a machine that stalls delivers the overdue steps at once and is on schedule again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist

from lab.emulator.h200 import Pauses, Start, StepTimes, conditional
from lab.emulator.joined import JoinedBatch, JoinedStep
from lab.emulator.meters import Meters
from lab.emulator.openai_api import Generation
from lab.emulator.served_arm import ServedArm
from lab.emulator.texts import Answer, PromptClasses, write_answer
from lab.emulator.timings import Draws, StepCosts, Timed, conditional_acceptance, tokens_in_step


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
    last_output_s: float = 0.0
    outbox: asyncio.Queue[Output] = field(default_factory=asyncio.Queue)
    """What the client has not been sent yet."""

    @property
    def finished(self) -> bool:
        return self.emitted >= len(self.answer.pieces)

    @cached_property
    def yields(self) -> tuple[int, ...]:
        """Tokens of each decode step after the prefill, which yields one."""
        position, found = 1, list[int]()
        while (left := len(self.answer.pieces) - position) > 0:
            found.append(min(left, tokens_in_step(self.acceptance, self.draws, position)))
            position += found[-1]
        return tuple(found)

    def take(self, tokens: int, *, first: bool) -> Output:
        """The next tokens of the answer, fewer where it ends."""
        pieces = self.answer.pieces[self.emitted : self.emitted + tokens]
        self.emitted += len(pieces)
        return Output(
            sequence=self,
            text="".join(pieces),
            tokens=len(pieces),
            first=first,
            finish_reason=self.answer.finish_reason if self.finished else None,
        )


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
        self._costs = costs
        self._speculative_tokens = speculative_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

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
                duration_s=self._costs.prefill_s,
                not_before_s=sequence.arrival_s,
            )
        if self.running:
            decode_s = self._costs.step_s(self._speculative_tokens, len(self.running))
            return Step(members=tuple(self.running), prefill=False, duration_s=decode_s, not_before_s=0.0)
        return None

    def complete(self, step: Step) -> list[Output]:
        """End a step: tokens for every member that was not dropped meanwhile; finished ones leave their slot."""
        outputs = [self._advance(sequence, step) for sequence in step.members if sequence in self.running]
        self.running = [sequence for sequence in self.running if not sequence.finished]
        return outputs

    def _advance(self, sequence: Sequence, step: Step) -> Output:
        tokens = 1 if step.prefill else tokens_in_step(sequence.acceptance, sequence.draws, sequence.emitted)
        return sequence.take(tokens, first=step.prefill)


class Joined:
    """The batch in which prefills join decode steps, with the steps of `Batch`."""

    def __init__(self, *, slots: int, speculative_tokens: int, start: Start, time_scale: float) -> None:
        times = StepTimes(speculative_tokens=speculative_tokens, factor=start.factor * time_scale)
        pauses = Pauses(start.dice, speculative_tokens)
        self._batch: JoinedBatch[Sequence] = JoinedBatch(slots=slots, times=times, pauses=pauses)
        self._begun: JoinedStep[Sequence] | None = None

    @property
    def waiting(self) -> deque[Sequence]:
        return self._batch.waiting

    @property
    def running(self) -> list[Sequence]:
        return self._batch.running

    def submit(self, sequence: Sequence) -> None:
        self._batch.submit(sequence)

    def drop(self, sequence: Sequence) -> None:
        self._batch.drop(sequence)

    def next_step(self) -> Step | None:
        """Begin the next step; None when there is nothing to do."""
        self._begun = begun = self._batch.next_step()
        if begun is None:
            return None
        members = tuple(self._batch.running)
        return Step(
            members=members, prefill=False, duration_s=begun.duration_s, not_before_s=begun.not_before_s
        )

    def complete(self, _: Step) -> list[Output]:
        """End the step that was begun."""
        ended = self._batch.complete(self._begun) if self._begun else []
        return [sequence.take(tokens, first=not sequence.emitted) for sequence, tokens in ended]


class Engine:
    """One arm's engine; `run()` must be running for `generate()` to yield."""

    def __init__(
        self,
        arm: ServedArm,
        classes: PromptClasses,
        costs: StepCosts,
        meters: Meters,
        *,
        start: Start | None = None,
        time_scale: float = 1.0,
    ) -> None:
        """`costs` as they are with `time_scale`; with a `start`, the engine is an H200's and they count for nothing."""
        self._arm = arm
        self._classes = classes
        self._meters = meters
        self._timed = costs if isinstance(costs, Timed) else None
        self._start = start
        slots, k = arm.max_num_seqs, arm.speculative_tokens
        self._batch: Batch | Joined = (
            Joined(slots=slots, speculative_tokens=k, start=start, time_scale=time_scale)
            if start
            else Batch(slots=slots, speculative_tokens=k, costs=costs)
        )
        self._work = asyncio.Event()

    @property
    def gauges(self) -> dict[str, float]:
        """How full the engine is at this moment."""
        capacity = self._arm.max_num_seqs * self._arm.max_model_len
        cached = sum(sequence.prompt_tokens + sequence.emitted for sequence in self._batch.running)
        return {
            "vllm:num_requests_running": len(self._batch.running),
            "vllm:num_requests_waiting": len(self._batch.waiting),
            "vllm:gpu_cache_usage_perc": cached / capacity,
        }

    async def generate(self, generation: Generation) -> AsyncGenerator[Output]:
        """The outputs of one request, one an engine step; closing the iterator early frees the slot."""
        sequence = self._sequence(generation)
        self._batch.submit(sequence)
        self._work.set()
        try:
            while True:
                output = await sequence.outbox.get()
                yield output
                if output.finish_reason:
                    return
        finally:
            self._batch.drop(sequence)

    async def run(self) -> None:
        """Advance the batch until cancelled."""
        loop = asyncio.get_running_loop()
        planned_end = 0.0
        while True:
            step = self._batch.next_step()
            if step is None:
                self._work.clear()
                await self._work.wait()
                continue
            planned_end = max(planned_end, step.not_before_s) + step.duration_s
            await asyncio.sleep(max(0.0, planned_end - loop.time()))
            for output in self._batch.complete(step):
                self._measure(output, loop.time())
                output.sequence.outbox.put_nowait(output)

    def _sequence(self, generation: Generation) -> Sequence:
        prompt_class = self._classes.of(generation.task)
        seed = self._classes.seed if generation.seed is None else generation.seed
        return Sequence(
            answer=write_answer(
                generation.task,
                prompt_class,
                max_tokens=generation.max_tokens,
                ignore_eos=generation.ignore_eos,
            ),
            prompt_tokens=generation.prompt_tokens,
            acceptance=self._acceptance(
                generation.task, Draws(seed, f"difficulty of {generation.task}").at(0)
            ),
            draws=Draws(seed, generation.prompt),
            arrival_s=asyncio.get_running_loop().time(),
        )

    def _acceptance(self, prompt: str, rank: float) -> tuple[float, ...]:
        """`rank`: which share of all prompts is harder to draft, where prompts differ."""
        draft, k = self._arm.draft, self._arm.speculative_tokens
        if self._start:
            z = NormalDist().inv_cdf(min(max(rank, 1e-6), 1 - 1e-6))
            return conditional(self._start.shares, k, z) if k else ()
        drafted_as = self._classes.drafted_as(prompt)
        return (
            self._timed.acceptance(drafted_as, draft)
            if self._timed and k
            else conditional_acceptance(drafted_as, draft, k)
        )

    def _measure(self, output: Output, now: float) -> None:
        sequence = output.sequence
        if output.first:
            self._meters.first_token(sequence.prompt_tokens, now - sequence.arrival_s)
        else:
            self._meters.step(now - sequence.last_output_s)
        sequence.last_output_s = now
        if output.finish_reason:
            self._meters.finished(output.finish_reason, now - sequence.arrival_s)
