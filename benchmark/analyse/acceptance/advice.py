"""Which window to compile: speed-up of every smaller k, predicted from one run at the largest.

On an accelerator whose graphs are compiled for one k this replaces a sweep. Nothing is fitted to one acceptance
rate: each position's own share of accepted drafts goes in (`benchmark.analyse.acceptance.windows`).

- `origin`: "predicted"; `basis`: from what; `step_times`: whose
- `cells`: [{class, concurrency, rate_per_s, arm, source, per_position, largest_k, unused_drafts, n_prompts,
  plain_s, verify_s, draft_s, draft_cost (draft_s / plain_s), by_k, best_k, recommended_k, not_told_apart,
  text}], where `by_k` is [{k, tokens_per_step, tokens_per_step_low, tokens_per_step_high, step_s, tpot_s, speed_up, ci_low,
  ci_high, verdict}]
- `left_out` (of a run only): [{class, concurrency, rate_per_s, arm, why}], cells whose chunks are not steps
- `mixes`: [{concurrency, rate_per_s, arm, weights: {class: share}, by_k: [{k, speed_up, ci_low, ci_high}],
  best_k, recommended_k, not_told_apart, text}]
- `by_load` (of a run only, whose step times are known at two loads or more): [{class (null: the mixture), arm, by: "concurrency" |
  "rate", choices: [{k, low, high}], text}], which window is fastest from which load to which

`recommended_k` 0 is "keep plain decoding". One timed window fixes one point of the line through step times and not where it begins: the
windows from the smallest to the largest that is best for some beginning are `not_told_apart`, and then `recommended_k` is only the first assumption's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from benchmark.analyse.acceptance.samples import Subject, Wishes, subject_of
from benchmark.analyse.acceptance.windows import Sample, Window, mixture, predict, recommended
from benchmark.analyse.acceptance.yields import known_at
from benchmark.analyse.cells import sort_out
from benchmark.analyse.comparison import mapped_back, verdict
from benchmark.analyse.decision import interval
from benchmark.analyse.stats import Estimate
from benchmark.errors import ResultsError
from benchmark.measure import sense
from benchmark.measure.journal import RawRun
from benchmark.plan import Plan

_MOST_WINDOWS = 1001
"""Each is a sum over its positions."""
_ASSUMPTIONS, _FEWER, _MANY = 20, 4, 64
"""Steps in which the share of what drafting adds that is spent whatever the window goes from 0 to 1; fewer above so many windows."""
_LOADS = 100
"""Steps from the lowest to the highest load of a run at which windows are compared."""
_Row = tuple[Subject, Sequence[Window], Sequence[Sequence[Window]]]
"""With the windows as the first assumption has them, and as the others have them; none where two windows were timed."""
_ELSEWHERE = "as given, of another machine"


def advise(raw: RawRun, wishes: Wishes | None = None) -> dict[str, Any]:
    """Advice from a run, for each speculating arm, class and load of it.

    Raises ResultsError for wishes that cannot be met, and where the run cannot tell: no plain arm, no speculating
    arm, nothing known by position.
    """
    wishes, plan, run = wishes or Wishes(), raw.plan, raw.sittings[0]
    if why := sense.withholds(raw.sense):
        raise ResultsError(
            f"run {run.run}: {why}; nothing can be predicted from it, correct the server and measure again"
        )
    undrafted = [arm for arm in (plan.arm(plan.baseline), *plan.arms) if not arm.speculative_tokens]
    speculating = {arm.name: arm for arm in plan.arms if arm.speculative_tokens}
    if not undrafted or not speculating:
        raise ResultsError(f"run {run.run}: {_undeclared(plan, not undrafted)}")
    if wishes.timed_with is not None and wishes.timed_with not in speculating:
        raise ResultsError(
            f"--timed-with: {wishes.timed_with!r} is not a speculating arm of the run; "
            f"those are {', '.join(speculating)}"
        )
    cells = sort_out(raw)
    subjects, left_out = [], []
    for place, arm in product(cells.places, speculating.values()):
        plain = own if (own := cells.baseline_of(arm)) in undrafted else undrafted[0]
        if found := subject_of(cells, plain, arm, place, wishes):
            subjects.append(found)
        known = known_at(cells, arm, place)
        if known.caution and not known.positions:
            left_out.append({**place.to_dict(), "arm": arm.name, "why": known.caution})
    if not subjects:
        why = "; ".join(dict.fromkeys(one["why"] for one in left_out)) or (
            "the server must send usage with every chunk, or statistics of speculation"
        )
        raise ResultsError(
            f"run {run.run}: no cell tells how many tokens its steps yield, position by position; {why}"
        )
    basis = f"run {run.run} of {plan.experiment} ({plan.model}), {run.provenance}"
    if any(prompt.made_up for prompt in plan.prompts):
        basis += ", with made-up texts, whose acceptance is not that of your traffic"
    times = "the run's own" if wishes.step_times is None else _ELSEWHERE
    said = _advice(subjects, wishes, basis, times)
    return {
        **said,
        "by_load": list(_by_load([] if wishes.step_times else [*said["cells"], *said["mixes"]])),
        "left_out": left_out,
    }


def _by_load(advised: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Between the lowest and the highest load of a run, with the logarithms of load and speed-up on lines between two measured
    loads. Where step times do not single out a window, only the largest is told from plain decoding."""
    groups: dict[tuple[Any, ...], dict[float, Mapping[str, Any]]] = {}
    for one in advised:
        by = "concurrency" if one["rate_per_s"] is None else "rate"
        load = float(one["rate_per_s"] or one["concurrency"] or 0)  # a replay has one load, without a size
        groups.setdefault((one.get("class"), one["arm"], by), {})[load] = one
    for (class_, arm, by), at in groups.items():
        loads = sorted(at)
        if len(loads) < 2:
            continue
        alone = any(one["not_told_apart"] for one in at.values())
        lines = {
            load: {row["k"]: math.log(row["speed_up"]) for row in one["by_k"][-1:] if alone}
            or {row["k"]: math.log(row["speed_up"]) for row in one["by_k"]}
            for load, one in at.items()
        }
        choices: list[dict[str, float]] = []
        for load in _between(loads[0], loads[-1], whole=by == "concurrency"):
            right = next(one for one in loads[1:] if load <= one)
            left = max(one for one in loads if one < right)
            share = math.log(load / left) / math.log(right / left)
            k = recommended({k: math.exp(v + share * (lines[right][k] - v)) for k, v in lines[left].items()})
            if choices and choices[-1]["k"] == k:
                choices[-1]["high"] = load
            else:
                choices.append({"k": k, "low": load, "high": load})
        unit = "requests at once" if by == "concurrency" else "requests/s"
        names = [f"window {one['k']:g}" if one["k"] else "plain decoding" for one in choices]
        told = [f"{name} {_from_to(**one)} {unit}" for name, one in zip(names, choices, strict=True)]
        where = [f"{load:.3g}" for load, one in sorted(at.items()) if one["not_told_apart"]]
        largest = f"window {max(next(iter(lines.values())))} alone is compared with plain decoding, because windows are not told apart"
        text = f"predicted between measured loads, without intervals: {', '.join(told)}"
        text += f"; {largest} at {', '.join(where)} {unit}" if alone else ""
        yield {"class": class_, "arm": arm, "by": by, "choices": choices, "text": text}


