"""What a run knows of each prompt that a forecast needs: survival by position, step times, length of answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from benchmark.analyse.acceptance.windows import (
    Sample,
    Shape,
    StepTimes,
    effective_tokens_per_step,
    step_times,
)
from benchmark.analyse.acceptance.yields import COUNTERS, SERVER, Known, known_at, of_chunks, of_server
from benchmark.analyse.cells import Cells, Pairs, Place
from benchmark.analyse.comparison import log_ratios
from benchmark.analyse.stats import Variance, beside_prompts, mean, mean_of
from benchmark.analyse.values import Decoding, Drafts, pooled
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from benchmark.metrics import TPOT
from benchmark.plan import Arm


@dataclass(frozen=True, kw_only=True)
class Wishes:
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
    samples: Sequence[Sample]
    unused: int
    """Drafts of a step that never count."""
    largest_k: int
    source: str
    per_position: Sequence[float]
    """Over all samples."""
    beside: Mapping[int, Variance | None] = field(default_factory=dict)
    """By timed window, what blocks of time and starts of the servers add to the variance of its log speed-up over prompts."""
    notes: Sequence[str] = ()
    """Step times that were asked for and are not known there, a sentence each."""

    @property
    def plain_s(self) -> float:
        """A geometric mean over prompts, as the speed-up is one."""
        return math.exp(mean([math.log(sample.times.plain_s) for sample in self.samples]))

    def step_s(self, k: int) -> float:
        """In units of the plain step as a mean over prompts, times that step."""
        steps = [sample.times.step_s(k) / sample.times.plain_s for sample in self.samples]
        return self.plain_s * mean(steps)

    @property
    def timed(self) -> tuple[int, ...]:
        """The windows whose step is known for every prompt."""
        every = [sample.times.timed for sample in self.samples]
        return tuple(k for k in every[0] if all(k in timed for timed in every))

    def beside_of(self, k: int) -> Variance | None:
        """Of the next timed window that is no smaller, else of the largest: a pause of the server is a larger share of a short step."""
        if not self.beside:
            return None
        return self.beside[min((window for window in self.beside if window >= k), default=max(self.beside))]

    def shaped(self, shape: Shape) -> Subject:
        """With another price of drafts between the timed windows."""
        samples = [replace(one, times=replace(one.times, shape=shape)) for one in self.samples]
        return replace(self, samples=samples)


class Timed(NamedTuple):
    """An arm with another window, of this run or of another one, whose steps are timed too."""

    cells: Cells
    arm: Arm
    run: str | None = None
    """None is the run that is advised about."""

    def __str__(self) -> str:
        return self.arm.name if self.run is None else f"{self.arm.name} of run {self.run}"


def subject_of(
    cells: Cells, plain: Arm, arm: Arm, place: Place, wishes: Wishes, timed: Sequence[Timed] = ()
) -> Subject | None:
    """Prompts that a plain and a speculating arm both answered; None where positions are not known.

    With the step times of another machine only the speculating arm's answers count.
    """
    known = known_at(cells, arm, place)
    if known.positions is None:
        return None
    source, of_cell = known.positions
    pairs, k = cells.pairs((plain, arm), place), arm.speculative_tokens
    answers = cells.answered(arm, place) if wishes.step_times else [record for _, record in pairs]
    plain_answers = _by_prompt(record for record, _ in pairs)
    beside, notes = _steps_beside(cells, arm, place, () if wishes.step_times else timed)
    samples = []
    for prompt, step in _steps(arm, known, answers).items():
        times = wishes.step_times
        if times is None and (decoded := pooled(plain_answers[prompt], plain.max_tokens_per_step)):
            others = [(one.window, one.seconds(prompt, decoded.tpot_s)) for one in beside]
            times = step_times(_points(decoded.tpot_s, [(k, step.seconds), *others]))
        if times:
            survival, length = step.drafts.survival() or (), step.decoded.tokens / step.decoded.answers
            samples.append(Sample(survival=survival, times=times, tokens=length, steps=step.drafts.steps))
    if wishes.step_times and source == COUNTERS and len({sample.survival for sample in samples}) == 1:
        # Neither acceptance nor times are known by prompt then: there is nothing to take an interval over.
        samples = [replace(samples[0], tokens=mean([sample.tokens or 0.0 for sample in samples]))]
    if not samples:
        return None
    unused_here = max(0, k + 1 - arm.max_tokens_per_step)
    unused = unused_here if wishes.unused_drafts is None else wishes.unused_drafts
    varies = {one.window: one.varies for one in beside} | {k: _beside_prompts(cells, (plain, arm), pairs)}
    return Subject(
        where={**place.to_dict(), "arm": arm.name},
        samples=samples,
        unused=unused,
        largest_k=k - unused_here + unused,
        source=source,
        per_position=of_cell.survival() or (),
        beside={} if wishes.step_times else varies,
        notes=notes,
    )


def _beside_prompts(cells: Cells, arms: tuple[Arm, Arm], pairs: Pairs) -> Variance | None:
    """From the measured speed-up of an arm: its steps were timed in the same blocks."""
    sample = log_ratios(arms, pairs, cells.source)[TPOT.name]
    return beside_prompts(mean_of(sample)[1]) if sample else None


def _points(plain_s: float, timed: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Seconds by window, 0 is plain; of a window that was timed several times the geometric mean."""
    logs: dict[int, list[float]] = {}
    for window, seconds in timed:
        logs.setdefault(window, []).append(math.log(seconds))
    return {0: plain_s} | {k: math.exp(mean(own)) for k, own in logs.items()}


