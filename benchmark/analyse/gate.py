"""Whether a run may pass after an earlier one: no arm slower per token, none failing more often.

A gate that lets pass what it could not judge is none: too few prompts, a missing arm or an unfinished run fail it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmark.analyse.cells import Place
from benchmark.analyse.two_runs import compare_runs
from benchmark.errors import ResultsError
from benchmark.measure.extent import extent
from benchmark.measure.journal import RawRun


def judge(baseline: RawRun, run: RawRun, *, slower_by: float, more_errors: float) -> dict[str, Any]:
    """What speaks against `run`, by the time per output token of each cell and the error rate of each arm.

    `slower_by`: a share of the time per token, tolerated although it is shown; `more_errors`: a share of requests.
    Returns {schema, baseline, run, cells: [{class, concurrency, rate_per_s, arm, old, new, ratio, ci_low, ci_high,
    verdict}], errors: [{arm, old, new}], regressions: [text]}.

    Raises ResultsError where the runs say nothing about each other.
    """
    origins = [raw.sittings[0].provenance for raw in (baseline, run)]
    if origins[0] != origins[1]:
        raise ResultsError(
            f"the baseline is {origins[0]}, the run {origins[1]}: they say nothing about each other; "
            "give two runs of one origin"
        )
    compared = compare_runs(baseline, run)
    errors = [
        {"arm": arm, "old": _error_rate(baseline, arm), "new": _error_rate(run, arm)}
        for arm in _arms(baseline)
        if arm in _arms(run)
    ]
    return {
        "schema": 1,
        "baseline": compared["old"],
        "run": compared["new"],
        "cells": compared["arms"],
        "errors": errors,
        "regressions": [
            *_incomplete(baseline, run),
            *_cells_against(compared["arms"], slower_by),
            *_errors_against(errors, more_errors),
        ],
    }


def _incomplete(baseline: RawRun, run: RawRun) -> Iterator[str]:
    size = extent(run.plan, run)
    if not size.complete:
        yield f"the run is not finished: {len(run.requests)} requests recorded; go on with the same command"
    for arm in _arms(baseline):
        if arm not in _arms(run):
            yield f"{arm}: is in the baseline, not in the run"


def _cells_against(cells: list[dict[str, Any]], slower_by: float) -> Iterator[str]:
    for cell in cells:
        where = f"{Place.of(cell)}, {cell['arm']}"
        if cell["verdict"] == "too few":
            yield f"{where}: {cell['n_prompts']} prompts answered in both runs are too few to judge"
        elif cell["verdict"] == "not judged":
            yield f"{where}: an emulator made up its acceptance, which cannot be judged; leave the class out (--classes)"
        elif cell["verdict"] == "slower" and 1 / cell["ratio"] - 1 > slower_by:
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


def _arms(raw: RawRun) -> list[str]:
    return [arm.name for arm in raw.plan.arms]


def _error_rate(raw: RawRun, arm: str) -> float:
    records = [record for record in raw.requests if record.phase == "measured" and record.arm == arm]
    return sum(record.error is not None for record in records) / len(records) if records else 1.0
