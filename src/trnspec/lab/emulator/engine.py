"""One arm's engine: the loop that advances a batch in real time, and what it counts.

The schedule is absolute. A step ends when the one before it was planned to end plus its own cost, so a late wake-up does
not delay the steps after it; a machine that stalls delivers the overdue steps at once and is on schedule again.

The V0 engine of the 0.9.1 image has no `vllm:spec_decode_*` samples: on Neuron drafts are accepted inside the compiled
graph, and the server never learns how many. As in that engine, `time_per_output_token_seconds` is observed once per step
and sequence, so under speculation it is the time of a step, not of a token; and `generation_tokens_total` advances by
one per step and sequence, and by one at the end of a prefill, however many tokens the step yields
(`LLMEngine._get_stats`, read in https://github.com/aws-neuron/upstreaming-to-vllm at dd417b3). Speculation of other
engines, which count tokens there, is not emulated.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from trnspec.experiment.catalogue.runtimes import RUNTIMES
from trnspec.lab.emulator.batches import SerialBatch
from trnspec.lab.emulator.payloads import EmulatedAnswer, Generation, PromptClasses, ServedArm, write_answer
from trnspec.lab.emulator.timings import Draws, StepCosts, Timed, conditional_acceptance, tokens_in_step

_TTFT, _STEP, _E2E = (
    f"vllm:{name}_seconds" for name in ("time_to_first_token", "time_per_output_token", "e2e_request_latency")
)
_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_STEP_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_E2E_S = (1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)


class _Histogram:
    """Observations by buckets with fixed upper bounds, in seconds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds, self._counts, self._sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self, name: str, labels: str) -> Iterator[str]:
        for bound, number in zip((*self._bounds, "+Inf"), accumulate(self._counts), strict=True):
            yield f'{name}_bucket{{{labels},le="{bound}"}} {number}'
        yield f"{name}_sum{{{labels}}} {self._sum}"
        yield f"{name}_count{{{labels}}} {sum(self._counts)}"


@dataclass(eq=False, kw_only=True)
class Sequence:
    answer: EmulatedAnswer
    prompt_tokens: int
    acceptance: tuple[float, ...]
    """Per position of the window; empty for plain decoding."""
    draws: Draws
    arrival_s: float
    """On the engine's clock."""
    emitted: int = 0
    """Tokens that the client has been sent."""
    last_output_s: float = 0.0
    outbox: asyncio.Queue[StepOutput] = field(default_factory=asyncio.Queue)
    """What the client has not been sent yet."""

    @cached_property
    def yields(self) -> tuple[int, ...]:
        """Tokens of each decode step after the prefill, which yields one."""
        position, found = 1, list[int]()
        while (left := len(self.answer.pieces) - position) > 0:
            found.append(min(left, tokens_in_step(self.acceptance, self.draws, position)))
            position += found[-1]
        return tuple(found)


@dataclass(frozen=True)
class StepOutput:
    text: str
    tokens: int
    first: bool
    """Out of the prefill, which yields exactly one token."""
    finish_reason: str | None


class Engine:
    """One arm's engine; `run()` must be running for `generate()` to yield."""

    def __init__(
        self,
        arm: ServedArm,
        classes: PromptClasses,
        costs: StepCosts,
        *,
        time_scale: float = 1.0,
    ) -> None:
        """Each step takes `time_scale` of its time."""
        self._arm = arm
        self._classes = classes
        self._costs = costs
        self._time_scale = time_scale
        self._batch: SerialBatch[Sequence] = SerialBatch(
            slots=arm.max_num_seqs, speculative_tokens=arm.speculative_tokens, costs=costs
        )
        self._work = asyncio.Event()
        self._counters: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._histograms = {
            name: _Histogram(bounds) for name, bounds in ((_TTFT, _TTFT_S), (_STEP, _STEP_S), (_E2E, _E2E_S))
        }

    async def generate(self, generation: Generation) -> AsyncGenerator[StepOutput]:
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
            for sequence, tokens in self._batch.complete(step):
                self._deliver(sequence, tokens, loop.time())

    def _sequence(self, generation: Generation) -> Sequence:
        task, most = generation.task, generation.most_tokens(self._arm)
        seed = generation.seed if type(generation.seed) is int else self._classes.seed
        return Sequence(
            answer=write_answer(
                task, self._classes.of(task), max_tokens=most, ignore_eos=bool(generation.ignore_eos)
            ),
            prompt_tokens=generation.prompt_tokens,
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

    def _deliver(self, sequence: Sequence, tokens: int, now: float) -> None:
        first, began = not sequence.emitted, sequence.emitted
        sequence.emitted += tokens
        pieces = sequence.answer.pieces
        ended = sequence.answer.finish_reason if sequence.emitted >= len(pieces) else None
        self._counters["vllm:generation_tokens_total"] += 1
        if first:
            self._counters["vllm:prompt_tokens_total"] += sequence.prompt_tokens
            self._histograms[_TTFT].observe(now - sequence.arrival_s)
        else:
            self._histograms[_STEP].observe(now - sequence.last_output_s)
        if ended:
            self._ended[ended] += 1
            self._histograms[_E2E].observe(now - sequence.arrival_s)
        sequence.last_output_s = now
        sequence.outbox.put_nowait(
            StepOutput("".join(pieces[began : sequence.emitted]), tokens, first, ended)
        )

    def metrics(self) -> str:
        """The metrics that the catalogue lists for the runtime, in the text format of Prometheus, 0.0.4."""
        capacity = self._arm.max_num_seqs * self._arm.max_model_len
        cached = sum(sequence.prompt_tokens + sequence.emitted for sequence in self._batch.running)
        gauges = {
            "vllm:num_requests_running": len(self._batch.running),
            "vllm:num_requests_waiting": len(self._batch.waiting),
            "vllm:gpu_cache_usage_perc": cached / capacity,
        }
        escaped = self._arm.served_names[0].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        labels, lines = f'model_name="{escaped}"', list[str]()
        for name in RUNTIMES["nxdi-vllm-0.9.1"].metrics:
            kind = "gauge" if name in gauges else "histogram" if name in self._histograms else "counter"
            lines += [f"# HELP {name} Emulated, timings are modelled.", f"# TYPE {name} {kind}"]
            if kind == "histogram":
                lines += self._histograms[name].samples(name, labels)
            elif name == "vllm:request_success_total":
                for reason in ("length", "stop"):
                    lines.append(f'{name}{{{labels},finished_reason="{reason}"}} {self._ended[reason]}')
            else:
                lines.append(f"{name}{{{labels}}} {gauges.get(name, self._counters[name])}")
        return "".join(f"{line}\n" for line in lines)