class _Beside(NamedTuple):
    """Steps of a further arm that is timed too."""

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
    cells: Cells, arm: Arm, place: Place, timed: Sequence[Timed]
) -> tuple[list[_Beside], list[str]]:
    """The steps of each further arm under the same load, and what is not known of them."""
    steps, notes = [], []
    for other in timed:
        if other.cells is cells and other.arm == arm:
            continue
        same_load = (one for one in other.cells.places if one.load == place.load)
        # How long a step takes goes by the load; a class of that name is asked first.
        ordered = sorted(same_load, key=lambda one: one.class_ != place.class_)
        known = (_beside(other, where, own=other.cells is cells) for where in ordered)
        if step := next(filter(None, known), None):
            steps.append(step)
        else:
            window = other.arm.speculative_tokens
            why = f"it is not known {place.load.in_words} there"
            notes.append(f"the step of {other} (window {window}) is not used: {why}")
    return steps, notes


def _beside(other: Timed, place: Place, *, own: bool) -> _Beside | None:
    cells, arm = other.cells, other.arm
    known, plain, plain_s = known_at(cells, arm, place), cells.plain_of(arm), cells.plain_s(arm, place)
    steps = _steps(arm, known, cells.answered(arm, place)) if known.positions else {}
    if not steps or not plain or not plain_s:
        return None
    varies = _beside_prompts(cells, (plain, arm), cells.pairs((plain, arm), place))
    seconds = {prompt: step.seconds for prompt, step in steps.items()}
    number = math.fsum(step.drafts.steps for step in steps.values())
    mean_s = math.fsum(step.seconds * step.drafts.steps for step in steps.values()) / number
    return _Beside(arm.speculative_tokens, mean_s / plain_s, seconds if own else {}, varies)


class _Step(NamedTuple):
    """What one arm's steps did on a prompt."""

    drafts: Drafts
    decoded: Decoding
    seconds: float
    """Of one step: those of a token times its tokens."""


def _steps(arm: Arm, known: Known, answers: Iterable[RequestRecord]) -> dict[str, _Step]:
    """By prompt, where both its steps and their time are known.

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
            steps[prompt] = _Step(drafts, decoded, decoded.tpot_s * decoded.tokens / drafts.steps)
        elif source == COUNTERS:
            survival = of_cell.survival() or ()
            tokens = effective_tokens_per_step(survival, len(survival), decoded.tokens / decoded.answers)
            steps[prompt] = _Step(of_cell, decoded, decoded.tpot_s * tokens)
    return steps


def _by_prompt(records: Iterable[RequestRecord]) -> dict[str, list[RequestRecord]]:
    by_prompt: dict[str, list[RequestRecord]] = {}
    for record in records:
        by_prompt.setdefault(record.prompt_id, []).append(record)
    return by_prompt