def _from_to(k: float, low: float, high: float) -> str:
    """Of a choice, its loads."""
    first, last = f"{low:.3g}", f"{high:.3g}"
    return f"at {first}" if first == last else f"from {first} to {last}"


def _between(low: float, high: float, *, whole: bool) -> list[float]:
    steps = [low * (high / low) ** (step / _LOADS) for step in range(_LOADS + 1)]
    return list(dict.fromkeys(map(float, map(round, steps)))) if whole else steps


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
    return _advice(subjects, wishes, basis, _ELSEWHERE)


def _advice(subjects: Sequence[Subject], wishes: Wishes, basis: str, times: str) -> dict[str, Any]:
    rows = [
        (
            subject,
            _windows(subject, wishes.k_max),
            _under_other_assumptions(subject, wishes) if subject.timed is not None else [],
        )
        for subject in subjects
    ]
    return {
        "schema": 1,
        "origin": "predicted",
        "basis": basis,
        "step_times": times,
        "cells": [_cell(*row) for row in rows],
        "mixes": _mixes(rows, wishes.mix),
    }


def _under_other_assumptions(subject: Subject, wishes: Wishes) -> list[list[Window]]:
    steps = _ASSUMPTIONS if (wishes.k_max or subject.largest_k) <= _MANY else _FEWER
    return [_windows(subject.with_fixed_part(part / steps), wishes.k_max) for part in range(1, steps + 1)]


