"""What a run knows of each prompt that a forecast needs: survival by position, step times, length of answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmark.analyse.acceptance.windows import Sample, StepTimes, effective_tokens_per_step, step_times
from benchmark.analyse.acceptance.yields import COUNTERS, SERVER, known_at, of_chunks, of_server
from benchmark.analyse.cells import Cells, Place
from benchmark.analyse.comparison import pairs_of
from benchmark.analyse.values import Decoding, Drafts, pooled
from benchmark.measure.records import RequestRecord
from benchmark.plan import Arm

Prompts = Mapping[str, Sequence[RequestRecord]]
"""Answers by prompt."""


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """The prompts of one cell."""

    samples: Sequence[Sample]
    source: str
    per_position: Sequence[float]
    """Over all of them."""


def sample(
    cells: Cells, arms: tuple[Arm, Arm], place: Place, other: StepTimes | None, beside: Arm | None = None
) -> Sampled | None:
    """Prompts that the plain and the speculating arm both answered; None where positions are not known.

    With the step times of another machine only the speculating arm's answers count. `beside` is a further
    speculating arm, of another window, whose step is timed too.
    """
    plain, arm = arms
    positions = known_at(cells, arm, place).positions
    if positions is None:
        return None
    pairs = pairs_of(cells.of(plain, place), cells.of(arm, place))
    answers = by_prompt(cells.answered(arm, place) if other else [record for _, record in pairs])
    plain_answers = by_prompt(record for record, _ in pairs)
    known = _steps(arm, positions, answers)
    known_beside: Mapping[str, _Step] = {}
    if beside and beside != arm and other is None and (of_beside := known_at(cells, beside, place).positions):
        known_beside = _steps(beside, of_beside, by_prompt(cells.answered(beside, place)))
    samples = []
    for prompt, step in known.items():
        times = other
        if times is None and (decoded := pooled(plain_answers[prompt], plain.max_tokens_per_step)):
            points = {0: decoded.tpot_s, arm.speculative_tokens: step.seconds}
            if beside and prompt in known_beside:
                points[beside.speculative_tokens] = known_beside[prompt].seconds
            times = step_times(points)
        if times:
            samples.append(
                Sample(
                    survival=step.drafts.survival() or (),
                    times=times,
                    tokens=step.decoded.tokens / step.decoded.answers,
                    steps=step.drafts.steps,
                )
            )
    if not samples:
        return None
    source, of_cell = positions
    return Sampled(samples=samples, source=source, per_position=of_cell.survival() or ())


def by_prompt(records: Iterable[RequestRecord]) -> Prompts:
    found: dict[str, list[RequestRecord]] = {}
    for record in records:
        found.setdefault(record.prompt_id, []).append(record)
    return found


@dataclass(frozen=True)
class _Step:
    """What one arm's steps did on a prompt."""

    drafts: Drafts
    decoded: Decoding
    seconds: float
    """Of one step: those of a token times its tokens."""


def _steps(arm: Arm, positions: tuple[str, Drafts], answers: Prompts) -> dict[str, _Step]:
    """By prompt, where both its steps and their time are known.

    The server's counters are of the whole cell: its tokens per step stand for the prompt's.
    """
    source, of_cell = positions
    found = {}
    for prompt, records in answers.items():
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
