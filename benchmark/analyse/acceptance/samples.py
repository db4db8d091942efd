"""What a run knows of each prompt that a forecast needs: survival by position, step times, length of answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmark.analyse.acceptance.windows import Sample, StepTimes, effective_tokens_per_step, step_times
from benchmark.analyse.acceptance.yields import COUNTERS, SERVER, known_at, of_chunks, of_server
from benchmark.analyse.cells import Cells, Place
from benchmark.analyse.comparison import pairs_of
from benchmark.analyse.values import Decoding, Drafts, pooled
from benchmark.measure.records import RequestRecord
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
    timed_with: str | None = None
    """An arm of the run with another window, whose step is timed too: two windows tell what drafting costs at all
    from what each draft costs."""
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

    def times(self) -> StepTimes:
        """The plain step as a geometric mean over prompts, as the speed-up is one; the rest in units of it."""
        times = [one.times for one in self.samples]
        plain_s = math.exp(math.fsum(math.log(one.plain_s) for one in times) / len(times))
        verify = math.fsum(one.verify_s / one.plain_s for one in times) / len(times)
        draft = math.fsum(one.draft_s / one.plain_s for one in times) / len(times)
        return StepTimes(plain_s=plain_s, verify_s=plain_s * verify, draft_s=plain_s * draft)

    @property
    def timed(self) -> int | None:
        """The only window in the step times of some prompt; None where every prompt has a second one."""
        return max((one.times.timed for one in self.samples if one.times.timed is not None), default=None)

    def with_fixed_part(self, share: float) -> Subject:
        """See `StepTimes.with_fixed_part`."""
        samples = [replace(one, times=one.times.with_fixed_part(share)) for one in self.samples]
        return replace(self, samples=samples)


def subject_of(cells: Cells, plain: Arm, arm: Arm, place: Place, wishes: Wishes) -> Subject | None:
    """Prompts that a plain and a speculating arm both answered; None where positions are not known.

    With the step times of another machine only the speculating arm's answers count.
    """
    positions = known_at(cells, arm, place).positions
    if positions is None:
        return None
    pairs = pairs_of(cells.of(plain, place), cells.of(arm, place))
    answers = cells.answered(arm, place) if wishes.step_times else [record for _, record in pairs]
    plain_answers = _by_prompt(record for record, _ in pairs)
    beside = {} if wishes.step_times else _steps_beside(cells, arm, place, wishes)
    samples = []
    for prompt, step in _steps(arm, positions, answers).items():
        times = wishes.step_times
        if times is None and (decoded := pooled(plain_answers[prompt], plain.max_tokens_per_step)):
            own = {0: decoded.tpot_s, arm.speculative_tokens: step.seconds}
            times = step_times(own | beside.get(prompt, {}))
        if times:
            survival, length = step.drafts.survival() or (), step.decoded.tokens / step.decoded.answers
            samples.append(Sample(survival=survival, times=times, tokens=length, steps=step.drafts.steps))
    if not samples:
        return None
    source, of_cell = positions
    unused_here = max(0, arm.speculative_tokens + 1 - arm.max_tokens_per_step)
    unused = unused_here if wishes.unused_drafts is None else wishes.unused_drafts
    return Subject(
        where={**place.to_dict(), "arm": arm.name},
        samples=samples,
        unused=unused,
        largest_k=arm.speculative_tokens - unused_here + unused,
        source=source,
        per_position=of_cell.survival() or (),
    )


def _steps_beside(cells: Cells, arm: Arm, place: Place, wishes: Wishes) -> dict[str, dict[int, float]]:
    """By prompt, the window and the seconds of a step of the further arm that is timed too, where it is known."""
    for other in cells.plan.arms:
        if other.name == wishes.timed_with and other != arm:
            positions = known_at(cells, other, place).positions
            found = _steps(other, positions, cells.answered(other, place)) if positions else {}
            return {prompt: {other.speculative_tokens: step.seconds} for prompt, step in found.items()}
    return {}


@dataclass(frozen=True)
class _Step:
    """What one arm's steps did on a prompt."""

    drafts: Drafts
    decoded: Decoding
    seconds: float
    """Of one step: those of a token times its tokens."""


def _steps(arm: Arm, positions: tuple[str, Drafts], answers: Iterable[RequestRecord]) -> dict[str, _Step]:
    """By prompt, where both its steps and their time are known.

    The server's counters are of the whole cell: its tokens per step stand for the prompt's.
    """
    source, of_cell = positions
    found = {}
    for prompt, records in _by_prompt(answers).items():
        decoded = pooled(records, arm.max_tokens_per_step)
        if decoded is None:
            continue
        if source == COUNTERS:
            survival = of_cell.survival() or ()
            length = decoded.tokens / decoded.answers
            tokens = effective_tokens_per_step(survival, len(survival), length)
            found[prompt] = _Step(of_cell, decoded, decoded.tpot_s * tokens)
        else:
            drafts = of_server(records) if source == SERVER else of_chunks(arm, records)
            if drafts and drafts.steps:
                found[prompt] = _Step(drafts, decoded, decoded.tpot_s * decoded.tokens / drafts.steps)
    return found


def _by_prompt(records: Iterable[RequestRecord]) -> dict[str, list[RequestRecord]]:
    found: dict[str, list[RequestRecord]] = {}
    for record in records:
        found.setdefault(record.prompt_id, []).append(record)
    return found
