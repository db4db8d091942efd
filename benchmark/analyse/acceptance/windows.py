"""What another window would give: tokens per step and speed-up for every k, from acceptance by position.

A step with k drafts keeps the drafts before the first refusal, so what is accepted at position i does not depend
on how many are drafted after it: the share of steps s_i in which position i was accepted, seen at one k, holds
for every smaller one. With T(k) for the time of a step and T(0) for plain decoding

    t(k) = 1 + s_1 + ... + s_n        n = k, or k - 1 in an engine whose last draft is never used
    T(k) = verify + k * draft
    S(k) = t(k) * T(0) / T(k)         Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, with measured s_i

An answer ends within a step, whose remaining tokens are lost: on average r(k) = sum(i * s_i) / t(k) of them
(the mean excess of a renewal process), so that an answer of L tokens gets L / (L + r) of t(k).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmark.analyse.stats import Estimate, summed, weighted_mean

_LEAST_VERIFICATION = 0.9
"""In plain steps."""
TIE = 0.01
"""A smaller window within 1 % of the best one is preferred: it wastes less when the prompts change."""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds of a decode step by window; `verify_s` is what is left of it without drafts."""

    plain_s: float
    verify_s: float
    draft_s: float
    """One draft and all that it adds: its pass, and its share of a longer verification."""
    timed: int | None = None
    """The one window whose step is known, where no second one tells what drafting costs at all: that is then assumed to be nothing."""

    def with_fixed_part(self, share: float) -> StepTimes:
        """The same step at the one timed window, with this share of all that drafting adds there spent whatever the window."""
        if self.timed is None:
            return self
        fixed_s = share * self.timed * self.draft_s
        return StepTimes(
            plain_s=self.plain_s,
            verify_s=self.verify_s + fixed_s,
            draft_s=self.draft_s - fixed_s / self.timed,
            timed=self.timed,
        )

    def step_s(self, k: int) -> float:
        """Of a window of `k`; 0 is plain decoding."""
        return self.verify_s + k * self.draft_s if k else self.plain_s


def step_times(points: Mapping[int, float]) -> StepTimes:
    """The line through step times by window, 0 among them.

    One window besides 0: a verification is taken to cost what a plain step does, so that `draft_s` lumps all
    that is beyond. Several: least squares over them, and the plain step stands for itself; where that line has a draft cost nothing, or
    begins well below a plain step, it is noise, and the largest window counts alone.
    """
    plain_s = points[0]
    windows = {k: seconds for k, seconds in points.items() if k}
    if len(windows) == 1:
        ((k, seconds),) = windows.items()
        return StepTimes(plain_s=plain_s, verify_s=plain_s, draft_s=(seconds - plain_s) / k, timed=k)
    mean_k = math.fsum(windows) / len(windows)
    mean_s = math.fsum(windows.values()) / len(windows)
    slope = math.fsum((k - mean_k) * (s - mean_s) for k, s in windows.items()) / math.fsum(
        (k - mean_k) ** 2 for k in windows
    )
    verify_s = mean_s - slope * mean_k
    if slope < 0 or verify_s < _LEAST_VERIFICATION * plain_s:
        # No step verifies faster than it decodes: the noise is larger than what lies between the windows.
        return step_times({0: plain_s, max(windows): windows[max(windows)]})
    return StepTimes(plain_s=plain_s, verify_s=verify_s, draft_s=slope)


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


@dataclass(frozen=True, kw_only=True)
class Window:
    """What is predicted for one k."""

    k: int
    tokens_per_step: Estimate
    log_speed_up: Estimate


def predict(samples: Sequence[Sample], k: int, *, unused: int) -> Window:
    """The window `k` for a class of prompts; `unused` drafts of a step never count (0 or 1).

    The speed-up is the geometric mean over prompts, as the measured one is; tokens per step are those of all
    steps together. Raises ValueError where the step times give no time for `k`.
    """
    yields = [(tokens_per_step(sample.survival, k - unused), sample.steps) for sample in samples]
    gains = [(math.log(_speed_up(sample, k, unused)), 1.0) for sample in samples]
    return Window(
        k=k,
        tokens_per_step=weighted_mean(yields, n=len(samples)),
        log_speed_up=weighted_mean(gains, n=len(samples)),
    )


def tokens_per_step(survival: Sequence[float], drafts: int) -> float:
    """The target's own token and the drafts that are accepted, of `drafts` that can count."""
    return 1 + math.fsum(survival[: max(drafts, 0)])


def effective_tokens_per_step(survival: Sequence[float], drafts: int, tokens: float | None) -> float:
    """Tokens of an answer of `tokens` over its steps: those of the last step that come after its end are lost."""
    whole = tokens_per_step(survival, drafts)
    if tokens is None:
        return whole
    lost = math.fsum(i * s for i, s in enumerate(survival[: max(drafts, 0)], start=1)) / whole
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
    mean = math.log(before / total_s)
    shares = [(part_s / total_s, gain) for part_s, (_, _, gain) in zip(after, parts, strict=True) if part_s]
    return summed(mean, [replace(gain, error=gain.error and share * gain.error) for share, gain in shares])


def _speed_up(sample: Sample, k: int, unused: int) -> float:
    seconds = sample.times.step_s(k)
    if seconds <= 0:
        raise ValueError(f"the step times give {seconds:g} s for k = {k}")
    tokens = effective_tokens_per_step(sample.survival, k - unused, sample.tokens)
    return tokens * sample.times.plain_s / seconds
