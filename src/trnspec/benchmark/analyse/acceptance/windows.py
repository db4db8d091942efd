"""Prediction for another window: tokens per step and speed-up for every k, from the data of each prompt of a run: acceptance by position,
step times, length of answers.

A step with k drafts keeps the drafts before the first refusal. So the acceptance at position i does not depend on the
number of drafts after it: the share of steps s_i in which position i was accepted, measured at one k, holds for every
smaller one. With T(k) for the time of a step and T(0) for plain decoding

    t(k) = 1 + s_1 + ... + s_n        n = k, or k - 1 in an engine whose last draft is never used
    S(k) = t(k) * T(0) / T(k)         Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, with measured s_i and T

T is known at the windows that were timed. Between them it is interpolated: on a line, or on a power of k that fits the smallest timed
windows. Other curves through the same points show the uncertainty (`SHAPES`).

An answer ends within a step, and the remaining tokens of that step are lost: on average r(k) = sum(i * s_i) / t(k) tokens
(the mean excess of a renewal process). So an answer of L tokens gets L / (L + r) of t(k).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, geometric_mean
from typing import Any, NamedTuple

from trnspec.benchmark.analyse import statistics as stats
from trnspec.benchmark.analyse.acceptance.yields import (
    COUNTERS,
    SERVER,
    StepYield,
    of_chunks,
    of_server,
    step_yield_at,
)
from trnspec.benchmark.analyse.requests import Cells, Place
from trnspec.benchmark.analyse.speed_up import log_gains
from trnspec.benchmark.analyse.statistics import Estimate, Variance
from trnspec.benchmark.analyse.values import Decoding, Drafts, pooled
from trnspec.benchmark.measure.journal import RawRun
from trnspec.benchmark.measure.records import RequestRecord
from trnspec.benchmark.metrics import TPOT
from trnspec.benchmark.plan import PlannedArm

TIE = 0.01
"""A smaller window within 1 % of the best one is preferred: it wastes fewer drafts if the prompts change."""


class PriceShape(NamedTuple):
    """An assumption about how the cost of drafting grows between the windows that were timed."""

    fixed: float | None = None
    """The fixed share of the cost of drafting at the smallest timed window. None takes it from the timed windows: 0 if there is only one, else
    the start of the line through them."""
    power: float | None = None
    """The rest grows with this power of the window. Above 1 each further draft costs more than the one before (convex), below 1
    less (concave). None takes it from the timed windows: a line, unless the two smallest show a convex cost."""


_MAX_POWER = 2.0
SHAPES = (
    *(PriceShape(part / 10, 1.0) for part in range(11)),
    *(PriceShape(part / 4, power) for part in range(5) for power in (0.5, 0.7, 1.4, _MAX_POWER)),
)
"""From a fixed cost to the square of the window; between two timed windows from the square root. The cost of one measured engine grows with
a power of 1.2 to 1.3 (an H200: 5 ms for the first draft, 9 to 10 ms for each of the next two, 10 to 11 ms after that). A fused block of
drafts has the same cost for any length."""
FEW_SHAPES = tuple(PriceShape(fixed, power) for fixed in (0.0, 0.5, 1.0) for power in (0.5, 1.0, _MAX_POWER))


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds per decode step by window: exact at the timed windows, monotone between them and beyond."""

    plain_s: float
    timed: Mapping[int, float]
    """The times of the timed windows, at least one; they never decrease (`step_times`)."""
    shape: PriceShape = PriceShape()  # noqa: RUF009 # a tuple

    def step_s(self, k: int) -> float:
        """Seconds per step with window `k`; 0 is plain decoding."""
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
            power = self._as_timed[1] if low == first[0] else 1.0
        return _grown(k, (low, self.timed[low]), (high, self.timed[high]), 0.0, power)

    def _from_plain(self) -> tuple[float, float]:
        """Fixed share and power of the curve from the plain step to the smallest timed window."""
        (fixed, power), (begins, convexity) = self.shape, self._as_timed
        if power is not None:  # a known fixed share does not grow
            power = 1 + (max(power, 1.0) - 1) * (1 - begins)
        return begins if fixed is None else fixed, convexity if power is None else power

    @cached_property
    def _as_timed(self) -> tuple[float, float]:
        """Fixed share and power from the two smallest timed windows. The fixed share is where the line through them begins, relative to the
        cost that the first of them adds. The power is that of the growth from plain decoding over both; it is used if above 1, which
        a fixed cost cannot explain, and limited to 2."""
        if len(self.timed) == 1:
            return 0.0, 1.0
        (first, first_s), (second, second_s), *_ = self.timed.items()
        first_s, second_s = first_s - self.plain_s, second_s - self.plain_s
        if first_s <= 0:
            return 0.0, _MAX_POWER if second_s > 0 else 1.0
        begins = 1 - first * (second_s - first_s) / (second - first) / first_s
        power = math.log(second_s / first_s) / math.log(second / first)
        return max(begins, 0.0), min(max(power, 1.0), _MAX_POWER)


