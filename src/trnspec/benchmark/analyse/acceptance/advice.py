"""Which window to compile: the speed-up of every smaller k, predicted from one run with the largest.

On an accelerator whose graphs are compiled for one k this replaces a sweep. The prediction does not assume one acceptance
rate; it uses the share of accepted drafts at each position (`trnspec.benchmark.analyse.acceptance.windows`).

- `origin`: "predicted"; `basis`: from what; `step_times`: whose
- `cells`: [{class, concurrency, rate_per_s, arm, source, per_position, largest_k, unused_drafts, n_prompts,
  plain_s, timed_s ({window: seconds of a step}), draft_s (mean price of a draft from window 1 to the largest), verify_s (the step of
  window 1 less that), draft_cost (draft_s / plain_s), by_k, best_k, recommended_k, not_told_apart, time_next, notes, text}], where
  `by_k` is [{k, tokens_per_step, tokens_per_step_low, tokens_per_step_high, step_s, tpot_s, speed_up, ci_low, ci_high, low, high,
  verdict}]
- `skipped` (of a run only): [{class, concurrency, rate_per_s, arm, why}], cells whose chunks are not steps
- `mixes`: [{concurrency, rate_per_s, arm, weights: {class: share}, by_k: [{k, speed_up, ci_low, ci_high, low, high, verdict}],
  best_k, recommended_k, not_told_apart, time_next, text}]
- `notes`: step times that were not used or that cannot be right, a sentence each
- `by_load` (of a run only, whose step times are known at two loads or more): [{class (null: the mixture), arm, by: "concurrency" |
  "rate", choices: [{k, low, high}], text}], which window is fastest from which load to which

`recommended_k` 0 means "keep plain decoding". Step times are exact at the windows that were timed, and interpolated between them. `ci_low`
and `ci_high` span the interval over prompts and, for a window that was not timed, other assumptions about the cost of drafts
(`windows.SHAPES`). They are null if there are no prompts for an interval; `low` and `high` then still span the assumptions. If
`recommended_k` is more than 5 % slower than another window under some assumption, the windows that may be best are in `not_told_apart`,
and `time_next` is the window whose step to time next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from trnspec.benchmark.analyse.acceptance import windows as of_windows
from trnspec.benchmark.analyse.acceptance.windows import (
    AdviceOptions,
    PriceShape,
    PromptSample,
    Subject,
    Window,
)
from trnspec.benchmark.analyse.acceptance.yields import step_yield_at
from trnspec.benchmark.analyse.requests import Cells, cells_of
from trnspec.benchmark.analyse.sentences import rendered
from trnspec.benchmark.analyse.speed_up import verdict
from trnspec.benchmark.analyse.statistics import Estimate
from trnspec.benchmark.errors import ResultsError
from trnspec.benchmark.measure import sanity_check
from trnspec.benchmark.plan import Plan, PlannedArm

_MAX_WINDOWS = 1001
"""A limit for the time: each window is a sum over its positions."""
_MANY_WINDOWS = 64
"""With more windows than this, fewer shapes are tried."""
_MIN_GAIN = 1.05
"""A window that is faster by a smaller factor is not worth another measurement."""
_LOADS = 100
"""The number of steps from the lowest to the highest load of a run at which windows are compared."""
_Predicted = tuple[Subject, Sequence[Window], Sequence[Sequence[Window]]]
"""A subject, its windows with the default shape, and its windows with each other shape (none if every window was timed)."""
_OTHER_MACHINE = "as given, of another machine"


def advise(cells: Cells, options: AdviceOptions | None = None) -> dict[str, Any]:
    """Advice from a run, for each speculating arm, class and load of it.

    Raises ResultsError for options that are not possible with this run, and for a run without a plain arm, a speculating arm, or
    acceptance by position.
    """
    options, plan, run = options or AdviceOptions(), cells.plan, cells.raw.sessions[0]
    if why := sanity_check.withholds(cells.raw.sense):
        raise ResultsError(
            f"run {run.run}: {why}; nothing can be predicted from it, correct the server and measure again"
        )
    undrafted = [arm for arm in (plan.arm(plan.baseline), *plan.arms) if not arm.speculative_tokens]
    speculating = {arm.name: arm for arm in plan.arms if arm.speculative_tokens}
    if not undrafted or not speculating:
        raise ResultsError(f"run {run.run}: {_undeclared(plan, not undrafted)}")
    timed = list(_timed(cells, speculating, options))
    subjects, skipped = [], []
    for place, arm in product(cells.places, speculating.values()):
        plain = own if (own := cells.baseline_of(arm)) in undrafted else undrafted[0]
        if found := of_windows.subject_of(cells, plain, arm, place, options, timed):
            subjects.append(found)
        known = step_yield_at(cells, arm, place)
        if known.caution and not known.positions:
            skipped.append({**place.to_dict(), "arm": arm.name, "why": known.caution})
    if not subjects:
        why = "; ".join(dict.fromkeys(cell["why"] for cell in skipped)) or (
            "the server must send usage with every chunk, or statistics of speculation"
        )
        raise ResultsError(
            f"run {run.run}: no cell tells how many tokens its steps yield, position by position; {why}"
        )
    basis = f"run {run.run} of {plan.experiment} ({plan.model}), {run.provenance}"
    times = "the run's own" if options.step_times is None else _OTHER_MACHINE
    advice = _advice(subjects, options, basis, times)
    return {
        **advice,
        "by_load": list(windows_by_load([] if options.step_times else [*advice["cells"], *advice["mixes"]])),
        "left_out": skipped,
        "notes": [*advice["notes"], *_not_used(speculating, options)],
    }


def _timed(
    cells: Cells, speculating: Mapping[str, PlannedArm], options: AdviceOptions
) -> Iterator[of_windows.TimedArm]:
    """Arms with other windows, of this run and of other runs."""
    for name in options.timed_with:
        if name not in speculating:
            raise ResultsError(
                f"--timed-with: {name!r} is not a speculating arm of the run; those are {', '.join(speculating)}; for another run "
                "give its folder, or FOLDER:ARM"
            )
        yield of_windows.TimedArm(cells, speculating[name])
    for raw, wanted in options.timed_in:
        run, others = raw.sessions[0].run, cells_of(raw)
        drafting = [arm for arm in raw.plan.arms if arm.speculative_tokens and wanted in (None, arm.name)]
        if not drafting:
            known = ", ".join(arm.name for arm in raw.plan.arms)
            raise ResultsError(
                f"--timed-with: {'no arm' if wanted is None else repr(wanted) + ' is not an arm that'} speculates by the plan of run {run}, "
                f"whose arms are {known}; give the folder of a run with such an arm"
            )
        yield from (of_windows.TimedArm(others, arm, run) for arm in drafting)


def _not_used(speculating: Mapping[str, PlannedArm], options: AdviceOptions) -> Iterator[str]:
    """Notes about step times of the run that are not used. Arms may have another draft, so their steps are used only on request."""
    every = {name: arm.speculative_tokens for name, arm in speculating.items()}
    rest = {name: k for name, k in every.items() if name not in options.timed_with}
    if options.step_times or (len({*every.values()}) > 1 and rest):
        windows, replaced = (every, True) if options.step_times else (rest, False)
        yield rendered("windows", kind="not used", windows=windows, replaced=replaced)


def _undeclared(plan: Plan, plain: bool) -> str:
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


def forecast(
    acceptance: Mapping[str, Sequence[float]], options: AdviceOptions, *, basis: str
) -> dict[str, Any]:
    """Advice without a run, from the survival by position of each class and the step times of `options`.

    Without prompts there are no intervals over prompts.
    """
    if options.step_times is None:
        raise ResultsError("a forecast needs step times")
    unused = options.unused_drafts or 0
    subjects = [
        Subject(
            where={"class": class_, "concurrency": None, "rate_per_s": None, "arm": None},
            samples=[PromptSample(survival=survival, times=options.step_times)],
            unused=unused,
            largest_k=len(survival) + unused,
            source="the file",
            per_position=survival,
        )
        for class_, survival in acceptance.items()
    ]
    return _advice(subjects, options, basis, _OTHER_MACHINE)


def _advice(subjects: Sequence[Subject], options: AdviceOptions, basis: str, times: str) -> dict[str, Any]:
    largest = max((options.k_max or subject.largest_k for subject in subjects), default=0)
    shapes = of_windows.SHAPES if largest <= _MANY_WINDOWS else of_windows.FEW_SHAPES
    rows = [
        (subject, _windows(subject, options.k_max), _in_other_shapes(subject, options, shapes))
        for subject in subjects
    ]
    measure = "add its step to --step-times" if options.step_times else "--timed-with"
    return {
        "schema": 1,
        "origin": "predicted",
        "basis": basis,
        "step_times": times,
        "cells": [_cell(*row, measure) for row in rows],
        "mixes": _mixes(rows, options.mix, measure),
        "notes": [
            rendered("windows", kind="short", k=k, seconds=seconds, plain_s=options.step_times.plain_s)
            for k, seconds in (options.step_times.timed.items() if options.step_times else ())
            if options.step_times and seconds < options.step_times.plain_s
        ],
    }


def _windows(subject: Subject, k_max: int | None) -> list[Window]:
    class_, largest = subject.where["class"], k_max or subject.largest_k
    if largest > subject.largest_k:
        raise ResultsError(
            f"--k-max: {k_max} is beyond k = {subject.largest_k}, the largest that is known of "
            f"{class_}; what later positions would accept is not to be guessed"
        )
    if largest > _MAX_WINDOWS:
        raise ResultsError(
            f"{class_}: {largest} windows are more than {_MAX_WINDOWS}; ask for fewer with --k-max"
        )
    return [of_windows.predict(subject, k) for k in range(1, largest + 1)]


def _in_other_shapes(
    subject: Subject, options: AdviceOptions, shapes: Sequence[PriceShape]
) -> list[Sequence[Window]]:
    largest, timed = options.k_max or subject.largest_k, subject.timed
    if all(k in timed for k in range(1, largest + 1)):
        return []
    if all(tuple(sample.times.timed) == timed for sample in subject.samples):
        # With one timed window powers below 1 are not used. The fixed share matters only below the smallest timed window.
        shapes = [
            PriceShape(
                fixed=0.0 if len(timed) > 1 and timed[0] == 1 else shape.fixed,
                power=max(shape.power or 1.0, 1.0) if len(timed) == 1 else shape.power,
            )
            for shape in shapes
        ]
    predicted = {shape: _windows(subject.shaped(shape), options.k_max) for shape in dict.fromkeys(shapes)}
    return [predicted[shape] for shape in shapes]


def _cell(
    subject: Subject,
    windows: Sequence[Window],
    others: Sequence[Sequence[Window]],
    measure: str,
) -> dict[str, Any]:
    plain_s, first_s, last_s = (subject.step_s(k) for k in (0, 1, subject.largest_k))
    draft_s = (last_s - first_s) / (subject.largest_k - 1) if subject.largest_k > 1 else first_s - plain_s
    known = {
        window.k: {
            "tokens_per_step": window.tokens_per_step.mean,
            "tokens_per_step_low": window.tokens_per_step.low,
            "tokens_per_step_high": window.tokens_per_step.high,
            "step_s": subject.step_s(window.k),
            "tpot_s": plain_s / math.exp(window.log_speed_up.mean),
        }
        for window in windows
    }
    gains, *other_gains = ({window.k: window.log_speed_up for window in own} for own in (windows, *others))
    return {
        **subject.where,
        "source": subject.source,
        "per_position": list(subject.per_position),
        "largest_k": subject.largest_k,
        "unused_drafts": subject.unused,
        "n_prompts": len(subject.samples) if len(subject.samples) > 1 else None,
        "plain_s": plain_s,
        "timed_s": {k: subject.step_s(k) for k in subject.timed},
        "verify_s": first_s - draft_s,
        "draft_s": draft_s,
        "draft_cost": draft_s / plain_s,
        "notes": list(subject.notes),
        **_choice(gains, other_gains, subject.timed, measure, known),
    }


def _mixes(rows: Sequence[_Predicted], mix: Mapping[str, float] | None, measure: str) -> list[dict[str, Any]]:
    """The mix for each arm and load, of its known classes; none if there is only one class."""
    known = {subject.where["class"] for subject, *_ in rows}
    if unknown := [class_ for class_ in mix or () if class_ not in known]:
        raise ResultsError(f"--mix: nothing is known of {unknown[0]!r}; known are {', '.join(sorted(known))}")
    groups: dict[tuple[Any, ...], list[_Predicted]] = {}
    for row in rows:
        where = row[0].where
        groups.setdefault((where["concurrency"], where["rate_per_s"], where["arm"]), []).append(row)
    return [_mix(members, mix, measure) for members in groups.values() if len(members) > 1 or mix]


def _mix(members: Sequence[_Predicted], mix: Mapping[str, float] | None, measure: str) -> dict[str, Any]:
    subjects = [subject for subject, *_ in members]
    classes = [subject.where["class"] for subject in subjects]
    shares = [1.0 if mix is None else mix.get(class_, 0.0) for class_ in classes]
    total = math.fsum(shares)
    if not total > 0:
        raise ResultsError(f"--mix: no class of {', '.join(classes)} has a share above 0")
    weights = [share / total for share in shares]

    def mixed(windows: Sequence[Sequence[Window]]) -> dict[int, Estimate]:
        gains = {}
        for together in zip(*windows, strict=False):
            parts = zip(weights, subjects, together, strict=True)
            known = [(weight, subject.plain_s, one.log_speed_up) for weight, subject, one in parts if weight]
            gains[together[0].k] = of_windows.mixture(known)
        return gains

    # A class whose windows were all timed has one shape, which is combined with each shape of the other classes.
    others = [
        mixed([others[shape] if others else windows for _, windows, others in members])
        for shape in range(max(len(others) for *_, others in members))
    ]
    gains = mixed([windows for _, windows, _ in members])
    timed = [k for k in subjects[0].timed if all(k in subject.timed for subject in subjects)]
    return {
        **{name: value for name, value in subjects[0].where.items() if name != "class"},
        "weights": dict(zip(classes, weights, strict=True)),
        **_choice(gains, others, timed, measure),
    }


def _range(estimate: Estimate, others: Sequence[Estimate]) -> dict[str, Any]:
    """The speed-up, its interval over prompts and over all shapes, and the verdict if all shapes have the same."""
    every = (estimate, *others)
    low = math.exp(min(known.mean if known.low is None else known.low for known in every))
    high = math.exp(max(known.mean if known.high is None else known.high for known in every))
    verdicts = {verdict(known) for known in every}
    return {
        "speed_up": math.exp(estimate.mean),
        "ci_low": None if estimate.low is None else low,
        "ci_high": None if estimate.high is None else high,
        "low": low,
        "high": high,
        "verdict": verdicts.pop() if len(verdicts) == 1 else "cannot tell",
    }


def _choice(
    gains: Mapping[int, Estimate],
    others: Sequence[Mapping[int, Estimate]],
    timed: Sequence[int],
    measure: str,
    known: Mapping[int, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The rows by window, the fastest window, the recommended window, and the reason in words. If the step times are not enough to choose
    one window, the text says so."""
    rows = {
        k: {"k": k, **(known or {}).get(k, {}), **_range(gain, [other[k] for other in others])}
        for k, gain in gains.items()
    }
    best = max(rows.values(), key=lambda row: float(row["speed_up"]))
    chosen = of_windows.recommended({k: row["speed_up"] for k, row in rows.items()})
    choice: dict[str, Any] = {"by_k": [*rows.values()], "best_k": best["k"], "recommended_k": chosen}
    speed_ups = [{0: 1.0} | {k: math.exp(gain.mean) for k, gain in other.items()} for other in others]
    wins = {of_windows.recommended(own) for own in speed_ups if max(own.values()) > _MIN_GAIN * own[chosen]}
    if not wins:
        text = rendered("windows", kind="choice", chosen=chosen, row=rows.get(chosen), best=best)
        return choice | {"not_told_apart": [], "time_next": None, "text": text}
    first, last = min({chosen, *wins} - {0}, default=0), max(chosen, *wins)
    # Windows between two that are best for some shape are nearly as good, and may be best for a shape that was not tried.
    alike = [k for k in (0, *rows) if k in {chosen, *wins} or 0 < first <= k <= last]
    # Time the window with the largest possible gain next: that confirms it or rules it out.
    following = max((k for k in rows if k not in timed), key=lambda k: (k in alike, rows[k]["high"]))
    text = rendered("windows", kind="open", alike=alike, following=following, measure=measure, rows=rows)
    return choice | {"not_told_apart": alike, "time_next": following, "text": text}


