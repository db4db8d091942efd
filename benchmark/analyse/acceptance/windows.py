"""What another window would give: tokens per step and speed-up for every k, from what a run knows of each prompt: acceptance by position,
step times, length of answers.

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from benchmark.analyse import stats
from benchmark.analyse.acceptance.yields import COUNTERS, SERVER, Known, known_at, of_chunks, of_server
from benchmark.analyse.cells import Cells, Place
from benchmark.analyse.comparison import log_ratios
from benchmark.analyse.stats import Estimate, Variance, geometric_mean, mean
from benchmark.analyse.values import Decoding, Drafts, pooled
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from benchmark.metrics import TPOT
from benchmark.plan import PlannedArm

TIE = 0.01
"""A smaller window within 1 % of the best one is preferred: it wastes less when the prompts change."""


class PriceShape(NamedTuple):
    """How the price of drafting is taken to grow between the windows that were timed."""

    fixed: float | None = None
    """Share of what drafting adds at the smallest timed window that is spent whatever the window; None is what the timed windows
    themselves say: nothing where there is one, else where their line begins."""
    power: float | None = None
    """The rest grows with this power of the window: above 1 each further draft costs more than the one before it (convex),
    below 1 less (concave). None is what the timed windows themselves say: a line, unless the two smallest show a convex price."""


_STEEPEST = 2.0
SHAPES = (
    *(PriceShape(part / 10, 1.0) for part in range(11)),
    *(PriceShape(part / 4, power) for part in range(5) for power in (0.5, 0.7, 1.4, _STEEPEST)),
)
"""From all at once to the square of the window; between two timed windows from the square root. One measured engine grows with a power of 1.2 to 1.3
(an H200: the first draft 5 ms, the next two 9 to 10 each, those after 10 to 11), a fused block of drafts costs the same whatever its length."""
FEW_SHAPES = tuple(PriceShape(fixed, power) for fixed in (0.0, 0.5, 1.0) for power in (0.5, 1.0, _STEEPEST))


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds of a decode step by window; exact at every window that was timed, monotone between them and beyond."""

    plain_s: float
    timed: Mapping[int, float]
    """The times of the measured windows, at least one; they never fall (`step_times`)."""
    shape: PriceShape = PriceShape()  # noqa: RUF009 # a tuple

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
            power = self._as_timed[1] if low == first[0] else 1.0
        return _grown(k, (low, self.timed[low]), (high, self.timed[high]), 0.0, power)

    def _from_plain(self) -> tuple[float, float]:
        """The fixed share and the power of the curve from the plain step to the smallest timed window."""
        (fixed, power), (begins, convexity) = self.shape, self._as_timed
        if power is not None:  # what is surely fixed does not grow
            power = 1 + (max(power, 1.0) - 1) * (1 - begins)
        return begins if fixed is None else fixed, convexity if power is None else power

    @cached_property
    def _as_timed(self) -> tuple[float, float]:
        """What the two smallest timed windows say: where the line through them begins, as the share of what the first of them adds that is
        spent whatever the window; and the power with which what drafting adds grows from plain decoding over both, where that is
        above 1, since no fixed cost can explain that. 2 at most."""
        if len(self.timed) == 1:
            return 0.0, 1.0
        (first, first_s), (second, second_s), *_ = self.timed.items()
        first_s, second_s = first_s - self.plain_s, second_s - self.plain_s
        if first_s <= 0:
            return 0.0, _STEEPEST if second_s > 0 else 1.0
        begins = 1 - first * (second_s - first_s) / (second - first) / first_s
        power = math.log(second_s / first_s) / math.log(second / first)
        return max(begins, 0.0), min(max(power, 1.0), _STEEPEST)


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
class KnownPrompt:
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


def predict(subject: Subject, k: int) -> Window:
    """The window `k` for a class of prompts.

    The speed-up is the geometric mean over prompts, as the measured one is; tokens per step are those of all
    steps together.
    """
    yields, gains = [], []
    samples, beside = subject.samples, subject.beside_of(k)
    for sample in samples:
        drafts, times = k - subject.unused, sample.times
        tokens = effective_tokens_per_step(sample.survival, drafts, sample.tokens)
        yields.append((effective_tokens_per_step(sample.survival, drafts, None), sample.steps))
        gains.append((math.log(tokens * times.plain_s / times.step_s(k)), 1.0))
    gain = stats.weighted_mean(gains, n=len(samples))
    if beside and gain.error is not None:
        variance, degrees = stats.added([(gain.error**2, gain.degrees), beside])
        gain = replace(gain, error=math.sqrt(variance), degrees=degrees)
    return Window(k, stats.weighted_mean(yields, n=len(samples)), gain)


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
    return stats.summed(math.log(before / total_s), errors)


