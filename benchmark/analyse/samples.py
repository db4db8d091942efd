"""What a run knows of each prompt that a forecast needs: survival by position, step times, length of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmark.analyse.acceptance import CHUNKS, COUNTERS, SERVER, of_chunks, of_server
from benchmark.analyse.cells import Cells, Place
from benchmark.analyse.comparison import pairs_of
from benchmark.analyse.drafts import Drafts
from benchmark.analyse.forecast import (
    Sample,
    StepTimes,
    effective_tokens_per_step,
    step_times,
)
from benchmark.analyse.values import decoding, output_tokens
from benchmark.measure.records import RequestRecord
from benchmark.plan import Arm


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """The prompts of one cell."""

    samples: Sequence[Sample]
    source: str
    per_position: Sequence[float]
    """Over all of them."""


@dataclass(frozen=True, kw_only=True)
class _Timed:
    """One prompt's answers in one arm: seconds and tokens of decoding, over `answers`."""

    span_s: float
    tokens: int
    answers: int

    @property
    def tpot_s(self) -> float:
        return self.span_s / self.tokens


def sample(
    cells: Cells, arms: tuple[Arm, Arm], place: Place, other: StepTimes | None, beside: Arm | None = None
) -> Sampled | None:
    """Prompts that the plain and the speculating arm both answered; None where positions are not known.

    With the step times of another machine only the speculating arm's answers count. `beside` is a further
    speculating arm, of another window, whose step is timed too.
    """
    plain, arm = arms
    answered = cells.answered(arm, place)
    known = cells.steps(arm, place).positions
    if known is None:
        return None
    source, of_cell = known
    if other is None:
        pairs = pairs_of(cells.of(plain, place), cells.of(arm, place))
        before = _by_prompt([one for one, _ in pairs])
        after = _by_prompt([two for _, two in pairs])
    else:
        before, after = {}, _by_prompt(answered)
    known_beside = _windows(cells, beside, place) if beside and beside != arm and other is None else {}
    samples = []
    for prompt, records in after.items():
        drafts = of_cell if source == COUNTERS else _drafts(arm, source, records)
        timed = _timed(arm, records)
        if drafts is None or timed is None:
            continue
        base = None if other else _timed(plain, before[prompt])
        own = {arm.speculative_tokens: _step_s(drafts, timed, counted=source == COUNTERS)}
        points = own | known_beside.get(prompt, {})
        times = other or (base and step_times({0: base.tpot_s, **points}))
        if times:
            samples.append(_sample(drafts, times, timed))
    if not samples:
        return None
    return Sampled(samples=samples, source=source, per_position=of_cell.survival() or ())


def _sample(drafts: Drafts, times: StepTimes, timed: _Timed) -> Sample:
    return Sample(
        survival=drafts.survival() or (),
        times=times,
        tokens=timed.tokens / timed.answers,
        steps=drafts.steps,
    )


def _windows(cells: Cells, arm: Arm, place: Place) -> dict[str, dict[int, float]]:
    """By prompt, the arm's window and the seconds of its step; empty where its steps are not known."""
    answered = cells.answered(arm, place)
    known = cells.steps(arm, place).positions
    if known is None:
        return {}
    source, of_cell = known
    found = {}
    for prompt, records in _by_prompt(answered).items():
        drafts = of_cell if source == COUNTERS else _drafts(arm, source, records)
        timed = _timed(arm, records)
        if drafts and timed:
            found[prompt] = {arm.speculative_tokens: _step_s(drafts, timed, counted=source == COUNTERS)}
    return found


def _step_s(drafts: Drafts, timed: _Timed, *, counted: bool) -> float:
    """An arm's own step on a prompt: its seconds are those of a token times its tokens.

    The server's counters are of the whole cell: its tokens per step stand for the prompt's.
    """
    if counted:
        whole = Sample(survival=drafts.survival() or (), times=_NO_TIMES, tokens=timed.tokens / timed.answers)
        return timed.tpot_s * effective_tokens_per_step(whole, len(whole.survival))
    return timed.tpot_s * timed.tokens / drafts.steps


_NO_TIMES = StepTimes(plain_s=1.0, verify_s=1.0, draft_s=0.0)


def _drafts(arm: Arm, source: str, records: Sequence[RequestRecord]) -> Drafts | None:
    found = {SERVER: lambda: of_server(records), CHUNKS: lambda: of_chunks(arm, records)}[source]()
    return found if found and found.steps else None


def _by_prompt(records: Sequence[RequestRecord]) -> Mapping[str, list[RequestRecord]]:
    found: dict[str, list[RequestRecord]] = {}
    for record in records:
        found.setdefault(record.prompt_id, []).append(record)
    return found


def _timed(arm: Arm, records: Sequence[RequestRecord]) -> _Timed | None:
    parts = [decoding(record, output_tokens(record, arm.max_tokens_per_step)) for record in records]
    known = [part for part in parts if part]
    if not known:
        return None
    return _Timed(span_s=sum(s for s, _ in known), tokens=sum(n for _, n in known), answers=len(known))
