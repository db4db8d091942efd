"""Which window to compile: speed-up of every smaller k, predicted from one run at the largest.

On an accelerator whose graphs are compiled for one k this replaces a sweep. Nothing is fitted to one acceptance
rate: each position's own share of accepted drafts goes in (`benchmark.analyse.forecast`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmark.analyse.advice import Subject, Wishes, advice
from benchmark.analyse.cells import Cells, Place, sort_out
from benchmark.analyse.forecast import Sample
from benchmark.analyse.samples import sample
from benchmark.errors import ResultsError
from benchmark.measure.journal import RawRun
from benchmark.plan import Arm, Plan


def advise(raw: RawRun, wishes: Wishes | None = None) -> dict[str, Any]:
    """Advice from a run, for each speculating arm, class and load of it; see `advice`.

    Raises ResultsError where the run cannot tell: no plain arm, no speculating arm, nothing known by position.
    """
    wishes = wishes or Wishes()
    plan = raw.plan
    plain = next((arm for arm in (plan.arm(plan.baseline), *plan.arms) if not arm.speculative_tokens), None)
    speculating = [arm for arm in plan.arms if arm.speculative_tokens]
    if plain is None or not speculating:
        raise ResultsError(f"run {raw.sittings[0].run}: {_undeclared(plan, plain is None)}")
    if wishes.timed_with is not None and wishes.timed_with not in {arm.name for arm in speculating}:
        raise ResultsError(
            f"--timed-with: {wishes.timed_with!r} is no speculating arm of the run; "
            f"those are {', '.join(arm.name for arm in speculating)}"
        )
    cells = sort_out(plan, raw)
    found = [
        subject
        for place in cells.places
        for arm in speculating
        if (subject := _subject(cells, (plain, arm), place, wishes))
    ]
    doubts = _doubts(cells, speculating)
    if not found:
        why = "; ".join(dict.fromkeys(doubts.values())) or (
            "the server must send usage with every chunk, or statistics of speculation"
        )
        raise ResultsError(
            f"run {raw.sittings[0].run}: no cell tells how many tokens its steps yield, position by position; {why}"
        )
    first = raw.sittings[0]
    basis = f"run {first.run} of {plan.experiment} ({plan.model}), {first.provenance}"
    said = advice(found, wishes, basis=basis, own_times=wishes.step_times is None)
    left_out = [{**place.to_dict(), "arm": arm, "why": why} for (place, arm), why in doubts.items()]
    return {**said, "left_out": left_out}


def _undeclared(plan: Plan, plain: bool) -> str:
    """What to say about the arms of a run that was not told."""
    if plain:
        return (
            "no arm decodes plainly by its plan, and advise compares with one; name the one that does, for example "
            f"--speculative-tokens {plan.baseline}=0"
        )
    others = [arm.name for arm in plan.arms if arm.name != plan.baseline]
    name = others[0] if others else "NAME"
    return (
        f"no arm speculates by its plan; say which one drafts how many tokens, for example --speculative-tokens {name}=7 "
        f"(a step then yields 8 at most; with --tokens-per-step {name}=7 it yields 7, as on NxD Inference)"
    )


def _doubts(cells: Cells, arms: Sequence[Arm]) -> dict[tuple[Place, str], str]:
    """Why nothing is built on an arm's chunks, by place and arm."""
    steps = {(place, arm.name): cells.steps(arm, place) for place in cells.places for arm in arms}
    return {where: one.caution for where, one in steps.items() if one.caution and not one.positions}


def forecast(acceptance: Mapping[str, Sequence[float]], wishes: Wishes, *, basis: str) -> dict[str, Any]:
    """Advice from survival by position, by class, and the step times of `wishes`: nothing of it is of this run.

    There are no prompts to take intervals over.
    """
    if wishes.step_times is None:
        raise ResultsError("a forecast needs step times")
    unused = wishes.unused_drafts or 0
    subjects = [
        Subject(
            where={"class": class_, "concurrency": None, "rate_per_s": None, "arm": None},
            samples=[Sample(survival=survival, times=wishes.step_times)],
            unused=unused,
            largest_k=len(survival) + unused,
            source="the file",
            per_position=survival,
        )
        for class_, survival in acceptance.items()
    ]
    return advice(subjects, wishes, basis=basis)


def _subject(cells: Cells, arms: tuple[Arm, Arm], place: Place, wishes: Wishes) -> Subject | None:
    arm = arms[1]
    beside = next((one for one in cells.plan.arms if one.name == wishes.timed_with), None)
    sampled = sample(cells, arms, place, wishes.step_times, beside)
    if sampled is None:
        return None
    own = max(0, arm.speculative_tokens + 1 - arm.max_tokens_per_step)
    unused = own if wishes.unused_drafts is None else wishes.unused_drafts
    return Subject(
        where={**place.to_dict(), "arm": arm.name},
        samples=sampled.samples,
        unused=unused,
        largest_k=arm.speculative_tokens - own + unused,
        source=sampled.source,
        per_position=sampled.per_position,
    )