@dataclass(frozen=True, kw_only=True)
class AdviceOptions:
    """What the user may ask for."""

    k_max: int | None = None
    """The largest window to consider; None is all that are known."""
    mix: Mapping[str, float] | None = None
    """Shares of the output tokens by class, in any unit; None gives each class the same."""
    step_times: StepTimes | None = None
    """Those of another machine, instead of the run's own."""
    timed_with: Sequence[str] = ()
    """Speculating arms of the run with other windows, whose steps are timed too."""
    timed_in: Sequence[tuple[RawRun, str | None]] = ()
    """The same of arms of other runs; None is each speculating arm of that run."""
    unused_drafts: int | None = None
    """Drafts of a step that never count there: 1 where k drafts yield k tokens at most, 0 where k + 1; None is
    as in the run, and 0 without one."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One class under one load, ready to be predicted."""

    where: Mapping[str, Any]
    """class, concurrency, rate_per_s, arm."""
    samples: Sequence[KnownPrompt]
    unused: int
    """Drafts of a step that never count."""
    largest_k: int
    source: str
    per_position: Sequence[float]
    """Over all samples."""
    beside: Mapping[int, Variance | None] = field(default_factory=dict)
    """What blocks of time and starts of the servers add to the variance of a timed window's log speed-up over prompts."""
    notes: Sequence[str] = ()
    """Step times that were asked for and are not known there, a sentence each."""

    @property
    def plain_s(self) -> float:
        """A geometric mean over prompts, as the speed-up is one."""
        return geometric_mean([sample.times.plain_s for sample in self.samples])

    def step_s(self, k: int) -> float:
        """In units of the plain step as a mean over prompts, times that step."""
        return self.plain_s * mean([sample.times.step_s(k) / sample.times.plain_s for sample in self.samples])

    @property
    def timed(self) -> tuple[int, ...]:
        """The windows whose step is known for every prompt."""
        every = [sample.times.timed for sample in self.samples]
        return tuple(k for k in every[0] if all(k in timed for timed in every))

    def beside_of(self, k: int) -> Variance | None:
        """The next timed window that is no smaller counts, else the largest: a pause of the server is a larger share of a short step."""
        if not self.beside:
            return None
        return self.beside[min((window for window in self.beside if window >= k), default=max(self.beside))]

    def shaped(self, shape: PriceShape) -> Subject:
        """With another price of drafts between the timed windows."""
        samples = [replace(prompt, times=replace(prompt.times, shape=shape)) for prompt in self.samples]
        return replace(self, samples=samples)


class TimedArm(NamedTuple):
    """An arm with another window, of this run or of another one, whose steps are timed too."""

    cells: Cells
    arm: PlannedArm
    run: str | None = None
    """None is the run that is advised about."""


