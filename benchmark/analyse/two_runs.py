"""The same plan measured twice, as before and after an upgrade: what has become faster or slower, and whether it may pass.

Pairing is by prompt: a prompt's mean in one run stands against its mean in the other, and Student's t over
prompts gives the interval. It knows how prompts and requests vary, not how blocks of time or two starts of one server do.
A gate must not let pass what it could not judge: too few prompts, a load that was not held, a missing arm or an unfinished run
fail it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from benchmark.analyse.cells import Cells, Place, sort_out
from benchmark.analyse.comparison import (
    Footing,
    adjust,
    error_warning,
    log_ratios,
    result,
    starts_differ,
)
from benchmark.analyse.sources import Source
from benchmark.analyse.values import logs_by_prompt
from benchmark.errors import ResultsError
from benchmark.measure import sense
from benchmark.measure.journal import RawRun, extent
from benchmark.metrics import COMPARED
from benchmark.plan import Plan
from core.words import count

_METRIC = COMPARED[0]
_MAY_DIFFER = ("max_tokens", "temperature", "extra_body", "ignore_eos", "simultaneous")


def compare_runs(old: RawRun, new: RawRun) -> dict[str, Any]:
    """Arm by arm and speed-up by speed-up, new against old.

    - `old`, `new`: {run, provenance, started_unix_s, client}; `warnings`: [text]
    - `arms`: [{class, concurrency, rate_per_s, arm, metric, old, new (geometric means), ratio (above 1: the new
      run is faster), ci_low, ci_high, n_pairs (prompts), verdict, p_value, p_holm, ..., warning}]
    - `speed_ups`: [{class, concurrency, rate_per_s, baseline, treatment, metric, old, new (speed-ups),
      ratio (above 1: it has grown), ...}]
    - `slower`: the rows that became slower beyond their interval, in words

    Raises ResultsError where the plans differ in model or prompts or share no arm or no load.
    """
    _refuse(old.plan, new.plan)
    runs = (sort_out(old), sort_out(new))
    places = [place for place in runs[1].places if place in set(runs[0].places)]
    if not places:
        raise ResultsError("the runs share no load: run both with one --concurrency or --rate in common")
    arms = [arm.name for arm in new.plan.arms if arm.name in old.plan.prices]
    if not arms:
        names = [", ".join(raw.plan.prices) for raw in (old, new)]
        raise ResultsError(
            f"the runs share no arm (old: {names[0]}; new: {names[1]}); give them the same names"
        )
    sensible = not any(sense.withholds(raw.sense) for raw in (old, new))
    of_arms = [_arm(runs, place, arm, sensible=sensible) for place, arm in product(places, arms)]
    before, after = old.plan.baselines, new.plan.baselines
    treatments = [arm for arm in arms if before[arm] == after[arm] != arm]
    speed_ups = [_speed_up(runs, place, arm, sensible=sensible) for place, arm in product(places, treatments)]
    for rows in (of_arms, speed_ups):
        adjust(rows)
    return {
        "schema": 1,
        "old": _identity(old),
        "new": _identity(new),
        "warnings": list(_warnings(old, new)),
        "arms": of_arms,
        "speed_ups": speed_ups,
        "slower": list(_in_words(of_arms, speed_ups)),
    }


def _refuse(old: Plan, new: Plan) -> None:
    if old.model != new.model:
        raise ResultsError(
            f"the runs are of different models ({old.model}, {new.model}); compare runs of one"
        )
    before, after = ({p.id: p for p in plan.prompts} for plan in (old, new))
    differing = [id_ for id_ in {**before, **after} if before.get(id_) != after.get(id_)]
    if differing:
        raise ResultsError(
            f"the runs have different prompts: {len(differing)} differ, {differing[0]!r} first; "
            "measure both with one plan"
        )


def _arm(runs: tuple[Cells, Cells], place: Place, name: str, *, sensible: bool) -> dict[str, Any]:
    """The arm's time per token, old over new; no verdict where a run's answers are not `sensible`."""
    sides = [(cells, cells.plan.arm(name)) for cells in runs]
    before, after = (
        _means(logs_by_prompt(cells.answered(arm, place), _METRIC.name, arm.max_tokens_per_step))
        for cells, arm in sides
    )
    old, new = (cells.of(arm, place) for cells, arm in sides)
    judged = sensible and not any((name, place.class_) in cells.made_up for cells in runs)
    return {
        **place.to_dict(),
        "arm": name,
        **_versus(before, after, judged=judged, footing=_footing(runs, place)),
        "warning": error_warning(old, new, ("old run", "new run")),
    }


def _speed_up(runs: tuple[Cells, Cells], place: Place, name: str, *, sensible: bool) -> dict[str, Any]:
    """What has become of a treatment's speed-up over the baseline, which is the same in both runs."""
    gains, judged = [], sensible
    for cells in runs:
        arms = (cells.baseline_of(cells.plan.arm(name)), cells.plan.arm(name))
        by_prompt: dict[str, list[float]] = {}
        for source, gain in log_ratios(arms, cells.pairs(arms, place), cells.source)[_METRIC.name]:
            by_prompt.setdefault(source.prompt, []).append(gain)
        gains.append(_means(by_prompt))
        judged = judged and cells.judged(arms, place)
    return {
        **place.to_dict(),
        "baseline": runs[0].plan.baselines[name],
        "treatment": name,
        **_versus(*gains, more_is_better=True, judged=judged, footing=_footing(runs, place)),
    }


