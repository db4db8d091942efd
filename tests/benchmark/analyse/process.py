"""Runs of a simulated engine, whose truth is known: acceptance decays by position, prompts differ, steps jitter."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from operator import mul

from tests.benchmark.records import answered, raw_run
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import RequestRecord

PLAIN_S = 0.045
VERIFY_S = 0.045
DRAFT_S = 0.0068


@dataclass(frozen=True, kw_only=True)
class Process:
    """Drafts are accepted with `conditional` probability where all before them were."""

    conditional: Sequence[float]
    k: int
    unused: int = 0
    """1 where the last of k drafts only fills a cache: a step yields k tokens at most."""
    prompts: int = 16
    requests: int = 32
    tokens: int = 256
    seed: int = 1
    spread: float = 0.02
    """Of the logarithm of a step's time."""
    fixed_s: float = 0.0
    """What drafting costs whatever the window."""
    narrow_k: int | None = None
    """Window of a third arm, `narrow`."""
    classes: Sequence[str] = ("chat",)
    """Prompts are of these classes in turn."""

    @property
    def ceiling(self) -> int:
        return self.k + 1 - self.unused

    def survival(self, k: int) -> list[float]:
        """Of the positions that count in a window of `k`."""
        return list(accumulate(self.conditional[: k - self.unused], mul))

    def speed_up(self, k: int) -> float:
        """The truth, for answers without an end."""
        tokens = 1 + sum(self.survival(k))
        return tokens * PLAIN_S / self.step_s(k)

    def step_s(self, k: int) -> float:
        """Of a speculative step."""
        return VERIFY_S + self.fixed_s + k * DRAFT_S

    def measured_speed_up(self, k: int) -> float:
        """By brute force, for answers of `tokens`: what a run at `k` would find."""
        return (self.tokens - 1) * PLAIN_S / (_mean_steps(replace(self, k=k)) * self.step_s(k))

    def steps(self, dice: random.Random) -> list[int]:
        """Tokens of each decode step of one answer, the last one cut where the answer ends."""
        left, steps = self.tokens - 1, []
        while left:
            tokens = 1
            while tokens < self.ceiling and dice.random() < self.conditional[tokens - 1]:
                tokens += 1
            steps.append(min(tokens, left))
            left -= steps[-1]
        return steps

    def class_of(self, prompt: int) -> str:
        return self.classes[prompt % len(self.classes)]

    def run(self) -> RawRun:
        """A run of all arms, made once."""
        return _run(self)

    def _answer(self, arm: str, dice: random.Random, pair: int) -> RequestRecord:
        plain = arm == "steady"
        steps = [1] * (self.tokens - 1) if plain else self.steps(dice)
        step_s = PLAIN_S if plain else self.step_s(self.k)
        times = accumulate((step_s * dice.lognormvariate(0, self.spread) for _ in steps), initial=0.1)
        return answered(
            arm,
            pair,
            chunk_s=tuple(times),
            chunk_tokens=(1, *steps),
            prompt_id=f"chat-{pair % self.prompts}",
            class_=self.class_of(pair % self.prompts),
            finish_reason="length",
        )


@cache
def _mean_steps(engine: Process) -> float:
    dice = random.Random(99)
    return sum(len(engine.steps(dice)) for _ in range(400)) / 400


@cache
def _run(engine: Process) -> RawRun:
    dice, pairs = random.Random(engine.seed), range(engine.requests)
    engines = {"steady": engine, "spec": engine}
    records = [one._answer(arm, dice, pair) for pair in pairs for arm, one in engines.items()]
    if engine.narrow_k:
        engines["narrow"] = replace(engine, k=engine.narrow_k)
        records += [engines["narrow"]._answer("narrow", dice, pair) for pair in pairs]
    arms = [
        {
            **{"name": name, "url": f"http://{name}/v1"},
            **({"speculative_tokens": one.k, "max_tokens_per_step": one.ceiling} if name != "steady" else {}),
        }
        for name, one in engines.items()
    ]
    prompts = [
        {"id": f"chat-{i}", "class": engine.class_of(i), "prompt": f"p{i}"} for i in range(engine.prompts)
    ]
    return raw_run(*records, arms=arms, prompts=prompts, requests=engine.requests, max_tokens=engine.tokens)