def subject_of(
    cells: Cells,
    plain: PlannedArm,
    arm: PlannedArm,
    place: Place,
    options: AdviceOptions,
    timed: Sequence[TimedArm] = (),
) -> Subject | None:
    """Prompts that a plain and a speculating arm both answered; None where positions are not known.

    With the step times of another machine only the speculating arm's answers count.
    """
    known = known_at(cells, arm, place)
    if known.positions is None:
        return None
    source, of_cell = known.positions
    pairs, k = cells.pairs((plain, arm), place), arm.speculative_tokens
    answers = cells.answered(arm, place) if options.step_times else [record for _, record in pairs]
    plain_answers = _by_prompt(record for record, _ in pairs)
    beside, notes = _steps_beside(cells, arm, place, () if options.step_times else timed)
    samples = []
    for prompt, step in _steps(arm, known, answers).items():
        times = options.step_times
        if times is None and (decoded := pooled(plain_answers[prompt], plain.max_tokens_per_step)):
            seconds = {k: [step.seconds]}
            for other in beside:
                seconds.setdefault(other.window, []).append(other.seconds(prompt, decoded.tpot_s))
            known_s = {window: geometric_mean(own) for window, own in seconds.items()}
            times = step_times({0: decoded.tpot_s} | known_s)
        if times:
            survival, length = step.drafts.survival() or (), step.decoded.tokens / step.decoded.answers
            samples.append(
                KnownPrompt(survival=survival, times=times, tokens=length, steps=step.drafts.steps)
            )
    if options.step_times and source == COUNTERS and len({sample.survival for sample in samples}) == 1:
        # Neither acceptance nor times are known by prompt then: there is nothing to take an interval over.
        samples = [replace(samples[0], tokens=mean([sample.tokens or 0.0 for sample in samples]))]
    if not samples:
        return None
    unused_here = max(0, k + 1 - arm.max_tokens_per_step)
    unused = unused_here if options.unused_drafts is None else options.unused_drafts
    varies = {other.window: other.varies for other in beside} | {
        k: _beside_prompts(cells, (plain, arm), place)
    }
    return Subject(
        where={**place.to_dict(), "arm": arm.name},
        samples=samples,
        unused=unused,
        largest_k=k - unused_here + unused,
        source=source,
        per_position=of_cell.survival() or (),
        beside={} if options.step_times else varies,
        notes=notes,
    )


def _beside_prompts(cells: Cells, arms: tuple[PlannedArm, PlannedArm], place: Place) -> Variance | None:
    sample = log_ratios(cells, arms, place)[TPOT.name]
    return stats.beside_prompts(stats.mean_of(sample)[1]) if sample else None


class _Beside(NamedTuple):
    window: int
    in_plain: float
    """A step over all prompts, in plain steps of its own run: how fast a server is differs from start to start."""
    by_prompt: Mapping[str, float]
    """Seconds; of the same run only."""
    varies: Variance | None
    """What blocks and starts add to its speed-up's variance over prompts."""

    def seconds(self, prompt: str, plain_s: float) -> float:
        return self.by_prompt.get(prompt, self.in_plain * plain_s)


def _steps_beside(
    cells: Cells, arm: PlannedArm, place: Place, timed: Sequence[TimedArm]
) -> tuple[list[_Beside], list[str]]:
    """The steps of each further arm under the same load, and what is not known of them."""
    steps, notes = [], []
    for other in timed:
        if other.cells is cells and other.arm == arm:
            continue
        same_load = (where for where in other.cells.places if where.load == place.load)
        # How long a step takes goes by the load; a class of that name is asked first.
        ordered = sorted(same_load, key=lambda where: where.class_ != place.class_)
        known = (_beside(other, where, own=other.cells is cells) for where in ordered)
        if step := next(filter(None, known), None):
            steps.append(step)
        else:
            name = f"{other.arm.name} of run {other.run}" if other.run else other.arm.name
            why = f"it is not known {place.load.in_words} there"
            notes.append(f"the step of {name} (window {other.arm.speculative_tokens}) is not used: {why}")
    return steps, notes


def _beside(other: TimedArm, place: Place, *, own: bool) -> _Beside | None:
    cells, arm = other.cells, other.arm
    known, plain, plain_s = known_at(cells, arm, place), cells.plain_of(arm), cells.plain_s(arm, place)
    steps = _steps(arm, known, cells.answered(arm, place)) if known.positions else {}
    if not steps or not plain or not plain_s:
        return None
    varies = _beside_prompts(cells, (plain, arm), place)
    seconds = {prompt: step.seconds for prompt, step in steps.items()}
    mean_s = stats.weighted_mean([(step.seconds, step.drafts.steps) for step in steps.values()], n=1).mean
    return _Beside(arm.speculative_tokens, mean_s / plain_s, seconds if own else {}, varies)


class _PromptSteps(NamedTuple):
    drafts: Drafts
    decoded: Decoding
    seconds: float
    """The time of one step: that of a token times the step's tokens."""


def _steps(arm: PlannedArm, known: Known, answers: Iterable[RequestRecord]) -> dict[str, _PromptSteps]:
    """The steps of each prompt for which both their acceptance and their time are known.

    The server's counters are of the whole cell. Where the chunks agree with them, chunks tell what each prompt's steps yield; else the
    cell's tokens per step stand for the prompt's.
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