def _versus(
    before: Mapping[str, float],
    after: Mapping[str, float],
    *,
    judged: bool,
    footing: Footing,
    more_is_better: bool = False,
) -> dict[str, Any]:
    """Prompts that both runs answered, new against old; no verdict on what an emulator made up (not `judged`)."""
    shared = {prompt: (old, after[prompt]) for prompt, old in before.items() if prompt in after}
    gains = [
        (Source("", prompt), math.log(new / old if more_is_better else old / new))
        for prompt, (old, new) in shared.items()
    ]
    old_mean, new_mean = (
        math.exp(_mean([math.log(values[which]) for values in shared.values()])) if shared else None
        for which in (0, 1)
    )
    found = result(gains, judged=judged, footing=footing)
    return {"metric": _METRIC.name, "old": old_mean, "new": new_mean, **found}


def _footing(runs: tuple[Cells, Cells], place: Place) -> Footing:
    """The weaker one of both runs."""
    both = [cells.footing(place.load) for cells in runs]
    return Footing(held=all(one.held for one in both), starts=min(one.starts for one in both))


def _means(logs: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Geometric means by prompt."""
    return {prompt: math.exp(_mean(values)) for prompt, values in logs.items()}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _identity(raw: RawRun) -> dict[str, Any]:
    first, names = raw.sittings[0], ("run", "provenance", "started_unix_s", "client")
    return {name: getattr(first, name) for name in names}


def _warnings(old: RawRun, new: RawRun) -> Iterator[str]:
    origins = [raw.sittings[0].provenance for raw in (old, new)]
    if origins[0] != origins[1]:
        yield f"the old run is {origins[0]}, the new one {origins[1]}: they say nothing about each other"
    yield from _without_sense(old, new)
    clients = [dict.fromkeys(sitting.client for sitting in raw.sittings) for raw in (old, new)]
    if clients[0].keys() != clients[1].keys():
        before, after = (" and ".join(each) for each in clients)
        yield (
            f"client {before} measured the old run, client {after} the new one: a difference may come from the client; "
            "measure both with one version"
        )
    if old.plan.baseline != new.plan.baseline:
        yield f"the baselines differ ({old.plan.baseline}, {new.plan.baseline}): no speed-ups to compare"
    for name in _MAY_DIFFER:
        before, after = getattr(old.plan, name), getattr(new.plan, name)
        if before != after:
            yield f"{name} differs: {before} in the old run, {after} in the new one"


def _without_sense(*runs: RawRun) -> Iterator[str]:
    """Which runs have answers that make no sense."""
    for raw in runs:
        if why := sense.withholds(raw.sense):
            yield f"run {raw.sittings[0].run} cannot be judged: {why}"


def _in_words(arms: Iterable[Mapping[str, Any]], speed_ups: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The rows that became slower."""
    named = [(f"{row['arm']} is slower", "fast", row) for row in arms]
    named += [(f"the speed-up of {row['treatment']} is smaller", "large", row) for row in speed_ups]
    for what, as_, row in named:
        if row["verdict"] == "slower":
            doubt = "" if row["verdict_holm"] == "slower" else ", which of so many rows one may be by chance"
            interval = f"{row['ratio']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
            where = " in these starts of the servers" if row["one_start"] else ""
            yield f"{Place.of(row)}: {what}{where}, {interval} times as {as_} as in the old run{doubt}"


def judge(baseline: RawRun, run: RawRun, *, slower_by: float, more_errors: float) -> dict[str, Any]:
    """What speaks against `run`, by the time per output token of each cell and the error rate of each arm.

    `slower_by`: a share of the time per token, tolerated although it is shown: only an interval that lies wholly beyond it speaks
    against the run; `more_errors`: a share of requests. Returns {schema, baseline, run, cells: [{class, concurrency, rate_per_s,
    arm, old, new, ratio, ci_low, ci_high, verdict}], errors: [{arm, old, new}], regressions: [text], warnings: [text], as
    `compare_runs` has them}.

    Raises ResultsError where the runs say nothing about each other.
    """
    origins = [raw.sittings[0].provenance for raw in (baseline, run)]
    if origins[0] != origins[1]:
        raise ResultsError(
            f"the baseline is {origins[0]}, the run {origins[1]}: they say nothing about each other; "
            "give two runs of one origin"
        )
    compared = compare_runs(baseline, run)
    arms = baseline.plan.prices
    errors = [
        {"arm": arm, "old": _error_rate(baseline, arm), "new": _error_rate(run, arm)}
        for arm in arms
        if arm in run.plan.prices
    ]
    regressions = [f"{arm}: is in the baseline, not in the run" for arm in arms if arm not in run.plan.prices]
    if not extent(run)[1]:
        done = f"{count(len(run.requests), 'request')} recorded"
        regressions.insert(0, f"the run is not finished: {done}; go on with the same command")
    without_sense = list(_without_sense(baseline, run))
    held = all(raw.held or raw.plan.replayed for raw in (baseline, run))
    return {
        "schema": 1,
        "baseline": compared["old"],
        "run": compared["new"],
        "cells": compared["arms"],
        "errors": errors,
        "regressions": [
            *without_sense,
            *regressions,
            *_cells_against([] if without_sense else compared["arms"], slower_by, held=held),
            *_errors_against(errors, more_errors),
        ],
        "warnings": [text for text in compared["warnings"] if text not in without_sense],
    }


def _cells_against(cells: list[dict[str, Any]], slower_by: float, *, held: bool) -> Iterator[str]:
    for cell in cells:
        where = f"{Place.of(cell)}, {cell['arm']}"
        if cell["verdict"] == "too few":
            yield f"{where}: {count(cell['n_prompts'], 'prompt')} answered in both runs are too few to judge"
        elif cell["verdict"] == "not judged":
            yield f"{where}: an emulator made up its acceptance, which cannot be judged; leave the class out (--classes)"
        elif not held and starts_differ(math.log(cell["ratio"])):
            yield (
                f"{where}: {cell['ratio']:.3f} times as fast, which cannot be judged: a load was not held while it was measured; "
                "measure both runs with this version"
            )
        elif cell["ci_high"] < 1 / (1 + slower_by):
            yield (
                f"{where}: {1 / cell['ratio'] - 1:.1%} more time per token "
                f"({cell['old'] * 1000:.2f} -> {cell['new'] * 1000:.2f} ms), shown by its interval; "
                f"{slower_by:.1%} is tolerated"
            )


def _errors_against(errors: list[dict[str, Any]], more_errors: float) -> Iterator[str]:
    for arm in errors:
        if arm["new"] - arm["old"] > more_errors:
            yield (
                f"{arm['arm']}: {arm['new']:.1%} of requests failed, {arm['old']:.1%} in the baseline; "
                f"{more_errors:.1%} more are tolerated"
            )


def _error_rate(raw: RawRun, arm: str) -> float:
    records = [record for record in raw.requests if record.phase == "measured" and record.arm == arm]
    return sum(record.error is not None for record in records) / len(records) if records else 1.0
