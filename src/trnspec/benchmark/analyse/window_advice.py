"""Which window to compile: the speed-up of every smaller k, predicted from one run with the largest.

On an accelerator whose graphs are compiled for one k this replaces a sweep. The prediction does not assume one acceptance
rate; it uses the share of accepted drafts at each position (`trnspec.benchmark.analyse.windows`).

- `origin`: "predicted"; `basis`: from what; `step_times`: whose
- `cells`: [{class, concurrency, rate_per_s, arm, source, per_position, largest_k, unused_drafts, n_prompts, together,
  plain_s, timed_s ({window: seconds of a step}), draft_s (mean price of a draft from window 1 to the largest), verify_s (the step of
  window 1 less that), draft_cost (draft_s / plain_s), by_k, best_k, recommended_k, not_told_apart, time_next, notes, text}], where
  `by_k` is [{k, tokens_per_step, tokens_per_step_low, tokens_per_step_high, step_s, tpot_s, speed_up, ci_low, ci_high, low, high}]
- `left_out` (of a run only): [{class, concurrency, rate_per_s, arm, why}], cells whose chunks are not steps
- `mixes`: [{concurrency, rate_per_s, arm, weights: {class: share}, together, by_k: [{k, speed_up, ci_low, ci_high, low, high}],
  best_k, recommended_k, not_told_apart, time_next, text}]
- `notes`: step times that were not used or that cannot be right, a sentence each
- `by_load` (of a run only, that timed two loads or more): [{class (null: the mixture), arm, by: "concurrency" | "rate",
  windows: [{load, k (null: cannot choose)}], text}]

`recommended_k` 0 means "keep plain decoding". The speed-up of a window that the run measured is the report's, and so is its interval:
`together` intervals of a load hold together, over classes and arms, or over the arms of the mixes (Bonferroni). Other step times are
interpolated between the timed windows. `ci_low` and `ci_high` span the interval over prompts and, for a window that was not timed, other
assumptions about the cost of drafts (`draft_cost.CURVES`). They are null if there are no prompts for an interval; `low` and `high` then
still span the assumptions. If `recommended_k` is more than 5 % slower than another window under some assumption, the windows that may
be best are in `not_told_apart`, and `time_next` is the window whose step to time next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from trnspec.benchmark.analyse.acceptance import MAX_WINDOWS, tokens_per_step_at
from trnspec.benchmark.analyse.cells import RequestsByCell, cells_of
from trnspec.benchmark.analyse.draft_cost import CURVES
from trnspec.benchmark.analyse.sentences import rendered
from trnspec.benchmark.analyse.speed_up import intervals_together
from trnspec.benchmark.analyse.statistics import Estimate
from trnspec.benchmark.analyse.windows import (
    AdviceOptions,
    ClassAtLoad,
    Gains,
    PromptAcceptance,
    TimedArm,
    class_at_load,
    mixture,
    of_prompts,
    recommended,
    with_timed_arms,
)
from trnspec.benchmark.cell_size import MIN_PROMPTS
from trnspec.benchmark.errors import ResultsError
from trnspec.benchmark.measure import sanity_check
from trnspec.benchmark.plan import Plan, PlannedArm

_MIN_GAIN = 1.05
"""A window that is faster by a smaller factor is not worth another measurement."""
_OTHER_MACHINE = "as given, of another machine"
_ByCurve = Sequence[Mapping[int, Gains]]
"""The gains of each window, for each of `CURVES`."""


def advise(cells: RequestsByCell, options: AdviceOptions | None = None) -> dict[str, Any]:
    """Advice from a run, for each speculating arm, class and load of it.

    Raises ResultsError for options that are not possible with this run, and for a run without a plain arm, a speculating arm, or
    acceptance by position.
    """
    options, plan, run = options or AdviceOptions(), cells.plan, cells.raw.sessions[0]
    if why := sanity_check.withholds(cells.raw.sense):
        raise ResultsError(f"{why}: correct the server and measure again")
    speculating = {arm.name: arm for arm in plan.arms if arm.speculative_tokens}
    if not speculating or len(speculating) == len(plan.arms):
        raise ResultsError(_undeclared(plan, bool(speculating)))
    together = {load: intervals_together(cells, load) for load in plan.loads}
    timed, classes, left_out = list(_timed(cells, speculating, options)), [], []
    for place, arm in product(cells.places, speculating.values()):
        steps = tokens_per_step_at(cells, arm, place)
        if found := class_at_load(cells, arm, place, steps, options):
            found = replace(found, together=(together[place.load], len(cells.compared)))
            others = [other for other in timed if other.cells is not cells or other.arm != arm]
            classes.append(with_timed_arms(found, cells, place, others) if others else found)
        if steps.why_chunks_are_not_steps and not steps.positions:
            left_out.append({**place.to_dict(), "arm": arm.name, "why": steps.why_chunks_are_not_steps})
    if not classes:
        why = "; ".join(dict.fromkeys(cell["why"] for cell in left_out))
        why = why or "its server must have counters at /metrics, or send usage with every chunk"
        raise ResultsError(f"how many drafts are accepted by position is not known: {why}")
    basis = f"run {run.run} of {plan.experiment} ({plan.model}), {run.provenance}"
    known = {one.where["class"] for one in classes}
    mix = options.mix or {name: share for name, share in (cells.shares or {}).items() if name in known}
    times = _OTHER_MACHINE if options.step_times else "the run's own"
    advice = _advice(classes, replace(options, mix=mix or None), basis, times)
    by_load = [] if options.step_times else [*_by_load([*advice["cells"], *advice["mixes"]])]
    notes = [*advice["notes"], *_not_used(speculating, options)]
    return {**advice, "by_load": by_load, "left_out": left_out, "notes": notes}


def _timed(
    cells: RequestsByCell, speculating: Mapping[str, PlannedArm], options: AdviceOptions
) -> Iterator[TimedArm]:
    """Arms with other windows, of this run and of other runs."""
    for name in options.timed_with:
        if name not in speculating:
            known = ", ".join(speculating)
            raise ResultsError(
                f"--timed-with: {name!r} is not an arm of the run that drafts; give one of {known}, or the folder of another run"
            )
        yield TimedArm(cells, speculating[name])
    for raw, wanted in options.timed_in:
        run, others = raw.sessions[0].run, cells_of(raw)
        drafting = [arm for arm in raw.plan.arms if arm.speculative_tokens and wanted in (None, arm.name)]
        if not drafting:
            known = ", ".join(arm.name for arm in raw.plan.arms)
            what = "no arm" if wanted is None else f"{wanted!r} is not an arm that"
            raise ResultsError(
                f"--timed-with: {what} drafts in run {run}, whose arms are {known}; give the folder of a run with such an arm"
            )
        yield from (TimedArm(others, arm, run) for arm in drafting)


def _not_used(speculating: Mapping[str, PlannedArm], options: AdviceOptions) -> Iterator[str]:
    """Notes about step times of the run that are not used. Arms may have another draft, so their steps are used only on request."""
    every = {name: arm.speculative_tokens for name, arm in speculating.items()}
    rest = {name: k for name, k in every.items() if name not in options.timed_with}
    if options.step_times:
        yield rendered("windows", kind="replaced", windows=every)
    elif len({*every.values()}) > 1 and rest:
        yield rendered("windows", kind="not used", windows=rest)


def _undeclared(plan: Plan, plain: bool) -> str:
    if plain:
        return (
            "no arm is declared to decode plainly, and windows are compared with one; add for example "
            f"--speculative-tokens {plan.baseline}=0"
        )
    others = [arm.name for arm in plan.arms if arm.name != plan.baseline]
    name = others[0] if others else "NAME"
    return f"no arm is declared to draft; if one does, add its draft tokens, for example --speculative-tokens {name}=7"


def forecast(
    acceptance: Mapping[str, Sequence[float]], options: AdviceOptions, *, basis: str
) -> dict[str, Any]:
    """Advice without a run, from the survival by position of each class and the step times of `options`.

    Without prompts there are no intervals over prompts.
    """
    if options.step_times is None:
        raise ResultsError("a forecast needs step times")
    unused = options.unused_drafts or 0
    classes = [
        of_prompts(
            PromptAcceptance(np.array([survival]), tokens=np.array([math.inf]), steps=np.ones(1)),
            options.step_times,
            code,
            where={"class": class_, "concurrency": None, "rate_per_s": None, "arm": None},
            unused=unused,
            largest_k=len(survival) + unused,
            source="the file",
            per_position=survival,
        )
        for code, (class_, survival) in enumerate(acceptance.items())
    ]
    return _advice(classes, options, basis, _OTHER_MACHINE)


def _advice(classes: Sequence[ClassAtLoad], options: AdviceOptions, basis: str, times: str) -> dict[str, Any]:
    rows = [(one, _gains(one)) for one in classes]
    given, measure = options.step_times, "--timed-with"
    short = []
    if given:
        measure = "add its step to --step-times"
        windows = ((k, seconds) for k, seconds in given.timed.items() if seconds < given.plain_s)
        short = [rendered("windows", kind="short", k=k, seconds=s, plain_s=given.plain_s) for k, s in windows]
    return {
        "schema": 1,
        "origin": "predicted",
        "basis": basis,
        "step_times": times,
        "cells": [_cell(*row, measure) for row in rows],
        "mixes": _mixes(rows, options.mix, measure),
        "notes": short,
    }


def _gains(one: ClassAtLoad) -> _ByCurve:
    if (largest := one.largest_k) > MAX_WINDOWS:
        raise ResultsError(f"{one.where['class']}: {largest} windows are more than {MAX_WINDOWS}")
    curves = (replace(one, times=replace(one.times, cost=cost)) for cost in CURVES)
    return [{k: curve.gains(k) for k in range(1, largest + 1)} for curve in curves]


def _cell(one: ClassAtLoad, gains: _ByCurve, measure: str) -> dict[str, Any]:
    plain_s, first_s, last_s = (one.step_s(k) for k in (0, 1, one.largest_k))
    draft_s = (last_s - first_s) / (one.largest_k - 1) if one.largest_k > 1 else first_s - plain_s
    tokens = {k: one.tokens_per_step(k) for k in gains[0]}
    known = {
        k: {
            "tokens_per_step": mean.mean,
            "tokens_per_step_low": mean.low,
            "tokens_per_step_high": mean.high,
            "step_s": one.step_s(k),
            "tpot_s": plain_s / math.exp(gains[0][k].mean),
        }
        for k, mean in tokens.items()
    }
    prompts = one.prompts
    estimates = [{k: mixture([(1.0, own)], one.together[0]) for k, own in curve.items()} for curve in gains]
    return {
        **one.where,
        "source": one.source,
        "per_position": list(one.per_position),
        "largest_k": one.largest_k,
        "unused_drafts": one.unused,
        "n_prompts": prompts if prompts > 1 else None,
        "together": one.together[0],
        "plain_s": plain_s,
        "timed_s": {k: one.step_s(k) for k in one.times.timed},
        "verify_s": first_s - draft_s,
        "draft_s": draft_s,
        "draft_cost": draft_s / plain_s,
        "notes": list(one.notes),
        **_choice(estimates, [*one.times.timed], measure, known),
    }


def _mixes(
    rows: Sequence[tuple[ClassAtLoad, _ByCurve]], mix: Mapping[str, float] | None, measure: str
) -> list[dict[str, Any]]:
    """The mix for each arm and load, of its known classes; none if there is only one class."""
    known = {one.where["class"] for one, _ in rows}
    if unknown := [class_ for class_ in mix or () if class_ not in known]:
        raise ResultsError(f"--mix: nothing is known of {unknown[0]!r}; known are {', '.join(sorted(known))}")
    groups: dict[tuple[Any, ...], list[tuple[ClassAtLoad, _ByCurve]]] = {}
    for row in rows:
        where = row[0].where
        groups.setdefault((where["concurrency"], where["rate_per_s"], where["arm"]), []).append(row)
    return [_mix(members, mix, measure) for members in groups.values() if len(members) > 1 or mix]


def _mix(
    members: Sequence[tuple[ClassAtLoad, _ByCurve]], mix: Mapping[str, float] | None, measure: str
) -> dict[str, Any]:
    """The mix of classes, without `mix` in equal shares: as in the report, of those with enough prompts, where a class has them."""
    classes, prompts = [one.where["class"] for one, _ in members], [one.prompts for one, _ in members]
    enough = MIN_PROMPTS if max(prompts) >= MIN_PROMPTS else 0
    shares = [float(n >= enough) for n in prompts] if mix is None else [mix.get(c, 0.0) for c in classes]
    total = math.fsum(shares)
    if not total > 0:
        raise ResultsError(f"--mix: no class of {', '.join(classes)} has a share above 0")
    weights = [share / total for share in shares]
    known = [(weight, *own) for weight, own in zip(weights, members, strict=True) if weight]
    together = members[0][0].together[1]
    windows = min((gains[0] for _, gains in members), key=len)
    estimates = [
        {k: mixture([(weight, gains[curve][k]) for weight, _, gains in known], together) for k in windows}
        for curve in range(len(CURVES))
    ]
    timed = [k for k in windows if all(k in one.times.timed for one, _ in members)]
    return {
        **{name: value for name, value in members[0][0].where.items() if name != "class"},
        "weights": dict(zip(classes, weights, strict=True)),
        "together": together,
        **_choice(estimates, timed, measure),
    }


def _range(curves: Sequence[Estimate]) -> dict[str, Any]:
    """The speed-up, and its interval over prompts and over all curves."""
    low = math.exp(min(known.mean if known.low is None else known.low for known in curves))
    high = math.exp(max(known.mean if known.high is None else known.high for known in curves))
    known = curves[0].low is not None
    ends = {"ci_low": low if known else None, "ci_high": high if known else None, "low": low, "high": high}
    return {"speed_up": math.exp(curves[0].mean), **ends}


def _choice(
    curves: Sequence[Mapping[int, Estimate]],
    timed: Sequence[int],
    measure: str,
    known: Mapping[int, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The rows by window, the fastest window, the recommended window, and the reason in words. If the step times are not enough to choose
    one window, the text says so."""
    known = known or {}
    rows = {k: {"k": k, **known.get(k, {}), **_range([curve[k] for curve in curves])} for k in curves[0]}
    best = max(rows.values(), key=lambda row: float(row["speed_up"]))
    chosen = recommended({k: row["speed_up"] for k, row in rows.items()})
    choice: dict[str, Any] = {"by_k": [*rows.values()], "best_k": best["k"], "recommended_k": chosen}
    speed_ups = [{0: 1.0} | {k: math.exp(gain.mean) for k, gain in curve.items()} for curve in curves]
    wins = {recommended(own) for own in speed_ups if max(own.values()) > _MIN_GAIN * own[chosen]}
    if not wins:
        text = rendered("windows", kind="choice", chosen=chosen, row=rows.get(chosen), best=best)
        return choice | {"not_told_apart": [], "time_next": None, "text": text}
    first, last = min({chosen, *wins} - {0}, default=0), max(chosen, *wins)
    # Windows between two that are best on some curve are nearly as good, and may be best on a curve that was not tried.
    alike = [k for k in (0, *rows) if k in {chosen, *wins} or 0 < first <= k <= last]
    # Time the window with the largest possible gain next: that confirms it or rules it out.
    following = max((k for k in rows if k not in timed), key=lambda k: (k in alike, rows[k]["high"]))
    text = rendered("windows", kind="open", alike=alike, following=following, measure=measure, rows=rows)
    return choice | {"not_told_apart": alike, "time_next": following, "text": text}


def _by_load(advised: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The window to take at each measured load; None where none can be chosen."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in advised:
        by = "concurrency" if row["rate_per_s"] is None else "rate"
        at = {"load": row["rate_per_s"] or row["concurrency"]}
        k = None if row["not_told_apart"] else row["recommended_k"]
        groups.setdefault((row.get("class"), row["arm"], by), []).append(at | {"k": k})
    for (class_, arm, by), windows in groups.items():
        windows.sort(key=lambda one: float(one["load"]))
        if len(windows) > 1:
            text = rendered("windows", kind="loads", windows=windows)
            yield {"class": class_, "arm": arm, "by": by, "windows": windows, "text": text}
