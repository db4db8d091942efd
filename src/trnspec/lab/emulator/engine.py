"""One arm's engine: continuous batching in real time. As on a Trn2 node, one prefill comes after the other, between decode steps.

The schedule is absolute: the planned end of a step is the planned end of the step before it plus its own cost. So a late wake-up does
not delay later steps, and a machine that stalls delivers the overdue steps at once and is on schedule again.

The V0 engine of the 0.9.1 image has no `vllm:spec_decode_*` samples: on Neuron drafts are accepted inside the compiled
graph, and the server never learns how many. `generation_tokens_total` advances by one per step and sequence, and by one at the
end of a prefill, however many tokens the step yields (`LLMEngine._get_stats`, read in
https://github.com/aws-neuron/upstreaming-to-vllm at dd417b3). Speculation of other engines, which count tokens there, is not
emulated.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from trnspec.lab.emulator.payloads import EmulatedAnswer, Generation, PromptClasses, ServedArm, write_answer
from trnspec.lab.emulator.timings import Draws, StepCosts, Timed, conditional_acceptance, tokens_in_step


@dataclass(eq=False, kw_only=True)
class Sequence:
    """One request while the engine answers it."""

    answer: EmulatedAnswer
    acceptance: tuple[float, ...]
    """Per position of the window; empty for plain decoding."""
    draws: Draws
    arrival_s: float
    """On the engine's clock."""
    emitted: int = 0
    """Tokens that the client has been sent."""
    outbox: asyncio.Queue[StepOutput] = field(default_factory=asyncio.Queue)
    """What the client has not been sent yet."""

    def advance(self) -> StepOutput:
        """Return what the next step yields: one token of the prefill, then the accepted drafts and one of the target."""
        began, left = self.emitted, len(self.answer.pieces) - self.emitted
        tokens = min(left, tokens_in_step(self.acceptance, self.draws, began)) if began else 1
        self.emitted += tokens
        text = "".join(self.answer.pieces[began : self.emitted])
        return StepOutput(text, tokens, not began, self.answer.finish_reason if tokens == left else None)


@dataclass(frozen=True)
class StepOutput:
    """What one step yields for one sequence."""

    text: str
    tokens: int
    first: bool
    """Whether it comes from the prefill, which yields exactly one token."""
    finish_reason: str | None


@dataclass(frozen=True)
class DeviceStep:
    """What the device does next."""

    duration_s: float
    sequences: tuple[Sequence, ...]
    """The sequences that get tokens: the one whose prompt is prefilled, or all that run."""
    not_before_s: float = 0.0
    """When the sequence of a prefill arrived; 0 for a decode step, which follows the step before it at once."""


class Batch:
    """At most `slots` sequences run, the others wait in order of arrival.

    A free slot is filled before the next decode step, one prefill after the other (ctx_batch_size 1).
    """

    def __init__(self, *, slots: int, speculative_tokens: int, costs: StepCosts) -> None:
        self._slots, self._speculative_tokens, self._costs = slots, speculative_tokens, costs
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is; its slot is free for the next step."""
        for place in (self.running, self.waiting):
            if sequence in place:
                place.remove(sequence)

    def next_step(self) -> DeviceStep | None:
        """Begin the next step; None when there is nothing to do."""
        if self.waiting and len(self.running) < self._slots:
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            return DeviceStep(self._costs.prefill_s, (sequence,), sequence.arrival_s)
        if self.running:
            duration_s = self._costs.step_s(self._speculative_tokens, len(self.running))
            return DeviceStep(duration_s, tuple(self.running))
        return None

    def complete(self, step: DeviceStep) -> list[tuple[Sequence, StepOutput]]:
        """End a step, and return the output of each sequence that was not dropped. A finished sequence leaves its slot."""
        outputs = [(sequence, sequence.advance()) for sequence in step.sequences if sequence in self.running]
        for sequence, output in outputs:
            if output.finish_reason:
                self.drop(sequence)
        return outputs


class Engine:
    """One arm's engine; `run()` must be running for `generate()` to yield."""

    def __init__(
        self, arm: ServedArm, classes: PromptClasses, costs: StepCosts, *, time_scale: float = 1.0
    ) -> None:
        """Each step takes `time_scale` of its time."""
        self._arm, self._classes, self._costs, self._time_scale = arm, classes, costs, time_scale
        self._batch = Batch(slots=arm.max_num_seqs, speculative_tokens=arm.speculative_tokens, costs=costs)
        self._work = asyncio.Event()
        self._generated = 0

    async def generate(self, generation: Generation) -> AsyncGenerator[StepOutput]:
        """Yield the outputs of one request, one for each engine step. Closing the iterator early frees the slot."""
        sequence = self._sequence(generation)
        self._batch.waiting.append(sequence)
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
        """Run steps until the task is cancelled."""
        loop = asyncio.get_running_loop()
        planned_end = 0.0
        while True:
            step = self._batch.next_step()
            if step is None:
                self._work.clear()
                await self._work.wait()
                continue
            planned_end = max(planned_end, step.not_before_s) + step.duration_s * self._time_scale
            await asyncio.sleep(max(0.0, planned_end - loop.time()))
            for sequence, output in self._batch.complete(step):
                self._generated += 1
                sequence.outbox.put_nowait(output)

    def _sequence(self, generation: Generation) -> Sequence:
        task, most = generation.task, generation.most_tokens(self._arm)
        seed = generation.seed if type(generation.seed) is int else self._classes.seed
        forced = bool(generation.ignore_eos)
        return Sequence(
            answer=write_answer(task, self._classes.of(task), max_tokens=most, ignore_eos=forced),
            acceptance=self._acceptance(task),
            draws=Draws(seed, generation.prompt_text),
            arrival_s=asyncio.get_running_loop().time(),
        )

    def _acceptance(self, prompt: str) -> tuple[float, ...]:
        draft, k = self._arm.draft, self._arm.speculative_tokens
        drafted_as = self._classes.drafted_as(prompt)
        if isinstance(self._costs, Timed) and k:
            return self._costs.acceptance(drafted_as, draft)
        return conditional_acceptance(drafted_as, draft, k)

    def metrics(self) -> str:
        """Return the metrics of the batch and of generated tokens, in the text format of Prometheus, 0.0.4."""
        escaped = self._arm.served_names[0].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        found = {
            ("gauge", "vllm:num_requests_running"): len(self._batch.running),
            ("gauge", "vllm:num_requests_waiting"): len(self._batch.waiting),
            ("counter", "vllm:generation_tokens_total"): self._generated,
        }
        return "".join(
            f'# HELP {name} Emulated.\n# TYPE {name} {kind}\n{name}{{model_name="{escaped}"}} {value}\n'
            for (kind, name), value in found.items()
        )
