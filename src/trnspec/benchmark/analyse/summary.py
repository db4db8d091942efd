"""The result of a run, from its requests and from the optional files in its folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from trnspec.benchmark import metrics
from trnspec.benchmark.analyse import stability
from trnspec.benchmark.analyse.acceptance import acceptance, tokens_per_step_at
from trnspec.benchmark.analyse.answers import losslessness, output_equality
from trnspec.benchmark.analyse.attachments import against_published, engines_in, quality_in, served_by
from trnspec.benchmark.analyse.cells import RequestsByCell
from trnspec.benchmark.analyse.conditions import is_aa, one_start
from trnspec.benchmark.analyse.decision import advised, average
from trnspec.benchmark.analyse.delivered import cost, goodput, limits_kept, throughput, token_source
from trnspec.benchmark.analyse.evidence import TIMES_STAY, evidence, withheld_from, without_withheld
from trnspec.benchmark.analyse.request_table import CellKey, Requests
from trnspec.benchmark.analyse.result import Comparison, Evidence, Explanation, Result
from trnspec.benchmark.analyse.result_parts import Cell
from trnspec.benchmark.analyse.speed_up import bests, comparisons, mixes, pays_up_to
from trnspec.benchmark.analyse.statistics import distribution
from trnspec.benchmark.analyse.values import gaps, server_counts
from trnspec.benchmark.analyse.window_schedule import windows_by_load
from trnspec.benchmark.measure import sanity_check
from trnspec.benchmark.measure.journal import write_whole
from trnspec.benchmark.measure.raw_run import RawRun, extent
from trnspec.benchmark.plan import PlannedArm

FILE_NAME = "summary.json"
_HEADLINE = metrics.COMPARED[0].name
_OF_PLAN = ("experiment", "model", "baseline", "warmup", "seed", "max_tokens", "temperature")
_OF_PLAN += ("ignore_eos", "dummy_weights")
_UNJUDGED = {"class", "concurrency", "rate_per_s", "baseline", "treatment", "metric"}
_UNJUDGED |= {"baseline_tpot_s", "treatment_tpot_s", "classes", "n_pairs", "n_prompts"}
_NO_VERDICT = {
    "verdict": "withheld",
    "one_start": False,
    **dict.fromkeys(("p_value", "p_holm", "prompts_to_tell")),
}


def summarise(cells: RequestsByCell, folder: Path | None = None) -> Result:
    """The result of a run, finished or not; `folder` may hold further files of it. Raises ResultsError for an invalid file."""
    raw, course = cells.raw, stability.stability(cells)
    engines = engines_in(folder, raw.plan.baselines) if folder else {}
    quality = quality_in(folder, raw.plan.baselines) if folder else None
    found = evidence(cells, course, quality=quality, engines=engines)
    left = without_withheld(cells, found)
    described = {
        (place, arm.name): _cell(cells, arm, place) for place, arm in product(cells.places, cells.plan.arms)
    }
    rows = [_withheld_by_evidence(found, row) for row in comparisons(cells)]
    headlines = [row for row in rows if row["metric"] == _HEADLINE]
    explanations = list(_explanations(cells, described, headlines))
    # The mix of an arm that is withheld as a whole keeps its measurements.
    both = zip(mixes(left), mixes(cells), strict=True)
    mixed = [_withheld_by_evidence(found, row if row["classes"] else whole) for row, whole in both]
    compared = [_in_class(cells, row, described, explanations, mixed) for row in rows]
    mix = [_of_mix(cells, row, compared) for row in mixed]
    headline = [one for one in compared if one.metric == _HEADLINE]
    result = Result.model_validate(
        {
            "run": _run(raw) | {"mix": dict(cells.shares or {})},
            "cells": list(described.values()),
            "comparisons": compared,
            "evidence": [*found, *one_start(cells, [*headline, *mix])],
            "mix": mix,
            "best": list(bests(left)),
            "pays_up_to": [] if is_aa(raw.plan) else list(pays_up_to([*mix, *headline])),
            "explanations": explanations,
            "limits_kept": list(limits_kept(cells)),
            "losslessness": losslessness(raw),
            "course": course,
            "sense": sanity_check.outcomes(raw.sense),
            "engines": engines,
            "quality": quality,
        }
    )
    if folder is not None:
        known = {"served_by": served_by(folder, raw)}
        known |= {} if result.withheld else against_published(folder, result, cells)
        result = Result.model_validate({**dict(result), **known})
    return advised(result.model_copy(update={"windows": windows_by_load(result)}))


def _withheld_by_evidence(found: Sequence[Evidence], row: dict[str, Any]) -> dict[str, Any]:
    """The comparison, without a verdict if evidence withholds it. The ratio stays if its times are sound: those of a server that writes
    nonsense say nothing about a working server. The measurements of each arm are kept."""
    metric = row.get("metric", _HEADLINE)
    why = withheld_from(found, CellKey.of(row), row["baseline"], row["treatment"], metric=metric)
    if not why:
        return row
    if {one.check for one in why} <= TIMES_STAY:
        return row | _NO_VERDICT
    return {key: value for key, value in row.items() if key in _UNJUDGED} | _NO_VERDICT


def write(result: Result, folder: Path) -> Path:
    """Store the result in `folder`, completely or not at all. Raises StorageError."""
    return write_whole(folder / FILE_NAME, result.model_dump_json(indent=1) + "\n")


def _named(cells: RequestsByCell, row: Mapping[str, Any]) -> dict[str, Any]:
    """The window of a treatment, and its name without it."""
    name, window = row["treatment"], cells.plan.arm(row["treatment"]).speculative_tokens
    return {"window": window, "family": re.sub(rf"-k{window}(?=(-b\d+)?$)", "", name)}


def _in_class(
    cells: RequestsByCell,
    row: Mapping[str, Any],
    described: Mapping[tuple[CellKey, str], Cell],
    explanations: Sequence[Explanation],
    mixed: Sequence[Mapping[str, Any]],
) -> Comparison:
    """A comparison with what belongs to it: dollars, steps, times."""
    known = {**row, **_named(cells, row)}
    if row["metric"] != _HEADLINE:
        return Comparison.model_validate(known)
    place, names = CellKey.of(row), (row["baseline"], row["treatment"])
    if row["verdict"] != "withheld":  # else calculated from times that are made up
        for key, name in zip(("usd_before", "usd_after"), names, strict=True):
            cost = described[place, name].cost
            known[key] = cost and cost.usd_per_million_output_tokens
    for one in explanations:
        if (one.place, one.treatment) == (place, names[1]):
            known |= {"tokens_per_step": one.tokens_per_step, "step_cost": one.step_time_ratio}
    for mix in mixed:
        if (CellKey.of(mix).load, mix["baseline"], mix["treatment"]) == (place.load, *names):
            times = next((own for own in mix["classes"] if own["class"] == place.class_), {})
            known |= {key: times.get(key) for key in ("baseline_tpot_s", "treatment_tpot_s")}
    return Comparison.model_validate(known)


def _of_mix(cells: RequestsByCell, row: Mapping[str, Any], compared: Sequence[Comparison]) -> Comparison:
    """A comparison over the mix. Dollars are the mean over the classes by their shares of the tokens."""
    inside = {own["class"]: own["share"] for own in row["classes"] if own["share"]}
    wanted = (_HEADLINE, CellKey.of(row).load, row["baseline"], row["treatment"])
    alike = (one for one in compared if (one.metric, one.load, one.baseline, one.treatment) == wanted)
    members = [one for one in alike if one.class_ in inside]
    known = {**row, **_named(cells, row), "metric": _HEADLINE}
    shares = [inside[one.class_ or ""] for one in members]
    known |= {side: average(members, side, shares) for side in ("usd_before", "usd_after")}
    return Comparison.model_validate(known)


def _run(raw: RawRun) -> dict[str, Any]:
    plan, first, measured = raw.plan, raw.sessions[0], raw.measured
    planned, complete = extent(raw)
    ends = [record.started_unix_s + (record.e2e_s or 0.0) for record in raw.requests]
    starts = Counter(class_ for class_, _ in {(one.class_, one.start) for one in measured})
    return {
        "id": first.run,
        "arms": [{k: v for k, v in arm.to_dict().items() if k != "url"} for arm in plan.arms],
        "aa": is_aa(plan),
        "provenance": first.provenance,
        "started": stability.iso(first.started_unix_s),
        "finished": stability.iso(max(ends)) if ends else None,
        "plan_sha256": first.plan_sha256,
        "prompts_sha256": plan.prompts_sha256(),
        "complete": complete,
        "requests_planned": planned,
        "requests_recorded": len(measured),
        "sittings": len(raw.sessions),
        "requests_per_cell": plan.requests,
        **{name: getattr(plan, name) for name in _OF_PLAN},
        "slo": dict(plan.slo) if plan.slo else None,
        "extra_body": dict(plan.extra_body),
        "timeout_s": first.plan.timeout_s,
        "client": first.client,
        "python": first.python,
        "token_source": token_source(measured),
        "interval": f"95 % interval: Student t over prompts and {'starts' if max(starts.values(), default=1) > 1 else 'blocks'}, mapped back from log ratios",
    }


def _explanations(
    cells: RequestsByCell,
    described: Mapping[tuple[CellKey, str], Cell],
    headlines: Sequence[Mapping[str, Any]],
) -> Iterator[Explanation]:
    for row in headlines:
        place, arm = CellKey.of(row), cells.plan.arm(row["treatment"])
        judged = row["verdict"] != "withheld" or row.get("ratio")
        if judged and len(cells.pairs((cells.baseline_of(arm), arm), place)[0]):
            here = {name: cell for (where, name), cell in described.items() if where == place}
            yield explain(cells, arm, place, here)


def explain(
    cells: RequestsByCell, arm: PlannedArm, place: CellKey, described: Mapping[str, Cell]
) -> Explanation:
    """The steps of `arm` relative to its baseline; values are None if they are unknown. `described` has the cells of the place by arm.

    A decode step of the treatment takes r times as long as one of the baseline and yields t times as many tokens. So the expected
    speed-up is t / r (Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, with both times as measured). Both are means over the same
    steps of the same answers, so t / r is the ratio of the times per token of the two arms.
    """
    own = cells.baseline_of(arm)
    sides = cells.pairs((own, arm), place)
    base, treated = (
        _steps(one, paired, described[one.name]) for one, paired in zip((own, arm), sides, strict=True)
    )
    row = {**place.to_dict(), "baseline": own.name, "treatment": arm.name}
    row["tokens_per_step"] = treated and treated[0]
    if base and treated:
        return Explanation.model_validate(row | {"step_time_ratio": treated[1] / base[1]})
    known = [described[arm.name].acceptance, *(cell.acceptance for cell in described.values())]
    unknown = [acceptance.note for acceptance in known if acceptance.tokens_per_step is None]
    why = unknown[0] if unknown else "no answer has a second chunk"
    return Explanation.model_validate(row | {"unknown": f"the steps of an arm are not known: {why}"})


def _steps(arm: PlannedArm, requests: Requests, cell: Cell) -> tuple[float, float] | None:
    """Tokens per step of an arm in a cell, and seconds of a step. Chunks count as steps if nothing contradicts that. Otherwise the tokens
    per step are from the server."""
    per_step, decoded = cell.acceptance.tokens_per_step, requests.at(~np.isnan(requests.decoded))
    if per_step is None or decoded.tpot_s is None:
        return None
    by_chunk = float(decoded.decoded.sum()) / sum(len(record.chunk_s) - 1 for record in decoded.answers)
    chunks = cell.acceptance.caution is None and 1 <= by_chunk <= arm.max_tokens_per_step
    tokens = by_chunk if chunks else per_step
    return tokens, decoded.tpot_s * tokens


def _cell(cells: RequestsByCell, arm: PlannedArm, place: CellKey) -> Cell:
    requests, blocks = cells.of(arm, place), cells.blocks_of(arm, place)
    answered, answers = requests.answered, requests.answered.answers
    errors = Counter(one.error for one in requests.answers if one.error)
    steps = acceptance(arm, requests.answers, tokens_per_step_at(cells, arm, place))
    delivered = throughput(cells.loaded(arm, place), blocks)
    lengths = np.array([one.completion_tokens or np.nan for one in answers], float)
    base = cells.baseline_of(arm)
    equality = None if base is arm else output_equality(base.name, cells.pairs((base, arm), place))
    known = {
        "arm": arm.name,
        **place.to_dict(),
        "n": len(answered),
        "errors": errors.total(),
        "error_rate": errors.total() / len(requests) if len(requests) else None,
        "error_names": dict(errors.most_common()),
        **_distributions(answered, by_chunk=steps["caution"] is None),
        metrics.ACCEPTANCE_LENGTH.name: steps["tokens_per_step"],
        "completion_tokens": distribution(lengths),
        "cached_tokens": sum(one.cached_tokens or 0 for one in answers),
        "forced_length": sum(one.forced_length for one in answers),
        "token_source": token_source(answers),
        "acceptance": steps,
        "output_equality": equality,
        "throughput": delivered,
        "goodput": goodput(cells.plan.slo, requests, blocks),
        "cost": cost(arm, delivered),
    }
    return Cell.model_validate(known)


def _distributions(answered: Requests, *, by_chunk: bool) -> dict[str, Any]:
    """The distribution of each metric: over requests, or over chunks for the inter-chunk latency.

    `by_chunk` is whether chunks may count as steps.
    """
    values = dict(answered.metrics)
    if not by_chunk:
        counted = [server_counts(one) is not None for one in answered.answers]
        values[metrics.TOKENS_PER_STEP.name] = np.where(counted, values[metrics.TOKENS_PER_STEP.name], np.nan)
    between = [gap for one in answered.answers for gap in gaps(one)]
    values[metrics.INTER_CHUNK_LATENCY.name] = np.array(between, float)
    return {name: distribution(own) for name, own in values.items()}
