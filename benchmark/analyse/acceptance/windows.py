"""What another window would give: tokens per step and speed-up for every k, from acceptance by position.

A step with k drafts keeps the drafts before the first refusal, so what is accepted at position i does not depend
on how many are drafted after it: the share of steps s_i in which position i was accepted, seen at one k, holds
for every smaller one. With T(k) for the time of a step and T(0) for plain decoding

    t(k) = 1 + s_1 + ... + s_n        n = k, or k - 1 in an engine whose last draft is never used
    S(k) = t(k) * T(0) / T(k)         Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, with measured s_i and T

T is known at the windows that were timed. Between them it is on a line, or on the power of k that the smallest ones show; how far the truth
may be from that is shown by other curves through the same points (`SHAPES`).

An answer ends within a step, whose remaining tokens are lost: on average r(k) = sum(i * s_i) / t(k) of them
(the mean excess of a renewal process), so that an answer of L tokens gets L / (L + r) of t(k).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from benchmark.analyse.stats import Estimate, Variance, added, mean, summed, weighted_mean

TIE = 0.01
"""A smaller window within 1 % of the best one is preferred: it wastes less when the prompts change."""


class Shape(NamedTuple):
    """How the price of drafting is taken to grow between the windows that were timed."""

    fixed: float | None = None
    """Share of what drafting adds at the smallest timed window that is spent whatever the window; None is what the timed windows
    themselves say: nothing where there is one, else where their line begins."""
    power: float | None = None
    """The rest grows with this power of the window: above 1 each further draft costs more than the one before it (convex),
    below 1 less (concave). None is what the timed windows themselves say: a line, unless the two smallest show a convex price."""


_AS_TIMED = Shape()
_STEEPEST = 2.0
SHAPES = (
    *(Shape(part / 10, 1.0) for part in range(11)),
    *(Shape(part / 4, power) for part in range(5) for power in (0.5, 0.7, 1.4, _STEEPEST)),
)
"""From all at once to the square of the window; between two timed windows from the square root. One measured engine grows with a power of 1.2 to 1.3
(an H200: the first draft 5 ms, the next two 9 to 10 each, those after 10 to 11), a fused block of drafts costs the same whatever its length."""
FEW_SHAPES = tuple(Shape(fixed, power) for fixed in (0.0, 0.5, 1.0) for power in (0.5, 1.0, _STEEPEST))


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds of a decode step by window; exact at every window that was timed, monotone between them and beyond."""

    plain_s: float
    timed: Mapping[int, float]
    """By window, at least one; they never fall (`step_times`)."""
    shape: Shape = _AS_TIMED

    def step_s(self, k: int) -> float:
        """The step of a window of `k`; 0 is plain decoding."""
        if k == 0:
            return self.plain_s
        if k in self.timed:
            return self.timed[k]
        windows = list(self.timed)
        first = (windows[0], self.timed[windows[0]])
        if k < windows[0] or len(windows) == 1:
            return _grown(k, (0, self.plain_s), first, *self._from_plain())
        right = min(max(bisect_left(windows, k), 1), len(windows) - 1)
        low, high = windows[right - 1], windows[right]
        power = self.shape.power
        if power is None:
            power = self._convexity if low == first[0] else 1.0
        return _grown(k, (low, self.timed[low]), (high, self.timed[high]), 0.0, power)

    def _from_plain(self) -> tuple[float, float]:
        """The fixed share and the power of the curve from the plain step to the smallest timed window."""
        fixed, power = self.shape
        if power is not None:  # what is surely fixed does not grow
            power = 1 + (max(power, 1.0) - 1) * (1 - self._begins)
        return self._begins if fixed is None else fixed, self._convexity if power is None else power

    @cached_property
    def _begins(self) -> float:
        """Where the line through the two smallest windows begins: the share of what the first of them adds that is spent whatever the window."""
        if len(self.timed) == 1:
            return 0.0
        (first, first_s), (second, second_s), *_ = self.timed.items()
        added_s, each_s = first_s - self.plain_s, (second_s - first_s) / (second - first)
        return max(1 - first * each_s / added_s, 0.0) if added_s > 0 else 0.0

    @cached_property
    def _convexity(self) -> float:
        """The power with which what drafting adds grows from plain decoding over the two smallest timed windows, where that is above 1:
        no fixed cost can explain that. 2 at most."""
        if len(self.timed) == 1:
            return 1.0
        (first, first_s), (second, second_s), *_ = self.timed.items()
        if second_s <= max(first_s, self.plain_s):
            return 1.0
        if first_s <= self.plain_s:
            return _STEEPEST
        power = math.log((second_s - self.plain_s) / (first_s - self.plain_s)) / math.log(second / first)
        return min(max(power, 1.0), _STEEPEST)