def windows_by_load(advised: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The fastest window by load, from the lowest to the highest load of a run. The log speed-up is interpolated linearly in log load between
    measured loads. If the step times are not enough to choose a window, only the largest window is compared with plain decoding."""
    groups: dict[tuple[Any, ...], dict[float, Mapping[str, Any]]] = {}
    for row in advised:
        by = "concurrency" if row["rate_per_s"] is None else "rate"
        load = float(row["rate_per_s"] or row["concurrency"])
        groups.setdefault((row.get("class"), row["arm"], by), {})[load] = row
    for (class_, arm, by), at in groups.items():
        at = dict(sorted(at.items()))
        if len(at) < 2:
            continue
        open_at = [load for load, row in at.items() if row["not_told_apart"]]
        lines = {
            load: {
                window["k"]: math.log(window["speed_up"]) for window in row["by_k"][-1 if open_at else 0 :]
            }
            for load, row in at.items()
        }
        choices: list[dict[str, float]] = []
        low, high = min(at), max(at)
        loads = [low * (high / low) ** (step / _LOADS) for step in range(_LOADS + 1)]
        if by == "concurrency":
            loads = list(dict.fromkeys(map(float, map(round, loads))))
        for load in loads:
            right = next(other for other in list(at)[1:] if load <= other)
            left = max(other for other in at if other < right)
            share = math.log(load / left) / math.log(right / left)
            k = of_windows.recommended(
                {k: math.exp(v + share * (lines[right][k] - v)) for k, v in lines[left].items()}
            )
            if choices and choices[-1]["k"] == k:
                choices[-1]["high"] = load
            else:
                choices.append({"k": k, "low": load, "high": load})
        known = {"unit": "requests at once" if by == "concurrency" else "requests/s", "open_at": open_at}
        text = rendered("windows", kind="loads", choices=choices, largest=max(lines[min(at)]), **known)
        yield {"class": class_, "arm": arm, "by": by, "choices": choices, "text": text}
