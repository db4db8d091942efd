"""The step loop: a batch advanced in real time by one asyncio task.

The schedule is absolute. A step ends when the one before it was planned to end plus its own cost, so a late
wake-up is not carried on to the steps after it; a machine that stalls delivers the overdue steps at once
and is back in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from lab.emulator.acceptance import Draws, conditional_acceptance
from lab.emulator.argv import ServedArm
from lab.emulator.batch import Batch, Output, Sequence
from lab.emulator.metrics import Load, Meters
from lab.emulator.prompts import PromptClasses
from lab.emulator.requests import Generation
from lab.emulator.text import write_answer
from lab.emulator.timing import StepCosts


class Engine:
    """One arm's engine; `run()` must be running for `generate()` to yield."""

    def __init__(self, arm: ServedArm, classes: PromptClasses, costs: StepCosts, meters: Meters) -> None:
        self._arm = arm
        self._classes = classes
        self._meters = meters
        self._batch = Batch(slots=arm.max_num_seqs, speculative_tokens=arm.speculative_tokens, costs=costs)
        self._outboxes: dict[Sequence, asyncio.Queue[Output]] = {}
        self._last_output_s: dict[Sequence, float] = {}
        self._work = asyncio.Event()

    @property
    def load(self) -> Load:
        """How full the engine is at this moment."""
        capacity = self._arm.max_num_seqs * self._arm.max_model_len
        return Load(
            running=len(self._batch.running),
            waiting=len(self._batch.waiting),
            cache_usage=self._batch.cached_tokens / capacity,
        )

    async def generate(self, generation: Generation) -> AsyncGenerator[Output]:
        """The outputs of one request, one an engine step; closing the iterator early frees the slot."""
        sequence = self._sequence(generation)
        outbox: asyncio.Queue[Output] = asyncio.Queue()
        self._outboxes[sequence] = outbox
        self._batch.submit(sequence)
        self._work.set()
        try:
            while True:
                output = await outbox.get()
                yield output
                if output.finish_reason:
                    return
        finally:
            self._batch.drop(sequence)
            self._last_output_s.pop(sequence, None)
            del self._outboxes[sequence]

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
                self._outboxes[output.sequence].put_nowait(output)

    def _sequence(self, generation: Generation) -> Sequence:
        prompt_class = self._classes.of(generation.task)
        seed = self._classes.seed if generation.seed is None else generation.seed
        return Sequence(
            answer=write_answer(
                generation.task,
                prompt_class,
                max_tokens=generation.max_tokens,
                stop=generation.stop,
                ignore_eos=generation.ignore_eos,
            ),
            prompt_tokens=generation.prompt_tokens,
            acceptance=conditional_acceptance(prompt_class, self._arm.draft, self._arm.speculative_tokens),
            draws=Draws(seed, generation.prompt),
            arrival_s=asyncio.get_running_loop().time(),
        )

    def _measure(self, output: Output, now: float) -> None:
        sequence = output.sequence
        if output.first:
            self._meters.first_token(sequence.prompt_tokens, now - sequence.arrival_s)
        else:
            self._meters.step(now - self._last_output_s[sequence])
        self._last_output_s[sequence] = now
        if output.finish_reason:
            self._meters.finished(output.finish_reason, now - sequence.arrival_s)