def _grown(k: int, left: tuple[int, float], right: tuple[int, float], fixed: float, power: float) -> float:
    """The seconds at window `k` on the curve through two points, also beyond the second one."""
    (low, low_s), (high, high_s) = left, right
    if high_s <= low_s:
        return high_s  # no measurable cost of a larger window
    grown = (math.pow(k, power) - math.pow(low, power)) / (math.pow(high, power) - math.pow(low, power))
    return low_s + (high_s - low_s) * (fixed + (1 - fixed) * grown)


def step_times(points: Mapping[int, float]) -> StepTimes:
    """Step times from measurements by window, including 0 (plain decoding).

    A step does not get shorter with a larger window. If a measurement says so, it and its neighbour get their mean (isotonic
    regression, pool adjacent violators; Barlow et al. 1972).
    """
    pools: list[tuple[list[int], list[float]]] = []
    for k, seconds in sorted((k, seconds) for k, seconds in points.items() if k):
        pools.append(([k], [seconds]))
        while len(pools) > 1 and fmean(pools[-2][1]) > fmean(pools[-1][1]):
            windows, steps = pools.pop()
            pools[-1] = pools[-1][0] + windows, pools[-1][1] + steps
    return StepTimes(plain_s=points[0], timed={k: fmean(steps) for windows, steps in pools for k in windows})


@dataclass(frozen=True, kw_only=True)
class PromptSample:
    """The data of one prompt, or of a class without data by prompt."""

    survival: Sequence[float]
    """The share of steps in which position 1, 2, ... was accepted; 0 for later positions."""
    times: StepTimes
    tokens: float | None = None
    """Mean length of its answers after the first token; None to ignore the ends of answers."""
    steps: float = 1.0
    """The weight in a mean over steps."""


class Window(NamedTuple):
    """The prediction for one k."""

    k: int
    tokens_per_step: Estimate
    log_speed_up: Estimate


def predict(subject: Subject, k: int) -> Window:
    """The prediction of window `k` for a class of prompts.

    The speed-up is a geometric mean over prompts, like the measured one; tokens per step are over all steps.
    """
    yields, gains = [], []
    samples, extra_variance = subject.samples, subject.extra_variance_of(k)
    for sample in samples:
        drafts, times = k - subject.unused, sample.times
        tokens = effective_tokens_per_step(sample.survival, drafts, sample.tokens)
        yields.append(effective_tokens_per_step(sample.survival, drafts, None))
        gains.append(math.log(tokens * times.plain_s / times.step_s(k)))
    gain = stats.weighted_mean(gains)
    if extra_variance and gain.error is not None:
        variance, degrees = stats.added([(gain.error**2, gain.degrees), extra_variance])
        gain = replace(gain, error=math.sqrt(variance), degrees=degrees)
    return Window(k, stats.weighted_mean(yields, [sample.steps for sample in samples]), gain)


def effective_tokens_per_step(survival: Sequence[float], drafts: int, tokens: float | None) -> float:
    """Tokens per step in an answer of `tokens`: the token of the target and the accepted ones of `drafts` drafts. Tokens of the last step after
    the end of the answer are lost and do not count."""
    counting = survival[: max(drafts, 0)]
    whole = 1 + math.fsum(counting)
    if tokens is None:
        return whole
    lost = math.fsum(i * s for i, s in enumerate(counting, start=1)) / whole
    return whole * tokens / (tokens + lost)


def recommended(speed_ups: Mapping[int, float]) -> int:
    """The smallest window within 1 % of the best one; plain decoding (window 0, speed-up 1) is a candidate too."""
    candidates = {0: 1.0, **speed_ups}
    best = max(candidates.values())
    return min(k for k, speed_up in candidates.items() if speed_up >= best * (1 - TIE))


def mixture(parts: Sequence[tuple[float, float, Estimate]]) -> Estimate:
    """The log speed-up of mixed traffic from parts: (share of the output tokens, plain seconds per token, log speed-up).

    It is the ratio of the two sums of times. The error is propagated to first order from the errors of the parts, with the
    degrees of freedom of Welch and Satterthwaite.
    """
    before = math.fsum(share * plain_s for share, plain_s, _ in parts)
    after = [share * plain_s / math.exp(gain.mean) for share, plain_s, gain in parts]
    total_s = math.fsum(after)
    shares = [(part_s / total_s, gain) for part_s, (_, _, gain) in zip(after, parts, strict=True) if part_s]
    errors = [replace(gain, error=gain.error and share * gain.error) for share, gain in shares]
    return stats.summed(math.log(before / total_s), errors)