def _windows(subject: Subject, k_max: int | None) -> list[Window]:
    if k_max is not None and k_max > subject.largest_k:
        raise ResultsError(
            f"--k-max: {k_max} is beyond k = {subject.largest_k}, the largest that is known of "
            f"{subject.where['class']}; what later positions would accept is not to be guessed"
        )
    if (largest := k_max or subject.largest_k) > _MOST_WINDOWS:
        raise ResultsError(
            f"{subject.where['class']}: {largest} windows are more than {_MOST_WINDOWS}; ask for fewer with --k-max"
        )
    try:
        return [predict(subject.samples, k, unused=subject.unused) for k in range(1, largest + 1)]
    except ValueError as error:
        raise ResultsError(f"{subject.where['class']}: {error}; a step must take time") from error


def _cell(subject: Subject, windows: Sequence[Window], others: Sequence[Sequence[Window]]) -> dict[str, Any]:
    times = subject.times()
    by_k = [
        {
            "k": window.k,
            "tokens_per_step": window.tokens_per_step.mean,
            "tokens_per_step_low": window.tokens_per_step.low,
            "tokens_per_step_high": window.tokens_per_step.high,
            "step_s": times.step_s(window.k),
            "tpot_s": times.plain_s / math.exp(window.log_speed_up.mean),
            **_ratio(window.log_speed_up),
            "verdict": verdict(window.log_speed_up),
        }
        for window in windows
    ]
    return {
        **subject.where,
        "source": subject.source,
        "per_position": list(subject.per_position),
        "largest_k": subject.largest_k,
        "unused_drafts": subject.unused,
        "n_prompts": len(subject.samples) if len(subject.samples) > 1 else None,
        "plain_s": times.plain_s,
        "verify_s": times.verify_s,
        "draft_s": times.draft_s,
        "draft_cost": times.draft_s / times.plain_s,
        "by_k": by_k,
        **_choice(
            by_k,
            [{one.k: math.exp(one.log_speed_up.mean) for one in other} for other in others],
            subject.timed,
        ),
    }


def _mixes(rows: Sequence[_Row], mix: Mapping[str, float] | None) -> list[dict[str, Any]]:
    """For each arm and load the classes of which it is known; none where one class is all there is."""
    known = {subject.where["class"] for subject, *_ in rows}
    for class_ in mix or ():
        if class_ not in known:
            raise ResultsError(f"--mix: nothing is known of {class_!r}; known are {', '.join(sorted(known))}")
    groups: dict[tuple[Any, ...], list[_Row]] = {}
    for row in rows:
        where = row[0].where
        groups.setdefault((where["concurrency"], where["rate_per_s"], where["arm"]), []).append(row)
    return [_mix(members, mix) for members in groups.values() if len(members) > 1 or mix]


