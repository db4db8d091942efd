"""The same plan measured twice, as before and after an upgrade: what has become faster or slower.

Pairing is by prompt: a prompt's mean in one run stands against its mean in the other, and Student's t over
prompts gives the interval. It knows how prompts and requests vary, not how two starts of one server do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from benchmark.analyse.cells import Cells, Place, sort_out
from benchmark.analyse.comparison import adjust, error_warning, log_gain, log_ratios, result
from benchmark.analyse.stats import Estimate, clustered_mean
from benchmark.analyse.values import request_values
from benchmark.errors import ResultsError
from benchmark.measure.journal import RawRun
from benchmark.metrics import COMPARED, Metric
from benchmark.plan import Arm, Plan

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
    plans = [raw.plan for raw in (old, new)]
    _refuse(plans[0], plans[1])
    runs = tuple(sort_out(plan, raw) for plan, raw in zip(plans, (old, new), strict=True))
    places = [place for place in runs[1].places if place in set(runs[0].places)]
    if not places:
        raise ResultsError("the runs share no load: run both with one --concurrency or --rate in common")
    arms = _shared_arms(*plans)
    of_arms = [_arm(runs, place, arm) for place, arm in product(places, arms)]
    speed_ups = list(_speed_ups(runs, places, arms))
    for rows in (of_arms, speed_ups):
        adjust(rows)
    found = {
        "schema": 1,
        "old": _identity(old),
        "new": _identity(new),
        "warnings": _warnings(plans, (old, new)),
        "arms": of_arms,
        "speed_ups": speed_ups,
    }
    return {**found, "slower": list(_slower(found))}


def _refuse(old: Plan, new: Plan) -> None:
    if old.model != new.model:
        raise ResultsError(
            f"the runs are of different models ({old.model}, {new.model}); compare runs of one"
        )
    contents = [{p.id: p for p in plan.prompts} for plan in (old, new)]
    if contents[0] != contents[1]:
        differing = [
            id_ for id_ in {**contents[0], **contents[1]} if contents[0].get(id_) != contents[1].get(id_)
        ]
        raise ResultsError(
            f"the runs have different prompts: {len(differing)} differ, {differing[0]!r} first; "
            "measure both with one plan"
        )


def _shared_arms(old: Plan, new: Plan) -> list[str]:
    known = {arm.name for arm in old.arms}
    shared = [arm.name for arm in new.arms if arm.name in known]
    if not shared:
        names = [", ".join(arm.name for arm in plan.arms) for plan in (old, new)]
        raise ResultsError(
            f"the runs share no arm (old: {names[0]}; new: {names[1]}); give them the same names"
        )
    return shared


def _arm(runs: Sequence[Cells], place: Place, arm: str) -> dict[str, Any]:
    """The arm's time per token, old over new."""
    before, after = (_by_prompt(cells.plan.arm(arm), cells, place) for cells in runs)
    records = [cells.of(cells.plan.arm(arm), place) for cells in runs]
    judged = not any((arm, place.class_) in cells.made_up for cells in runs)
    return {
        **place.to_dict(),
        "arm": arm,
        **_versus(_METRIC, before, after, judged=judged),
        "warning": error_warning(records[0], records[1], ("old run", "new run")),
    }


def _speed_ups(
    runs: Sequence[Cells], places: Sequence[Place], arms: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """The treatments' speed-ups, where both runs have one baseline."""
    baseline = runs[0].plan.baseline
    if runs[1].plan.baseline != baseline:
        return
    for place, name in product(places, arms):
        if name == baseline:
            continue
        gains, judged = [], True
        for cells in runs:
            treated = cells.plan.arm(name)
            judged &= cells.judged(treated, place)
            gains.append(log_ratios((cells.baseline, treated), cells.pairs(treated, place))[_METRIC.name])
        before, after = ({prompt: math.exp(_mean(values)) for prompt, values in of.items()} for of in gains)
        yield {
            **place.to_dict(),
            "baseline": baseline,
            "treatment": name,
            **_versus(_METRIC, before, after, higher_is_better=True, judged=judged),
        }


def _versus(
    metric: Metric,
    before: Mapping[str, float],
    after: Mapping[str, float],
    *,
    judged: bool,
    higher_is_better: bool = False,
) -> dict[str, Any]:
    """Prompts that both runs answered, new against old; no verdict on what an emulator made up (not `judged`)."""
    shared = [prompt for prompt in before if prompt in after]
    gains = {
        prompt: [
            math.log(after[prompt] / before[prompt])
            if higher_is_better
            else log_gain(metric, before[prompt], after[prompt])
        ]
        for prompt in shared
    }
    estimate: Estimate | None = clustered_mean(gains) if gains else None
    return {
        "metric": metric.name,
        "old": math.exp(_mean([math.log(before[prompt]) for prompt in shared])) if shared else None,
        "new": math.exp(_mean([math.log(after[prompt]) for prompt in shared])) if shared else None,
        **(result(estimate) if judged else {**result(None), "verdict": "not judged"}),
    }


def _by_prompt(arm: Arm, cells: Cells, place: Place) -> dict[str, float]:
    """Geometric mean of the metric over a prompt's answers."""
    found: dict[str, list[float]] = {}
    for record in cells.answered(arm, place):
        value = request_values(record, arm.max_tokens_per_step).get(_METRIC.name)
        if value:
            found.setdefault(record.prompt_id, []).append(math.log(value))
    return {prompt: math.exp(_mean(values)) for prompt, values in found.items()}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _identity(raw: RawRun) -> dict[str, Any]:
    first = raw.sittings[0]
    return {
        "run": first.run,
        "provenance": first.provenance,
        "started_unix_s": first.started_unix_s,
        "client": first.client,
    }


def _warnings(plans: Sequence[Plan], raws: Sequence[RawRun]) -> list[str]:
    found = []
    origins = [raw.sittings[0].provenance for raw in raws]
    if origins[0] != origins[1]:
        found.append(
            f"the old run is {origins[0]}, the new one {origins[1]}: they say nothing about each other"
        )
    if plans[0].baseline != plans[1].baseline:
        found.append(
            f"the baselines differ ({plans[0].baseline}, {plans[1].baseline}): no speed-ups to compare"
        )
    for name in _MAY_DIFFER:
        values = [getattr(plan, name) for plan in plans]
        if values[0] != values[1]:
            found.append(f"{name} differs: {values[0]} in the old run, {values[1]} in the new one")
    return found


def _slower(found: Mapping[str, Any]) -> Iterator[str]:
    for row in found["arms"]:
        if row["verdict"] == "slower":
            yield f"{_where(row)}: {row['arm']} is slower, {_times(row)}"
    for row in found["speed_ups"]:
        if row["verdict"] == "slower":
            yield f"{_where(row)}: the speed-up of {row['treatment']} is smaller, {_times(row)}"


def _where(row: Mapping[str, Any]) -> str:
    load = (
        f"{row['concurrency']} at a time"
        if row["rate_per_s"] is None
        else f"{row['rate_per_s']:g} requests/s"
    )
    return f"{row['class']}, {load}"


def _times(row: Mapping[str, Any]) -> str:
    doubt = "" if row["verdict_holm"] == "slower" else ", which of so many rows one may be by chance"
    return f"{row['ratio']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}] of the old one{doubt}"