@dataclass(frozen=True, kw_only=True)
class AdviceOptions:
    """The options of the user."""

    k_max: int | None = None
    """The largest window to consider; None for all known ones."""
    mix: Mapping[str, float] | None = None
    """Shares of the output tokens by class, in any unit; None gives each class the same."""
    step_times: StepTimes | None = None
    """Step times of another machine, which replace those of the run."""
    timed_with: Sequence[str] = ()
    """Speculating arms of the run with other windows, whose step times are used too."""
    timed_in: Sequence[tuple[RawRun, str | None]] = ()
    """Arms of other runs whose step times are used too; None for each speculating arm of that run."""
    unused_drafts: int | None = None
    """Drafts per step that never count on that machine: 1 if k drafts yield at most k tokens, 0 if k + 1. None means as in the
    run, and 0 without a run."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The data of one class under one load, for predictions."""

    where: Mapping[str, Any]
    """class, concurrency, rate_per_s, arm."""
    samples: Sequence[PromptSample]
    unused: int
    """Drafts per step that never count."""
    largest_k: int
    source: str
    per_position: Sequence[float]
    """The survival by position over all samples."""
    extra_variance: Mapping[int, Variance | None] = field(default_factory=dict)
    """The variance that blocks of time and starts of the servers add to that of the log speed-up over prompts, by timed window."""
    notes: Sequence[str] = ()
    """A sentence for each requested step time that is unknown there."""

    @property
    def plain_s(self) -> float:
        """Seconds per plain step: a geometric mean over prompts, like the speed-up."""
        return geometric_mean([sample.times.plain_s for sample in self.samples])

    def step_s(self, k: int) -> float:
        """Seconds per step with window `k`: the mean over prompts of the ratio to the plain step, multiplied by the plain step."""
        return self.plain_s * fmean(
            [sample.times.step_s(k) / sample.times.plain_s for sample in self.samples]
        )

    @property
    def timed(self) -> tuple[int, ...]:
        """The windows whose step is known for every prompt."""
        every = [sample.times.timed for sample in self.samples]
        return tuple(k for k in every[0] if all(k in timed for timed in every))

    def extra_variance_of(self, k: int) -> Variance | None:
        """The extra variance for window `k`: that of the next larger timed window, or of the largest one."""
        if not self.extra_variance:
            return None
        return self.extra_variance[
            min((window for window in self.extra_variance if window >= k), default=max(self.extra_variance))
        ]

    def shaped(self, shape: PriceShape) -> Subject:
        """The subject with another shape of the cost between the timed windows."""
        samples = [replace(prompt, times=replace(prompt.times, shape=shape)) for prompt in self.samples]
        return replace(self, samples=samples)


class TimedArm(NamedTuple):
    """An arm with another window, of this run or of another one, whose step times are used too."""

    cells: Cells
    arm: PlannedArm
    run: str | None = None
    """The other run; None for the run that the advice is about."""


def subject_of(
    cells: Cells,
    plain: PlannedArm,
    arm: PlannedArm,
    place: Place,
    options: AdviceOptions,
    timed: Sequence[TimedArm] = (),
) -> Subject | None:
    """The subject from prompts that a plain and a speculating arm both answered; None if acceptance by position is unknown.

    With step times of another machine only the answers of the speculating arm are used.
    """
    known = step_yield_at(cells, arm, place)
    if known.positions is None:
        return None
    source, of_cell = known.positions
    (plain_pairs, pairs), k = cells.pairs((plain, arm), place), arm.speculative_tokens
    answers = (cells.of(arm, place).answered if options.step_times else pairs).answers
    plain_answers = _by_prompt(plain_pairs.answers)
    others, notes = _steps_of_other_arms(cells, arm, place, () if options.step_times else timed)
    samples = []
    for prompt, step in _steps(arm, known, answers).items():
        times = options.step_times
        if times is None and (decoded := pooled(plain_answers[prompt], plain.max_tokens_per_step)):
            seconds = {k: [step.seconds]}
            for other in others:
                seconds.setdefault(other.window, []).append(other.seconds(prompt, decoded.tpot_s))
            known_s = {window: geometric_mean(own) for window, own in seconds.items()}
            times = step_times({0: decoded.tpot_s} | known_s)
        if times:
            survival, length = step.drafts.survival() or (), step.decoded.tokens / step.decoded.answers
            samples.append(
                PromptSample(survival=survival, times=times, tokens=length, steps=step.drafts.steps)
            )
    if options.step_times and source == COUNTERS and len({sample.survival for sample in samples}) == 1:
        # Neither acceptance nor times are known by prompt, so there is no interval over prompts.
        samples = [replace(samples[0], tokens=fmean([sample.tokens or 0.0 for sample in samples]))]
    if not samples:
        return None
    unused_here = max(0, k + 1 - arm.max_tokens_per_step)
    unused = unused_here if options.unused_drafts is None else options.unused_drafts
    varies = {other.window: other.varies for other in others} | {
        k: _variance_beyond_prompts(cells, (plain, arm), place)
    }
    return Subject(
        where={**place.to_dict(), "arm": arm.name},
        samples=samples,
        unused=unused,
        largest_k=k - unused_here + unused,
        source=source,
        per_position=of_cell.survival() or (),
        extra_variance={} if options.step_times else varies,
        notes=notes,
    )


