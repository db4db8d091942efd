"""The list of runs, one row for each, and the comparison of two runs of one plan, for example before and after an upgrade.

Two runs are paired by prompt: the mean of a prompt in one run is compared with its mean in the other, and Student's t over prompts gives the
interval. It includes the variation of prompts and requests, but not of blocks of time or of starts of a server. A gate refuses a run that it
cannot judge: with too few prompts, a load that was not held, a missing arm, or unfinished.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from itertools import combinations, product
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

from pydantic import AfterValidator, AliasPath, BaseModel, ConfigDict, Field, ValidationError

from benchmark.analyse.cells import Cells, Footing, Place, cells_of
from benchmark.analyse.comparison import adjust, error_warning, log_ratios, logs_at, result, starts_differ
from benchmark.analyse.sentences import rendered
from benchmark.analyse.stats import Source, mean
from benchmark.analyse.summary import FILE_NAME
from benchmark.errors import ResultsError
from benchmark.measure import journal, sanity_check
from benchmark.measure.client import one_line
from benchmark.measure.journal import RawRun, extent
from benchmark.metrics import COMPARED
from benchmark.plan import Load, Plan
from core.files import text_of

_METRIC = COMPARED[0]
_MAY_DIFFER = ("max_tokens", "temperature", "extra_body", "ignore_eos", "simultaneous")
_IDENTITY = ("run", "provenance", "started_unix_s", "client")
_Text = Annotated[str, AfterValidator(lambda text: one_line(text, 2000))]
_Number = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
UNFINISHED, UNREADABLE, OTHER = "unfinished run", "unreadable run", "other folder"


class _ListedPart(BaseModel):
    model_config = ConfigDict(strict=True)


class _ListedLoad(_ListedPart):
    concurrency: int | None
    rate_per_s: _Number

    @property
    def as_planned(self) -> Load:
        return Load(concurrency=self.concurrency, rate_per_s=self.rate_per_s)


class _ListedMix(_ListedPart):
    speed_up: _Number = Field(validation_alias="ratio")
    ci_low: _Number = Field(validation_alias="low")
    ci_high: _Number = Field(validation_alias="high")
    usd_before: _Number
    usd_after: _Number


class _ListedAtLoad(_ListedPart):
    load: _ListedLoad
    mix: _ListedMix | None


class _ListedArm(_ListedPart):
    name: _Text


class _ListedHardware(_ListedPart):
    instance: _Text
    chips: int


def _at(*path: str, **known: Any) -> Any:
    """A field with its path in a summary."""
    return Field(validation_alias=AliasPath(*path), **known)


class _ListedSummary(_ListedPart):
    """The parts of a summary that a list of runs reads, with the names of the columns."""

    id: _Text = _at("run", "id")
    started: _Text = _at("run", "started")
    experiment: _Text = _at("run", "experiment")
    provenance: _Text = _at("run", "provenance")
    complete: bool = _at("run", "complete")
    model: _Text = _at("run", "model", default="")
    engine: _Text = _at("served_by", default="")
    answer: _Text = _at("decision", "sentence")
    arms: list[_ListedArm] = _at("run", "arms", default=[])
    plan_sha256: str = _at("run", "plan_sha256", default="")
    prompts_sha256: str = _at("run", "prompts_sha256", default="")
    here: Annotated[int, Field(ge=0)] = _at("decision", "here", default=0)
    at_loads: list[_ListedAtLoad] = _at("decision", "loads", default=[])
    cells: list[_ListedLoad] = []
    hardware: dict[str, _ListedHardware] = {}


class ListedRun(NamedTuple):
    """A folder that may hold a run. All texts are safe to print."""

    folder: str
    link: str
    """The folder as part of a URL."""
    id: str = ""
    started: str = ""
    experiment: str = ""
    """The name of the run."""
    model: str = ""
    engine: str = ""
    hardware: str = ""
    load: str = ""
    """The load of the speed-up and the dollars."""
    load_size: float | None = None
    speed_up: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    usd_before: float | None = None
    """Dollars per million output tokens of the baseline."""
    usd_after: float | None = None
    """Dollars per million output tokens of the arm of the speed-up."""
    provenance: str = ""
    complete: bool = False
    answer: str = ""
    report: bool = False
    """Whether report.html is there."""
    problem: str = ""
    """Why the folder could not be read; empty for a run."""
    kind: str = ""
    """The kind of a folder without a finished run."""
    asked: str = ""
    """Model and prompts. Runs in which they differ cannot be compared."""
    arms: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()

    def comparable(self, other: ListedRun) -> bool:
        """Whether `benchmark compare` can compare the two runs."""
        if not self.asked or self.asked != other.asked:
            return False
        return bool(set(self.arms) & set(other.arms) and set(self.loads) & set(other.loads))


def row_of(path: Path) -> ListedRun:
    row = ListedRun(folder=one_line(path.name), link=quote(os.fsencode(path.name)))
    again = f"`./trnspec benchmark report {one_line(str(path))}` makes it from the records"
    try:
        if (path / FILE_NAME).is_file():
            return row._replace(**_known(path))
        if journal.exists(path):
            return row._replace(problem=f"no {FILE_NAME}; {again}", kind=UNFINISHED)
        return row._replace(problem="not a run", kind=OTHER)
    except (OSError, ValueError) as error:
        why = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        problem = f"{FILE_NAME} cannot be read ({one_line(why, 100)}); {again}"
        return row._replace(problem=problem, kind=UNREADABLE)


def _known(path: Path) -> dict[str, Any]:
    """Raises OSError, ValueError."""
    run = _ListedSummary.model_validate_json(text_of(path / FILE_NAME))
    prompts = run.prompts_sha256 or run.plan_sha256
    hardware = dict.fromkeys(f"{own.chips} chips of {own.instance}" for own in run.hardware.values())
    known = run.model_dump(exclude={"plan_sha256", "prompts_sha256", "here", "at_loads", "cells"}) | {
        "hardware": " and ".join(hardware),
        "report": (path / "report.html").is_file(),
        "kind": "" if run.complete else UNFINISHED,
        "asked": f"{run.model} {prompts}" if run.model and prompts else "",
        "arms": tuple(arm.name for arm in run.arms),
        "loads": tuple(dict.fromkeys(str(cell.as_planned) for cell in run.cells)),
    }
    for at in run.at_loads[run.here :][:1]:
        load = at.load.as_planned
        known |= {"load": load.in_words, "load_size": load.rate_per_s or load.concurrency}
        known |= at.mix.model_dump() if at.mix else {}
    return known


def newest_pair(rows: list[ListedRun]) -> tuple[ListedRun, ListedRun] | None:
    """The two newest runs that can be compared, the older first."""
    newest = sorted(rows, key=lambda row: row.started, reverse=True)
    return next(((old, new) for new, old in combinations(newest, 2) if new.comparable(old)), None)


def compare_runs(old: RawRun, new: RawRun) -> dict[str, Any]:
    """Compare each arm and each speed-up of the new run with the old one.

    - `old`, `new`: {run, provenance, started_unix_s, client}; `warnings`: [text]
    - `arms`: [{class, concurrency, rate_per_s, arm, metric, old, new (geometric means), ratio (above 1: the new
      run is faster), ci_low, ci_high, n_pairs (prompts), verdict, p_value, p_holm, ..., warning}]
    - `speed_ups`: [{class, concurrency, rate_per_s, baseline, treatment, metric, old, new (speed-ups),
      ratio (above 1: it has grown), ...}]
    - `slower`: the rows whose interval shows that they became slower, in words

    Raises ResultsError if the plans differ in model or prompts or share no arm or no load.
    """
    _refuse(old.plan, new.plan)
    runs = (cells_of(old), cells_of(new))
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
    sensible = not any(sanity_check.withholds(raw.sense) for raw in (old, new))
    of_arms = [_arm(runs, place, arm, sensible=sensible) for place, arm in product(places, arms)]
    before, after = old.plan.baselines, new.plan.baselines
    treatments = [arm for arm in arms if before[arm] == after[arm] != arm]
    speed_ups = [_speed_up(runs, place, arm, sensible=sensible) for place, arm in product(places, treatments)]
    for rows in (of_arms, speed_ups):
        adjust(rows)
    return {
        "schema": 1,
        "old": {name: getattr(old.sessions[0], name) for name in _IDENTITY},
        "new": {name: getattr(new.sessions[0], name) for name in _IDENTITY},
        "warnings": _warnings(old, new),
        "arms": of_arms,
        "speed_ups": speed_ups,
        "slower": _lines("slower", rows=[*of_arms, *speed_ups]),
    }


def _refuse(old: Plan, new: Plan) -> None:
    models = f"({old.model}, {new.model})"
    if old.model != new.model:
        raise ResultsError(f"the runs are of different models {models}; compare runs of one")
    before, after = ({p.id: p for p in plan.prompts} for plan in (old, new))
    differing = [id_ for id_ in {**before, **after} if before.get(id_) != after.get(id_)]
    if differing:
        raise ResultsError(
            f"the runs have different prompts: {len(differing)} differ, {differing[0]!r} first; "
            "measure both with one plan"
        )


def _arm(runs: tuple[Cells, Cells], place: Place, name: str, *, sensible: bool) -> dict[str, Any]:
    """The time per token of the arm, old divided by new; without a verdict if the answers of a run are not `sensible`."""
    sides = [(cells, cells.plan.arm(name)) for cells in runs]
    before, after = (_by_prompt(logs_at(cells, arm, place, _METRIC.name).values()) for cells, arm in sides)
    judged = sensible and not any((name, place.class_) in cells.made_up for cells in runs)
    old, new = (cells.of(arm, place) for cells, arm in sides)
    warning = error_warning(old, new, ("old run", "new run"))
    row = _versus(before, after, judged=judged, footing=_footing(runs, place))
    return {**place.to_dict(), "arm": name, **row, "warning": warning}


def _speed_up(runs: tuple[Cells, Cells], place: Place, name: str, *, sensible: bool) -> dict[str, Any]:
    """The change of the speed-up of a treatment over its baseline, which is the same in both runs."""
    gains, judged = [], sensible
    for cells in runs:
        arms = (cells.baseline_of(cells.plan.arm(name)), cells.plan.arm(name))
        gains.append(_by_prompt(log_ratios(cells, arms, place)[_METRIC.name]))
        judged = judged and cells.judged(arms, place)
    names = {"baseline": runs[0].plan.baselines[name], "treatment": name}
    row = _versus(*gains, more_is_better=True, judged=judged, footing=_footing(runs, place))
    return {**place.to_dict(), **names, **row}


def _by_prompt(sample: Iterable[tuple[Source, float]]) -> dict[str, float]:
    logs: dict[str, list[float]] = {}
    for source, log in sample:
        logs.setdefault(source.prompt, []).append(log)
    return {prompt: mean(values) for prompt, values in logs.items()}


def _versus(
    before: Mapping[str, float],
    after: Mapping[str, float],
    *,
    judged: bool,
    footing: Footing,
    more_is_better: bool = False,
) -> dict[str, Any]:
    """The comparison over prompts that both runs answered; without a verdict if an emulator made up the acceptance (not `judged`)."""
    shared = {prompt: (old, after[prompt]) for prompt, old in before.items() if prompt in after}
    sign = 1 if more_is_better else -1
    gains = [(Source("", prompt), sign * (new - old)) for prompt, (old, new) in shared.items()]
    old_mean, new_mean = (
        math.exp(mean([values[side] for values in shared.values()])) if shared else None for side in (0, 1)
    )
    row = result(gains, judged=judged, footing=footing)
    return {"metric": _METRIC.name, "old": old_mean, "new": new_mean, **row}


def _footing(runs: tuple[Cells, Cells], place: Place) -> Footing:
    """The weaker conditions of both runs."""
    both = [cells.footing(place.load) for cells in runs]
    return Footing(held=all(footing.held for footing in both), starts=min(footing.starts for footing in both))


def _warnings(old: RawRun, new: RawRun) -> list[str]:
    clients = [list(dict.fromkeys(session.client for session in raw.sessions)) for raw in (old, new)]
    settings = [(name, getattr(old.plan, name), getattr(new.plan, name)) for name in _MAY_DIFFER]
    plans = {"clients": clients, "settings": settings, "baselines": [old.plan.baseline, new.plan.baseline]}
    runs = {"old": old.sessions[0], "new": new.sessions[0], "senseless_runs": _senseless(old, new)}
    return _lines("warnings", **runs, **plans)


def _senseless(*runs: RawRun) -> list[tuple[str, str]]:
    return [(raw.sessions[0].run, why) for raw in runs if (why := sanity_check.withholds(raw.sense))]


def _lines(kind: str, **known: Any) -> list[str]:
    return rendered("two_runs", kind=kind, **known).splitlines()


def judge(baseline: RawRun, run: RawRun, *, slower_by: float, more_errors: float) -> dict[str, Any]:
    """Check `run` against `baseline`: the time per output token of each cell and the error rate of each arm.

    `slower_by` is the tolerated increase of the time per token: only if the whole interval is beyond it, it is a regression.
    `more_errors` is the tolerated increase of the share of failed requests. Returns {schema, baseline, run, cells: [{class, concurrency, rate_per_s,
    arm, old, new, ratio, ci_low, ci_high, verdict}], errors: [{arm, old, new}], regressions: [text], warnings: [text], as
    `compare_runs` has them}.

    Raises ResultsError if the runs cannot be compared.
    """
    origins = [raw.sessions[0].provenance for raw in (baseline, run)]
    if origins[0] != origins[1]:
        raise ResultsError(
            f"the baseline is {origins[0]}, the run {origins[1]}: they say nothing about each other; "
            "give two runs of one origin"
        )
    compared, senseless = compare_runs(baseline, run), _senseless(baseline, run)
    gone = [arm for arm in baseline.plan.prices if arm not in run.plan.prices]
    errors = [
        {"arm": arm, "old": _error_rate(baseline, arm), "new": _error_rate(run, arm)}
        for arm in baseline.plan.prices
        if arm not in gone
    ]
    against = _lines(
        "against",
        senseless_runs=senseless,
        unfinished=not extent(run)[1],
        recorded=len(run.requests),
        gone=gone,
        cells=[] if senseless else compared["arms"],
        held=all(raw.held or raw.plan.replayed for raw in (baseline, run)),
        near_1=lambda ratio: starts_differ(math.log(ratio)),
        slower_by=slower_by,
        errors=errors,
        more_errors=more_errors,
    )
    return {
        "schema": 1,
        "baseline": compared["old"],
        "run": compared["new"],
        "cells": compared["arms"],
        "errors": errors,
        "regressions": against,
        "warnings": [text for text in compared["warnings"] if text not in against],
    }


def _error_rate(raw: RawRun, arm: str) -> float:
    records = [record for record in raw.measured if record.arm == arm]
    return sum(record.error is not None for record in records) / len(records) if records else 1.0
