"""The gate: a run against an earlier run of one plan, for example after an upgrade.

Two runs are paired by prompt: the mean of a prompt in one run is compared with its mean in the other, and Student's t over prompts gives the
interval. It includes the variation of prompts and requests, but not of blocks of time or of starts of a server. A gate refuses a run that it
cannot judge: with too few prompts, a load that was not held, a missing arm, unfinished, or where the evidence that withholds a verdict of
a report speaks against an arm of either run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any

from trnspec.benchmark.analyse.cells import MeasuringConditions, RequestsByCell, cells_of
from trnspec.benchmark.analyse.evidence import FAILURES, evidence, withheld_for
from trnspec.benchmark.analyse.request_table import CellKey, Requests
from trnspec.benchmark.analyse.result import Evidence
from trnspec.benchmark.analyse.sentences import rendered
from trnspec.benchmark.analyse.speed_up import as_ratio, sharing
from trnspec.benchmark.analyse.stability import stability
from trnspec.benchmark.analyse.statistics import weighted_mean
from trnspec.benchmark.errors import ResultsError
from trnspec.benchmark.measure.raw_run import RawRun, extent
from trnspec.benchmark.metrics import COMPARED
from trnspec.benchmark.plan import Plan

_METRIC = COMPARED[0]
_MAY_DIFFER = ("max_tokens", "temperature", "extra_body", "ignore_eos")
_MORE_ERRORS = 0.01
_IDENTITY = ("run", "provenance", "started_unix_s", "client")
_EMPTY: dict[str, Any] = dict.fromkeys(("ratio", "ci_low", "ci_high", "p_value", "detectable_ratio"))
_EMPTY |= {"n_pairs": 0, "n_prompts": 0}


def _refuse(old: Plan, new: Plan) -> None:
    if old.model != new.model:
        models = f"{old.model}, {new.model}"
        raise ResultsError(f"the runs are of different models ({models}); compare runs of one")
    before, after = ({p.id: p for p in plan.prompts} for plan in (old, new))
    differing = [id_ for id_ in {**before, **after} if before.get(id_) != after.get(id_)]
    if differing:
        raise ResultsError(
            f"the runs have different prompts: {len(differing)} differ, {differing[0]!r} first; "
            "measure both with one plan"
        )


def _cells(old: RawRun, new: RawRun) -> list[dict[str, Any]]:
    """The time per token of each arm that both runs have, at each load: old divided by new, so above 1 the new run is faster. All intervals
    hold together. `why` is empty or says what withholds the verdict."""
    runs = (cells_of(old), cells_of(new))
    found = [evidence(cells, stability(cells), quality=None, engines={}) for cells in runs]
    known = set(runs[0].places)
    places = [place for place in runs[1].places if place in known]
    if not places:
        raise ResultsError("the runs share no load: run both with one --concurrency or --rate in common")
    arms = [arm.name for arm in new.plan.arms if arm.name in old.plan.prices]
    if not arms:
        names = [", ".join(raw.plan.prices) for raw in (old, new)]
        raise ResultsError(
            f"the runs share no arm (old: {names[0]}; new: {names[1]}); give them the same names"
        )
    shared = {where: _shared(runs, *where) for where in product(places, arms)}
    why = {
        (place, arm): _against(found, [raw.sessions[0].run for raw in (old, new)], place, arm)
        for place, arm in shared
    }
    gains = {
        where: weighted_mean([before - after for before, after in logs])
        for where, logs in shared.items()
        if logs and not why[where]
    }
    together = sharing(gains.values())
    rows = []
    for (place, arm), logs in shared.items():
        means = [math.exp(fmean(values)) for values in zip(*logs, strict=True)] or [None, None]
        gain = gains.get((place, arm))
        both = [cells.conditions(place.load) for cells in runs]
        weaker = MeasuringConditions(
            held=all(one.held for one in both), starts=min(one.starts for one in both)
        )
        row = as_ratio(gain and replace(gain, together=together), weaker)
        row |= {"verdict": "withheld"} if why[place, arm] else {}
        where = {**place.to_dict(), "arm": arm, "metric": _METRIC.name, "why": why[place, arm]}
        rows.append({**where, "old": means[0], "new": means[1], **_EMPTY, **row})
    return rows


def _against(found: Sequence[Sequence[Evidence]], runs: Sequence[str], place: CellKey, arm: str) -> str:
    """The evidence that withholds the verdict about an arm. More failures are judged by the limit of the gate instead."""
    rows = (
        (run, row)
        for run, evidence in zip(runs, found, strict=True)
        for row in withheld_for(evidence, arm, place.class_, place.load, _METRIC.name)
    )
    return "; ".join(
        f"run {run}: {'; '.join(filter(None, (row.says, row.remedy)))}"
        for run, row in rows
        if row.check != FAILURES
    )


def _shared(
    runs: tuple[RequestsByCell, RequestsByCell], place: CellKey, name: str
) -> list[tuple[float, float]]:
    """The logs of the metric in both runs, of each prompt that both answered."""
    before, after = (_by_prompt(cells.of(cells.plan.arm(name), place)) for cells in runs)
    return [(old, after[prompt]) for prompt, old in before.items() if prompt in after]


def _by_prompt(requests: Requests) -> dict[str, float]:
    """The mean log of the metric of each prompt."""
    logs: dict[str, list[float]] = {}
    for one, value in zip(requests.answers, requests.metrics[_METRIC.name].tolist(), strict=True):
        if value > 0:
            logs.setdefault(one.prompt_id, []).append(math.log(value))
    return {prompt: fmean(values) for prompt, values in logs.items()}


def gate_run(baseline: RawRun, run: RawRun, *, slower_by: float) -> dict[str, Any]:
    """Check `run` against `baseline`: the time per output token of each cell and the error rate of each arm.

    `slower_by` is the tolerated increase of the time per token: only if the whole interval is beyond it, it is a regression.
    A share of failed requests may increase by _MORE_ERRORS. Returns {schema, baseline, run: {run, provenance,
    started_unix_s, client}, cells: [{class, concurrency, rate_per_s, arm, metric, old, new (geometric means), ratio, ci_low, ci_high,
    n_pairs (prompts), verdict, why, p_value, ...}], errors: [{arm, old, new}], regressions: [text], warnings: [text]}.

    Raises ResultsError if the runs cannot be compared: different origins, models or prompts, no arm or no load in common.
    """
    origins = [raw.sessions[0].provenance for raw in (baseline, run)]
    if origins[0] != origins[1]:
        raise ResultsError(
            f"the baseline is {origins[0]}, the run {origins[1]}: they say nothing about each other; "
            "give two runs of one origin"
        )
    _refuse(baseline.plan, run.plan)
    cells = _cells(baseline, run)
    gone = [arm for arm in baseline.plan.prices if arm not in run.plan.prices]
    errors = [
        {"arm": arm, "old": _error_rate(baseline, arm), "new": _error_rate(run, arm)}
        for arm in baseline.plan.prices
        if arm not in gone
    ]
    facts = {"unfinished": not extent(run)[1], "recorded": len(run.requests), "gone": gone, "cells": cells}
    facts |= {"slower_by": slower_by, "errors": errors, "more_errors": _MORE_ERRORS}
    both = {"baseline": baseline, "run": run}
    clients = [list(dict.fromkeys(session.client for session in raw.sessions)) for raw in both.values()]
    settings = [(name, getattr(baseline.plan, name), getattr(run.plan, name)) for name in _MAY_DIFFER]
    return {
        "schema": 1,
        **{
            which: {name: getattr(raw.sessions[0], name) for name in _IDENTITY} for which, raw in both.items()
        },
        "cells": cells,
        "errors": errors,
        "regressions": rendered("two_runs", kind="against", **facts).splitlines(),
        "warnings": rendered("two_runs", kind="warnings", clients=clients, settings=settings).splitlines(),
    }


def _error_rate(raw: RawRun, arm: str) -> float:
    records = [record for record in raw.measured if record.arm == arm]
    return sum(record.error is not None for record in records) / len(records) if records else 1.0
