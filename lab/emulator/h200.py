"""Step times of a GPU engine that is hard to measure; each figure has its origin.

*Quoted*: measured with this project's client (commit 9321f9c) on one NVIDIA H200 on 2026-11-23, vLLM 0.24.0, models of
the shapes of Qwen3-32B and Qwen3-1.7B in bfloat16 with dummy weights, acceptance set by the engine. *Assumed*: no
source; the reason is given. Everything here is emulated when it is served, whatever its origin.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from types import MappingProxyType

PLAIN_MS: Mapping[int, float] = MappingProxyType(
    {1: 18.4, 4: 18.6, 8: 18.7, 16: 18.5, 24: 19.0, 32: 19.3, 48: 19.9, 64: 20.5}
)
"""A plain step by requests under way, steady state, asynchronous scheduler (quoted)."""
ONE_DRAFT_MS: Mapping[int, float] = MappingProxyType(
    {1: 22.7, 4: 23.5, 8: 23.9, 16: 25.6, 24: 29.0, 32: 30.5, 48: 35.3, 64: 33.3}
)
"""A step with one draft (quoted)."""
SECOND_AND_THIRD_MS = 9.8
"""What each of these drafts adds with 4 requests under way: a step of k = 3 took 43.1 ms there (quoted)."""
FURTHER_MS = 10.7
"""What each draft after the third adds with 4 requests under way: a step of k = 7 took 86 ms there (quoted as 10 to 11). So
each draft costs more than the one before it; with other loads it costs more or less as the step of k = 1 does (assumed)."""
QUOTED_AT = 4
LOCKSTEP: Mapping[int, float] = MappingProxyType({4: 1.0, 24: 0.87, 48: 0.68, 64: 0.78})
"""The share of its time that a drafting step takes in lockstep, by sequences decoding. Fitted: a client that sent each set of
requests at once and let it drain found k = 1 1.06, 1.06 and 1.04 times as fast as plain decoding at 24, 48 and 64 where
steady state was 0.95, 0.82 and 0.90 (quoted). The assumed reason is that those steps had no prefills."""
LOCKSTEP_AFTER = 12
"""Steps without a prefill, after which sequences count as running in lockstep (assumed: longer than ADMITTED_EVERY)."""
PREFILL_S_PER_TOKEN = 0.0001
"""Assumed: 2 x 32.8e9 operations per token at 650 TFLOP/s, two thirds of the card's dense bfloat16."""
SHORTEST_PAUSE, SKEWED_PART, SKEW = 0.6448, 0.2402, 0.884
"""A drafting step takes 0.6448 + 0.2402 exp(0.884 z) of its mean, z normal: with 87 ms the median is 77, the 90th percentile 121
ms (quoted for k = 7; the same shape for other windows is assumed)."""
PLAIN_SPREAD = 0.02
"""Standard deviation of a plain step over its mean (assumed: the points of the grid lie this close together)."""
START_SPREAD = 0.045
"""Standard deviation of the logarithm of the factor drawn at each start of a server. Between two starts the ratio of two servers then
moves by 6 % in the median, by 3 to 10 % in half of all pairs (4 to 9 % were seen, quoted; that it is normal is assumed)."""
BUDGET_TOKENS = 2048
"""Tokens that a step decodes and prefills together: a longer prompt is prefilled in chunks
(`max_num_batched_tokens`, https://docs.vllm.ai/en/stable/configuration/optimization.html)."""
ADMITTED_EVERY = 8
"""Steps between admissions of waiting requests, which are then prefilled together and run in lockstep (assumed)."""
MID = (0.62, 0.42, 0.27, 0.17, 0.11, 0.07, 0.05)
"""Share of steps in which draft 1, 2, ... is accepted: 2.71 tokens per step at k = 7 (quoted)."""
PROMPT_SPREAD = 0.2
"""Standard deviation of the log odds of acceptance from prompt to prompt (assumed)."""


