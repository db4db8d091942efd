"""`summary.json`: the data of all tables and plots, calculated from the raw records alone.

An unknown value is null, never zero; every number is a JSON number. A cell is identified by its arm, its
class and its load: `concurrency` for a closed loop (`rate_per_s` null), `rate_per_s` for an open one
(`concurrency` null).

- `schema`: 1
- `run`: id, experiment, model, baseline, arms (as planned, without addresses), provenance, started, finished,
  plan_sha256, prompts_sha256 (runs with other prompts cannot be compared), complete, requests_planned, requests_recorded, sittings, requests_per_cell, warmup, seed,
  max_tokens, temperature, ignore_eos, extra_body, slo, timeout_s, client, python, token_source, interval;
  `aa`: two arms have one address; `warnings`: [text]; `largest_client_lag_s`;
- `cells`: [{arm, class, concurrency, rate_per_s, n, errors, error_rate, error_names, finish_reasons,
  forced_length (requests), cached_tokens, token_source, <metric of the registry with values of its own>:
  {n, mean, p50, p90, p95, p99}, completion_tokens: the same,
  `acceptance`: {source: "server per-request" | "server counters" | "generation counter" | "tokens per chunk" |
  "plain decoding" | "unknown" | "made up", tokens_per_step (null where what is known of it is not possible), per_position: [share of steps in which draft 1, 2, ... was accepted] | null, ceiling,
  share_of_ceiling, steps, distribution: {tokens: chunks} | null, steps_above_ceiling, caution: why chunks are not
  taken for steps | null, note},
  `acceptance_length`: acceptance.tokens_per_step,
  `output_equality`: {baseline, n_pairs, equal, rate, first_divergence_chars: [..]} | null for the baseline,
  `throughput`: {requests_per_s, output_tokens_per_s, loaded_s, mean_in_flight, client_lag_s} | null,
  `goodput`: {slo, share, per_s} | null, `cost`: {usd_per_million_output_tokens, usd_per_hour,
  output_tokens_per_s_of_arm} | null}]
- `comparisons`, each arm with its own baseline: [{class, concurrency, rate_per_s, baseline, treatment, metric, ratio (speed-up, above 1 is better),
  ci_low, ci_high, n_pairs, n_prompts, verdict, one_start (the verdict is about the one start of the servers that was measured), p_value (of a
  ratio from 0.95 to 1.05; null where the load was not held and the ratio is near 1), p_holm, verdict_holm (both for the headline only),
  detectable_ratio, error_rates: [baseline, treatment], warning}]; the verdict "not judged", with a null ratio, is of
  classes whose acceptance an emulated arm made up, and of all of them where `sense` is withheld
- `explanations`: [{class, concurrency, rate_per_s, baseline, treatment, tokens_per_step, step_time_ratio,
  break_even_tokens_per_step, predicted_speed_up, pooled_speed_up, measured_speed_up, text}]
- `mix`: [{class: null, concurrency, rate_per_s, baseline, treatment, ratio, ci_low, ci_high, together (intervals that hold at once),
  verdict, one_start, detectable_ratio, classes: [{class, n_prompts, share (0: too few prompts, not in the mix), baseline_tpot_s,
  treatment_tpot_s (geometric means over pairs)}]}], all classes with equal shares of the output tokens
  (`src/trnspec/benchmark/analyse/speed_up.py`)
- `pays_up_to`, of several loads: [{class (null: the mix), baseline, treatment, by: "concurrency" | "rate", pays: the last load at which
  the treatment is faster | null, costs: the first load above that at which it is slower | null, loads: [[load, verdict]]}], by the
  verdicts of `mix` and `comparisons`; empty for an A/A
- `limits_kept`, empty without an SLO: [{arm, concurrency, rate_per_s, metric (null: within all limits), limit_s, n (requests), within (of them),
  prompts, share, low, high (its 95 % interval over prompts)}], over all classes
- `course`: {restarts: [{arm, after, before: when its counters began again}], nodes: [{at, arm, before, after: its node was replaced, which is another start of the servers}], gaps: [{from, to, seconds, resumed: whether the run was resumed in it}],
  drift: [{arm, metric, ratio (above 1: faster at the end), ci_low, ci_high, verdict, ...}], each arm in the first cell against its
  repetition at the end (`src/trnspec/benchmark/analyse/stability.py`)
- `best`, of several treatments with one baseline: [{class (null: the mix), concurrency, rate_per_s, baseline, arm,
  over: [{arm, ratio (above 1: `best` is faster), ci_low, ci_high, together, verdict, one_start}]}]
- `losslessness`: {`baseline`: {arm, and as a treatment has them, of its second answers} | null where it was not
  asked again, `treatments`: [{treatment, n_pairs, equal, differing, ci_low, ci_high (of the share that differs), p_holm,
  more_than_baseline}]} | null where answers were drawn at a temperature (`src/trnspec/benchmark/analyse/losslessness.py`)
- `sense`: {arm, asked, right, needed, withheld: whether the run gets no verdict because of its answers, text, questions:
  [{question, answer, error, judgement: "right" | "wrong" | "loop" | "noise" | "no answer"}]}, what the baseline answered
  before the load; null where it was not asked (`src/trnspec/benchmark/measure/sanity_check.py`)

From the optional files of a results folder (`src/trnspec/benchmark/analyse/result_files.py`), the verb `report` adds:

- `engines`: {arm: {compared, baseline_key, declared (values that differ because the arm speculates),
  undeclared: [{path, baseline, this}]}}; an arm without a comparison is not in it
- `expectations`: [{arm, what: "plain_tpot_s" | "step_over_plain", measured, expected, low, high, text}], empty if nothing
  was expected (`src/trnspec/benchmark/analyse/result_files.py`); before them the published figures that the run should meet, with what:
  "tpot_s" | "speed_up" | "tokens_per_step" and also classes, concurrency, ci_low, ci_high, origin (the run's provenance) and
  verdict: "reproduced" | "not reproduced" | "cannot tell"; `quoted`: [{text, source}], published results of the same target;
  `drafts`: {arm: {mode, draft}}, as the experiment has them; `hardware`: {arm: {instance, chips}}
- `predicted_cost`: {plain arm: {usd_per_million_output_tokens, tpot_s, concurrency}}, decoding alone, as `./trnspec check` says
- `served_by`: the engines, in words; empty where they are not known
- `decision`: the recommendation (`src/trnspec/benchmark/analyse/decision.py`)
- `quality`: {task, questions: {dataset, revision, sha256} | null, scores: [{arm, filter, n, correct}],
  comparisons: [{filter, baseline, treatment, n, difference, ci_low, ci_high, gained, lost, p_value}]} | null
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np

from trnspec.benchmark import metrics
from trnspec.benchmark.analyse import stability
from trnspec.benchmark.analyse.acceptance.yields import acceptance, step_yield_at
from trnspec.benchmark.analyse.decision import is_withheld
from trnspec.benchmark.analyse.delivered import cost, goodput, limits_kept, throughput, token_source
from trnspec.benchmark.analyse.explanation import explain, is_aa, warnings
from trnspec.benchmark.analyse.losslessness import losslessness
from trnspec.benchmark.analyse.requests import Cells, Place, Requests
from trnspec.benchmark.analyse.speed_up import adjust, comparisons, mixes, output_equality, pays_up_to
from trnspec.benchmark.analyse.statistics import distribution
from trnspec.benchmark.analyse.values import gaps, server_counts
from trnspec.benchmark.measure import sanity_check
from trnspec.benchmark.measure.journal import RawRun, extent, write_whole
from trnspec.benchmark.plan import PlannedArm
from trnspec.core.json_text import json_text

FILE_NAME = "summary.json"
_HEADLINE = metrics.COMPARED[0].name
_RATIO = ("ratio", "ci_low", "ci_high", "together", "p_value", "p_holm", "verdict_holm", "detectable_ratio")
_OF_PLAN = ("warmup", "seed", "max_tokens", "temperature", "ignore_eos")


def summarise(cells: Cells) -> dict[str, Any]:
    """The summary of a run, finished or not. It has no verdicts if the baseline failed the sanity check."""
    raw, happened = cells.raw, stability.stability(cells)
    compared, mixed = list(comparisons(cells)), mixes(cells)
    headlines = [row for row in compared if row["metric"] == _HEADLINE]
    for _, together in groupby(headlines, key=lambda row: Place.of(row).load):
        adjust(list(together))
    described = {
        (place, arm.name): _cell(cells, arm, place) for place, arm in product(cells.places, cells.plan.arms)
    }
    summary = {
        "schema": 1,
        "run": {
            **_run(raw),
            "warnings": warnings(raw, described.values(), happened),
        },
        "cells": list(described.values()),
        "comparisons": compared,
        "explanations": list(_explanations(cells, described, compared)),
        "losslessness": losslessness(raw),
        **mixed,
        "pays_up_to": [] if is_aa(raw.plan) else list(pays_up_to([*mixed["mix"], *headlines])),
        "limits_kept": list(limits_kept(cells)),
        "course": happened,
        "sense": sanity_check.outcome(raw.sense),
    }
    return _withheld(summary) if is_withheld(summary) else summary


def _withheld(summary: dict[str, Any]) -> dict[str, Any]:
    """The summary without verdicts about arms, because the times of a server that writes nonsense say nothing about a working server. The
    measurements of each arm are kept."""
    rows = {
        key: [
            row | {name: None for name in _RATIO if name in row} | {"verdict": "not judged"}
            for row in summary[key]
        ]
        for key in ("comparisons", "mix")
    }
    empty: dict[str, Any] = {key: [] for key in ("explanations", "best", "pays_up_to")}
    return {**summary, **rows, **empty}


def write(summary: dict[str, Any], folder: Path) -> Path:
    """Store the summary in `folder`, completely or not at all. Raises StorageError."""
    return write_whole(folder / FILE_NAME, json_text(summary, indent=1) + "\n")


def _run(raw: RawRun) -> dict[str, Any]:
    plan, first, measured = raw.plan, raw.sessions[0], raw.measured
    planned, complete = extent(raw)
    ends = [record.started_unix_s + (record.e2e_s or 0.0) for record in raw.requests]
    starts = defaultdict[str, set[int]](set)
    for record in raw.measured:
        starts[record.class_].add(record.start)
    return {
        "id": first.run,
        "experiment": plan.experiment,
        "model": plan.model,
        "baseline": plan.baseline,
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
        "timeout_s": first.timeout_s,
        "client": first.client,
        "python": first.python,
        "token_source": token_source(measured),
        "largest_client_lag_s": max((block.client_lag_s for block in raw.blocks), default=None),
        "interval": f"95 % interval: Student t over prompts and {'starts' if any(len(own) > 1 for own in starts.values()) else 'blocks'}, mapped back from log ratios",
    }


def _explanations(
    cells: Cells,
    described: Mapping[tuple[Place, str], dict[str, Any]],
    compared: Sequence[Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    headlines = [row for row in compared if row["metric"] == _HEADLINE]
    ratios = {(Place.of(row), row["baseline"], row["treatment"]): row["ratio"] for row in headlines}
    for place, arm in product(cells.places, cells.treatments):
        base = cells.baseline_of(arm)
        if len(cells.pairs((base, arm), place)[0]):
            here = {name: cell for (where, name), cell in described.items() if where == place}
            yield explain(cells, arm, place, here, ratios[place, base.name, arm.name])


def _cell(cells: Cells, arm: PlannedArm, place: Place) -> dict[str, Any]:
    requests, blocks = cells.of(arm, place), cells.blocks_of(arm, place)
    answered, answers = requests.answered, requests.answered.answers
    errors = Counter(one.error for one in requests.answers if one.error)
    steps = acceptance(arm, requests.answers, step_yield_at(cells, arm, place))
    delivered = throughput(cells.loaded(arm, place), blocks)
    lengths = np.array([one.completion_tokens or np.nan for one in answers], float)
    base = cells.baseline_of(arm)
    equality = None if base is arm else output_equality(base.name, cells.pairs((base, arm), place))
    return {
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
        "finish_reasons": dict(Counter(str(one.finish_reason) for one in answers)),
        "forced_length": sum(one.forced_length for one in answers),
        "token_source": token_source(answers),
        "acceptance": steps,
        "output_equality": equality,
        "throughput": delivered,
        "goodput": goodput(cells.plan.slo, requests, blocks),
        "cost": cost(arm, delivered),
    }


def _distributions(answered: Requests, *, by_chunk: bool) -> dict[str, Any]:
    """The distribution of each metric: over requests, or over chunks for the inter-chunk latency.

    `by_chunk` is whether chunks may count as steps.
    """
    values = dict(answered.metrics)
    if not by_chunk:
        counted = [server_counts(one) is not None for one in answered.answers]
        values[metrics.TOKENS_PER_STEP.name] = np.where(counted, values[metrics.TOKENS_PER_STEP.name], np.nan)
    return {
        **{name: distribution(own) for name, own in values.items()},
        metrics.INTER_CHUNK_LATENCY.name: distribution(
            np.array([gap for one in answered.answers for gap in gaps(one)], float)
        ),
    }
