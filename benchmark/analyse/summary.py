"""`summary.json`: everything that the tables and plots show, made from the raw records alone."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from benchmark.analyse.acceptance import acceptance
from benchmark.analyse.comparison import METHOD, compare, error_warning, output_equality, pairs_of
from benchmark.analyse.stats import distribution
from benchmark.analyse.values import gaps, request_values
from benchmark.errors import StorageError
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from benchmark.metrics import COMPARED, INTER_CHUNK_LATENCY, METRICS
from benchmark.plan import Arm, Plan
from benchmark.plan_file import from_dict

FILE_NAME = "summary.json"

Cells = dict[tuple[str, str, int], list[RequestRecord]]


def summarise(raw: RawRun) -> dict[str, Any]:
    """The summary of a run, finished or not."""
    plan = from_dict(raw.sittings[0].plan)
    measured = [record for record in raw.requests if record.phase == "measured"]
    cells: Cells = {}
    for record in measured:
        cells.setdefault((record.arm, record.class_, record.concurrency), []).append(record)
    return {
        "schema": 1,
        "run": _run(raw, plan, measured),
        "cells": [
            _cell(plan, arm, class_, concurrency, cells)
            for concurrency, class_, arm in product(plan.concurrency, plan.classes, plan.arms)
        ],
        "comparisons": list(_comparisons(plan, cells)),
    }


def write(summary: dict[str, Any], folder: Path) -> Path:
    """Store the summary in `folder`, whole or not at all. Raises StorageError."""
    path = folder / FILE_NAME
    draft = path.with_suffix(".json.part")
    try:
        draft.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        os.replace(draft, path)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}; `report` makes it again from the raw file") from error
    return path


def _run(raw: RawRun, plan: Plan, measured: Sequence[RequestRecord]) -> dict[str, Any]:
    first = raw.sittings[0]
    planned = len(plan.arms) * len(plan.classes) * len(plan.concurrency) * plan.requests
    ends = [record.started_unix_s + (record.e2e_s or 0.0) for record in raw.requests]
    return {
        "id": first.run,
        "experiment": plan.experiment,
        "model": plan.model,
        "baseline": plan.baseline,
        "arms": [{k: v for k, v in vars(arm).items() if k != "url"} for arm in plan.arms],
        "provenance": first.provenance,
        "started": _iso(first.started_unix_s),
        "finished": _iso(max(ends)) if ends else None,
        "plan_sha256": first.plan_sha256,
        "complete": len(measured) == planned,
        "requests_planned": planned,
        "requests_recorded": len(measured),
        "sittings": len(raw.sittings),
        "requests_per_cell": plan.requests,
        "warmup": plan.warmup,
        "seed": plan.seed,
        "max_tokens": plan.max_tokens,
        "temperature": plan.temperature,
        "extra_body": dict(plan.extra_body),
        "timeout_s": first.timeout_s,
        "client": first.client,
        "python": first.python,
        "token_source": _token_source(measured),
        "interval": METHOD,
    }


def _cell(plan: Plan, arm: Arm, class_: str, concurrency: int, cells: Cells) -> dict[str, Any]:
    records = cells.get((arm.name, class_, concurrency), [])
    answered = [record for record in records if record.error is None]
    errors = Counter(record.error for record in records if record.error)
    baseline = cells.get((plan.baseline, class_, concurrency), [])
    treated = arm.name != plan.baseline
    lengths = [float(r.completion_tokens) for r in answered if r.completion_tokens]
    return {
        "arm": arm.name,
        "class": class_,
        "concurrency": concurrency,
        "n": len(answered),
        "errors": errors.total(),
        "error_rate": errors.total() / len(records) if records else None,
        "error_names": dict(errors.most_common()),
        **_distributions(answered, arm),
        "completion_tokens": distribution(lengths),
        "cached_tokens": sum(r.cached_tokens or 0 for r in answered),
        "finish_reasons": dict(Counter(str(r.finish_reason) for r in answered)),
        "token_source": _token_source(answered),
        "acceptance": acceptance(arm, answered),
        "output_equality": output_equality(plan.baseline, pairs_of(baseline, records)) if treated else None,
    }


def _distributions(answered: Sequence[RequestRecord], arm: Arm) -> dict[str, Any]:
    """Each metric that has values of its own: over requests, or over chunks for the inter-chunk latency."""
    values = [request_values(record, arm.max_tokens_per_step) for record in answered]
    found = {
        metric.name: distribution([of_one[metric.name] for of_one in values if metric.name in of_one])
        for metric in METRICS
        if metric.scope == "request" and metric.unit != "requests"
    }
    found[INTER_CHUNK_LATENCY.name] = distribution([gap for record in answered for gap in gaps(record)])
    return found


def _comparisons(plan: Plan, cells: Cells) -> Iterator[dict[str, Any]]:
    baseline = plan.arm(plan.baseline)
    treatments = [arm for arm in plan.arms if arm.name != plan.baseline]
    for concurrency, class_, arm in product(plan.concurrency, plan.classes, treatments):
        base, treated = (cells.get((one.name, class_, concurrency), []) for one in (baseline, arm))
        pairs = pairs_of(base, treated)
        warning = error_warning(base, treated)
        for metric in COMPARED:
            result = compare(metric, (baseline, arm), pairs)
            yield {"class": class_, "concurrency": concurrency, **result, "warning": warning}


def _token_source(records: Sequence[RequestRecord]) -> str | None:
    """The one source of token counts, or how many requests had which."""
    counts = Counter(record.token_source for record in records if record.token_source)
    if len(counts) < 2:
        return next(iter(counts), None)
    return "mixed: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=str))


def _iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