@dataclass(frozen=True, kw_only=True)
class H200StepTimes:
    """Mean seconds of a step, before pauses and the start's factor."""

    speculative_tokens: int = 0
    factor: float = 1.0
    """The factor of this start of the server."""

    def step_s(self, decoding: int, prefilled_tokens: int = 0, *, lockstep: bool = False) -> float:
        """Return the time of a step with `decoding` sequences, and with tokens of prompts that join them."""
        step_s = 0.001 * step_ms(self.speculative_tokens, decoding)
        if lockstep and self.speculative_tokens:
            step_s *= _between(LOCKSTEP, decoding)
        return self.factor * (step_s + PREFILL_S_PER_TOKEN * prefilled_tokens)


def step_ms(k: int, at_once: int) -> float:
    """A step of a window of `k`; 0 is plain decoding. Straight between the loads of the table, level outside."""
    if k == 0:
        return _between(PLAIN_MS, at_once)
    added = SECOND_AND_THIRD_MS * min(k - 1, 2) + FURTHER_MS * max(k - 3, 0)
    return _between(ONE_DRAFT_MS, at_once) * (1 + added / ONE_DRAFT_MS[QUOTED_AT])


def _between(table: Mapping[int, float], at: int) -> float:
    for (low, before), (high, after) in pairwise(table.items()):
        if at <= high:
            return before + (after - before) * max(at - low, 0) / (high - low)
    return table[max(table)]


@dataclass(frozen=True, kw_only=True)
class Start:
    shares: tuple[float, ...] = MID
    dice: random.Random
    factor: float


def started(shares: tuple[float, ...] = MID, seed: int | None = None) -> Start:
    """Another one each time; with a seed the same again."""
    dice = random.Random(seed)
    return Start(shares=shares, dice=dice, factor=drawn_factor(dice))


def drawn_factor(dice: random.Random) -> float:
    """The factor of one start of a server."""
    return math.exp(dice.gauss(0, START_SPREAD))


def conditional(shares: Sequence[float], k: int, z: float = 0.0) -> tuple[float, ...]:
    """Probability that draft 1, 2, ... `k` is accepted when those before it were; `z` makes a prompt easier or harder."""
    before = (1.0, *shares)
    rates = [
        share / last if last else 0.0 for last, share in zip(before, (*shares, *[0.0] * k)[:k], strict=False)
    ]
    rates += [0.0] * (k - len(rates))
    return tuple(_moved(rate, PROMPT_SPREAD * z) for rate in rates)


def _moved(rate: float, by: float) -> float:
    """Along the log odds."""
    return rate if rate in (0.0, 1.0) else 1 / (1 + (1 / rate - 1) * math.exp(-by))


class Pauses:
    """Factors of the mean time of each step: running sums of factors that are drawn in advance, so that the time
    of many equal steps is one difference."""

    _AHEAD = 4096

    def __init__(self, dice: random.Random, speculative_tokens: int) -> None:
        self._dice = dice
        self._skewed = speculative_tokens > 0
        self._first = 0
        self._sums = [0.0]

    def sum(self, first: int, count: int = 1) -> float:
        """The factors of steps `first` to `first + count - 1` together."""
        self._draw(first, count)
        at = first - self._first
        return self._sums[at + count] - self._sums[at]

    def _draw(self, first: int, count: int) -> None:
        if first - self._first > 16 * self._AHEAD:  # a server may run for days
            del self._sums[: first - self._first]
            self._first = first
        dice = self._dice
        while first - self._first + count >= len(self._sums):
            if self._skewed:
                drawn = [
                    SHORTEST_PAUSE + SKEWED_PART * math.exp(dice.gauss(0, SKEW)) for _ in range(self._AHEAD)
                ]
            else:
                drawn = [max(0.5, dice.gauss(1, PLAIN_SPREAD)) for _ in range(self._AHEAD)]
            self._sums += list(accumulate(drawn, initial=self._sums[-1]))[1:]
