"""What a run knows of each prompt that a forecast needs: survival by position, step times, length of answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmark.analyse.acceptance.windows import (
    Sample,
    Shape,
    StepTimes,
    effective_tokens_per_step,
    step_times,
)
from benchmark.analyse.acceptance.yields import COUNTERS, SERVER, Known, known_at, of_chunks, of_server
from benchmark.analyse.cells import Cells, Place
from benchmark.analyse.comparison import Pairs, log_ratios, pairs_of
from benchmark.analyse.sources import Variance, beside_prompts, mean_of
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
    """Of another machine, instead of the run's own."""
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
        return math.exp(math.fsum(math.log(one.times.plain_s) for one in self.samples) / len(self.samples))

    def step_s(self, k: int) -> float:
        """In units of the plain step as a mean over prompts, times that step."""
        steps = [one.times.step_s(k) / one.times.plain_s for one in self.samples]
        return self.plain_s * math.fsum(steps) / len(steps)

    @property
    def timed(self) -> tuple[int, ...]:
        """The windows whose step is known for every prompt."""
        return tuple(
            k for k in self.samples[0].times.timed if all(k in one.times.timed for one in self.samples)
        )

    def beside_of(self, k: int) -> Variance | None:
        """Of the next timed window that is no smaller, else of the largest: a pause of the server is a larger share of a short step."""
        if not self.beside:
            return None
        return self.beside[min((window for window in self.beside if window >= k), default=max(self.beside))]

    @property
    def alike_timed(self) -> bool:
        """Whether the same windows are timed for every prompt."""
        return all(tuple(one.times.timed) == self.timed for one in self.samples)

    def shaped(self, shape: Shape) -> Subject:
        """With another price of drafts between the timed windows."""
        return replace(self, samples=[replace(one, times=one.times.shaped(shape)) for one in self.samples])


@dataclass(frozen=True)
class Timed:
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
    pairs = pairs_of(cells.of(plain, place), cells.of(arm, place))
    answers = cells.answered(arm, place) if wishes.step_times else [record for _, record in pairs]
    plain_answers = _by_prompt(record for record, _ in pairs)
    beside, notes = _steps_beside(cells, arm, place, () if wishes.step_times else timed)
    samples = []
    for prompt, step in _steps(arm, known, answers).items():
        times = wishes.step_times
        if times is None and (decoded := pooled(plain_answers[prompt], plain.max_tokens_per_step)):
            others = [(one.window, one.seconds(prompt, decoded.tpot_s)) for one in beside]
            times = step_times(_points(decoded.tpot_s, [(arm.speculative_tokens, step.seconds), *others]))
        if times:
            survival, length = step.drafts.survival() or (), step.decoded.tokens / step.decoded.answers
            samples.append(Sample(survival=survival, times=times, tokens=length, steps=step.drafts.steps))
    if wishes.step_times and source == COUNTERS and len({one.survival for one in samples}) == 1:
        # Neither acceptance nor times are known by prompt then: there is nothing to take an interval over.
        length = math.fsum(one.tokens or 0.0 for one in samples) / len(samples)
        samples = [replace(samples[0], tokens=length)]
    if not samples:
        return None
    own = {arm.speculative_tokens: _beside_prompts(cells, (plain, arm), pairs)}
    unused_here = max(0, arm.speculative_tokens + 1 - arm.max_tokens_per_step)
    unused = unused_here if wishes.unused_drafts is None else wishes.unused_drafts
    return Subject(
        where={**place.to_dict(), "arm": arm.name},
        samples=samples,
        unused=unused,
        largest_k=arm.speculative_tokens - unused_here + unused,
        source=source,
        per_position=of_cell.survival() or (),
        beside={} if wishes.step_times else {one.window: one.varies for one in beside} | own,
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
    return {0: plain_s} | {k: math.exp(math.fsum(found) / len(found)) for k, found in logs.items()}


@dataclass(frozen=True)
class _Beside:
    """Steps of a further arm that is timed too."""

    window: int
    in_plain: float
    """One of them over all prompts, in plain steps of its own run: how fast a server is differs from start to start."""
    by_prompt: Mapping[str, float]
    """Seconds; of the same run only."""
    varies: Variance | None
    """What blocks and starts add to its speed-up's variance over prompts."""

    def seconds(self, prompt: str, plain_s: float) -> float:
        return self.by_prompt.get(prompt, self.in_plain * plain_s)


def _steps_beside(
    cells: Cells, arm: Arm, place: Place, timed: Sequence[Timed]
) -> tuple[list[_Beside], list[str]]:
    """Of each further arm its steps under the same load, and what is not known of them."""
    found, notes = [], []
    for other in timed:
        if other.cells is cells and other.arm == arm:
            continue
        same_load = (one for one in other.cells.places if one.load == place.load)
        # How long a step takes goes by the load; a class of that name is asked first.
        for where in sorted(same_load, key=lambda one: one.class_ != place.class_):
            if step := _beside(other, where, own=other.cells is cells):
                found.append(step)
                break
        else:
            notes.append(
                f"the step of {other} (window {other.arm.speculative_tokens}) is not used: it is not known "
                f"{place.load.in_words} there"
            )
    return found, notes


def _beside(other: Timed, place: Place, *, own: bool) -> _Beside | None:
    known, answers = known_at(other.cells, other.arm, place), other.cells.answered(other.arm, place)
    plain, plain_s = other.cells.plain_of(other.arm), other.cells.plain_s(other.arm, place)
    steps = _steps(other.arm, known, answers) if known.positions else {}
    if not steps or not plain or not plain_s:
        return None
    arms = plain, other.arm
    varies = _beside_prompts(other.cells, arms, other.cells.pairs(arms, place))
    seconds = {prompt: step.seconds for prompt, step in steps.items()}
    number = math.fsum(step.drafts.steps for step in steps.values())
    mean_s = math.fsum(step.seconds * step.drafts.steps for step in steps.values()) / number
    return _Beside(other.arm.speculative_tokens, mean_s / plain_s, seconds if own else {}, varies)


@dataclass(frozen=True)
class _Step:
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
    found = {}
    for prompt, records in _by_prompt(answers).items():
        decoded = pooled(records, arm.max_tokens_per_step)
        if decoded is None or of_cell is None:
            continue
        drafts = (
            of_server(records) if source == SERVER else None if known.caution else of_chunks(arm, records)
        )
        if drafts and drafts.steps and drafts.survival():
            found[prompt] = _Step(drafts, decoded, decoded.tpot_s * decoded.tokens / drafts.steps)
        elif source == COUNTERS:
            survival = of_cell.survival() or ()
            length = decoded.tokens / decoded.answers
            tokens = effective_tokens_per_step(survival, len(survival), length)
            found[prompt] = _Step(of_cell, decoded, decoded.tpot_s * tokens)
    return found


def _by_prompt(records: Iterable[RequestRecord]) -> dict[str, list[RequestRecord]]:
    found: dict[str, list[RequestRecord]] = {}
    for record in records:
        found.setdefault(record.prompt_id, []).append(record)
    return found