def _mix(members: Sequence[_Row], mix: Mapping[str, float] | None) -> dict[str, Any]:
    classes = [subject.where["class"] for subject, *_ in members]
    shares = [1.0 if mix is None else mix.get(class_, 0.0) for class_ in classes]
    total = math.fsum(shares)
    if not total > 0:
        raise ResultsError(f"--mix: no class of {', '.join(classes)} has a share above 0")
    weights = [share / total for share in shares]
    plain_s = [subject.times().plain_s for subject, *_ in members]

    def mixed(windows: Sequence[Sequence[Window]]) -> dict[int, Estimate]:
        gains = {
            together[0].k: [window.log_speed_up for window in together]
            for together in zip(*windows, strict=False)
        }
        return {
            k: mixture([part for part in zip(weights, plain_s, of_k, strict=True) if part[0]])
            for k, of_k in gains.items()
        }

    by_k = [{"k": k, **_ratio(gain)} for k, gain in mixed([windows for _, windows, _ in members]).items()]
    others = [
        {k: math.exp(gain.mean) for k, gain in mixed(windows).items()}
        for windows in zip(*(others for *_, others in members), strict=False)
    ]
    timed = max((subject.timed for subject, *_ in members if subject.timed is not None), default=None)
    where = {name: value for name, value in members[0][0].where.items() if name != "class"}
    chosen = _choice(by_k, others, timed)
    return {**where, "weights": dict(zip(classes, weights, strict=True)), "by_k": by_k, **chosen}


def _ratio(estimate: Estimate) -> dict[str, float | None]:
    """Speed-up with its interval."""
    return {
        "speed_up": math.exp(estimate.mean),
        "ci_low": mapped_back(estimate.low),
        "ci_high": mapped_back(estimate.high),
    }


def _choice(
    by_k: Sequence[Mapping[str, Any]], others: Sequence[Mapping[int, float]], timed: int | None
) -> dict[str, Any]:
    """The fastest window, the one to take, and why in words; never one alone that the step times do not single out."""
    rows = {row["k"]: row for row in by_k}
    best = max(by_k, key=lambda row: float(row["speed_up"]))
    chosen = recommended({k: row["speed_up"] for k, row in rows.items()})
    found = {chosen, *(recommended(speed_ups) for speed_ups in others)}
    # Between two that are best for some assumption lie those that are nearly so, and perhaps best for one that was not tried.
    alike = (
        [k for k in (0, *rows) if k in found or 0 < min(found - {0}, default=0) <= k <= max(found)]
        if len(found) > 1
        else []
    )
    said = {"best_k": best["k"], "recommended_k": chosen, "not_told_apart": alike}
    if alike:
        second = next((k for k in alike if k and k != timed), 1)
        names = "plain decoding and windows " if 0 in alike else "windows "
        drafting = [k for k in alike if k]
        spans = {k: sorted([rows[k]["speed_up"], *(one[k] for one in others)]) for k in drafting}
        gains = ", ".join(f"window {k} {_span(spans[k][0], spans[k][-1])}" for k in drafting)
        text = (
            f"{names}{drafting[0]} to {drafting[-1]} are not told apart: only the step of window {timed} is known, so what drafting "
            f"costs at all is not known apart from what each draft costs; time a second window, for example {second} "
            f"(--timed-with); times as fast as plain decoding: {gains}"
        )
        return {**said, "text": text}
    if not chosen:
        text = f"keep plain decoding: the best window, {best['k']}, is {best['speed_up']:.2f} times as fast{interval(best['ci_low'], best['ci_high'])}"
    else:
        row = rows[chosen]
        text = f"use window {chosen}: {row['speed_up']:.2f} times faster than plain decoding{interval(row['ci_low'], row['ci_high'])}"
        if best["k"] != chosen:
            text += f"; window {best['k']} would give {best['speed_up']:.2f}, within 1 %"
        if row["ci_low"] is not None and row["ci_low"] <= 1:
            text += "; no clear difference"
    return {**said, "text": text}


def _span(low: float, high: float) -> str:
    return f"{low:.2f}" if high - low < 0.005 else f"{low:.2f} to {high:.2f}"