def _variance_beyond_prompts(
    cells: Cells, arms: tuple[PlannedArm, PlannedArm], place: Place
) -> Variance | None:
    gains, sources = log_gains(cells.pairs(arms, place), TPOT)
    return (
        stats.variance_beyond_prompts(stats.mean_of(gains, sources.start)[1], sources) if len(gains) else None
    )


class _OtherSteps(NamedTuple):
    window: int
    in_plain: float
    """The time of a step over all prompts, relative to a plain step of its own run, because servers differ from start to start."""
    by_prompt: Mapping[str, float]
    """Seconds per step by prompt; only for arms of the same run."""
    varies: Variance | None
    """The variance that blocks and starts add to that of its speed-up over prompts."""

    def seconds(self, prompt: str, plain_s: float) -> float:
        return self.by_prompt.get(prompt, self.in_plain * plain_s)


def _steps_of_other_arms(
    cells: Cells, arm: PlannedArm, place: Place, timed: Sequence[TimedArm]
) -> tuple[list[_OtherSteps], list[str]]:
    """The steps of each further arm under the same load, and a note for each arm whose steps are unknown."""
    steps, notes = [], []
    for other in timed:
        if other.cells is cells and other.arm == arm:
            continue
        same_load = (where for where in other.cells.places if where.load == place.load)
        # The time of a step depends on the load more than on the class; the same class is preferred.
        ordered = sorted(same_load, key=lambda where: where.class_ != place.class_)
        known = (_steps_of_other_arm(other, where, own=other.cells is cells) for where in ordered)
        if step := next(filter(None, known), None):
            steps.append(step)
        else:
            name = f"{other.arm.name} of run {other.run}" if other.run else other.arm.name
            why = f"it is not known {place.load.in_words} there"
            notes.append(f"the step of {name} (window {other.arm.speculative_tokens}) is not used: {why}")
    return steps, notes


def _steps_of_other_arm(other: TimedArm, place: Place, *, own: bool) -> _OtherSteps | None:
    cells, arm = other.cells, other.arm
    known, plain, plain_s = step_yield_at(cells, arm, place), cells.plain_of(arm), cells.plain_s(arm, place)
    steps = _steps(arm, known, cells.of(arm, place).answered.answers) if known.positions else {}
    if not steps or not plain or not plain_s:
        return None
    varies = _variance_beyond_prompts(cells, (plain, arm), place)
    seconds = {prompt: step.seconds for prompt, step in steps.items()}
    mean_s = stats.weighted_mean([*seconds.values()], [step.drafts.steps for step in steps.values()]).mean
    return _OtherSteps(arm.speculative_tokens, mean_s / plain_s, seconds if own else {}, varies)


class _PromptSteps(NamedTuple):
    drafts: Drafts
    decoded: Decoding
    seconds: float
    """Seconds per step: the time per token multiplied by the tokens per step."""


def _steps(arm: PlannedArm, known: StepYield, answers: Iterable[RequestRecord]) -> dict[str, _PromptSteps]:
    """The steps of each prompt whose acceptance and time are known.

    Counters of the server are of the whole cell. If the chunks agree with them, the tokens per step of a prompt are from its chunks;
    otherwise those of the cell are used.
    """
    source, of_cell = known.positions or (None, None)
    steps = {}
    for prompt, records in _by_prompt(answers).items():
        decoded = pooled(records, arm.max_tokens_per_step)
        if decoded is None or of_cell is None:
            continue
        drafts = None if known.caution else of_chunks(arm, records)
        if source == SERVER:
            drafts = of_server(records)
        if drafts and drafts.steps and drafts.survival():
            steps[prompt] = _PromptSteps(drafts, decoded, decoded.tpot_s * decoded.tokens / drafts.steps)
        elif source == COUNTERS:
            survival = of_cell.survival() or ()
            tokens = effective_tokens_per_step(survival, len(survival), decoded.tokens / decoded.answers)
            steps[prompt] = _PromptSteps(of_cell, decoded, decoded.tpot_s * tokens)
    return steps


def _by_prompt(records: Iterable[RequestRecord]) -> dict[str, list[RequestRecord]]:
    by_prompt: dict[str, list[RequestRecord]] = {}
    for record in records:
        by_prompt.setdefault(record.prompt_id, []).append(record)
    return by_prompt