def _grown(k: int, left: tuple[int, float], right: tuple[int, float], fixed: float, power: float) -> float:
    """On the curve through two points, or beyond the second one."""
    (low, low_s), (high, high_s) = left, right
    if high_s <= low_s:
        return high_s  # a window costs nothing that could be measured
    grown = (math.pow(k, power) - math.pow(low, power)) / (math.pow(high, power) - math.pow(low, power))
    return low_s + (high_s - low_s) * (fixed + (1 - fixed) * grown)


def step_times(points: Mapping[int, float]) -> StepTimes:
    """From step times by window, 0 (plain decoding) among them; all are used.

    No step gets shorter with a larger window: where one seems to, it and its neighbour get their mean (isotonic regression,
    pool adjacent violators; Barlow et al. 1972).
    """
    pools: list[tuple[list[int], list[float]]] = []
    for k, seconds in sorted((k, seconds) for k, seconds in points.items() if k):
        pools.append(([k], [seconds]))
        while len(pools) > 1 and mean(pools[-2][1]) > mean(pools[-1][1]):
            windows, steps = pools.pop()
            pools[-1] = pools[-1][0] + windows, pools[-1][1] + steps
    return StepTimes(plain_s=points[0], timed={k: mean(steps) for windows, steps in pools for k in windows})


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One prompt, or a class of which nothing finer is known."""

    survival: Sequence[float]
    """Share of steps in which position 1, 2, ... was accepted; 0 beyond."""
    times: StepTimes
    tokens: float | None = None
    """Mean length of its answers after the first token; None where answers are taken to be endless."""
    steps: float = 1.0
    """What it weighs in a mean over steps."""


class Window(NamedTuple):
    """What is predicted for one k."""

    k: int
    tokens_per_step: Estimate
    log_speed_up: Estimate


def predict(samples: Sequence[Sample], k: int, *, unused: int, beside: Variance | None = None) -> Window:
    """The window `k` for a class of prompts; `unused` drafts of a step never count (0 or 1). `beside` adds to the variance over
    prompts.

    The speed-up is the geometric mean over prompts, as the measured one is; tokens per step are those of all
    steps together.
    """
    yields, gains = [], []
    for sample in samples:
        drafts, times = k - unused, sample.times
        tokens = effective_tokens_per_step(sample.survival, drafts, sample.tokens)
        yields.append((effective_tokens_per_step(sample.survival, drafts, None), sample.steps))
        gains.append((math.log(tokens * times.plain_s / times.step_s(k)), 1.0))
    gain = weighted_mean(gains, n=len(samples))
    if beside and gain.error is not None:
        variance, degrees = added([(gain.error**2, gain.degrees), beside])
        gain = replace(gain, error=math.sqrt(variance), degrees=degrees)
    return Window(k, weighted_mean(yields, n=len(samples)), gain)


def effective_tokens_per_step(survival: Sequence[float], drafts: int, tokens: float | None) -> float:
    """The target's own token and the accepted of `drafts` that can count, over the steps of an answer of `tokens`: those of its last step
    that come after its end are lost."""
    counting = survival[: max(drafts, 0)]
    whole = 1 + math.fsum(counting)
    if tokens is None:
        return whole
    lost = math.fsum(i * s for i, s in enumerate(counting, start=1)) / whole
    return whole * tokens / (tokens + lost)


def recommended(speed_ups: Mapping[int, float]) -> int:
    """The smallest window within 1 % of the best, plain decoding (0, a speed-up of 1) among them."""
    candidates = {0: 1.0, **speed_ups}
    best = max(candidates.values())
    return min(k for k, speed_up in candidates.items() if speed_up >= best * (1 - TIE))


def mixture(parts: Sequence[tuple[float, float, Estimate]]) -> Estimate:
    """The log speed-up of traffic from (share of the output tokens, plain seconds per token, log speed-up).

    Time adds up over the tokens, so it is the ratio of the two sums of times. Its error is propagated to first
    order from the parts', degrees of freedom by Welch and Satterthwaite.
    """
    before = math.fsum(share * plain_s for share, plain_s, _ in parts)
    after = [share * plain_s / math.exp(gain.mean) for share, plain_s, gain in parts]
    total_s = math.fsum(after)
    shares = [(part_s / total_s, gain) for part_s, (_, _, gain) in zip(after, parts, strict=True) if part_s]
    errors = [replace(gain, error=gain.error and share * gain.error) for share, gain in shares]
    return summed(math.log(before / total_s), errors)
