"""A run as the two JSON files that ray-project/llmperf writes, for tools that read those.

Names and keys are llmperf's (`token_benchmark_ray.py`, version 2023-08-31). Values are corrected where its
own mislead, and `schema_note` in each summary says how; its figure for inter-token latency stands beside.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark import metrics
from benchmark.analyse.stats import percentile
from benchmark.analyse.values import gaps, output_tokens, request_values
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from benchmark.plan import Arm, Plan
from benchmark.writing import write_whole

FOLDER = "llmperf"
VERSION = "2023-08-31"
"""Of the format, as llmperf writes it."""
NOTE = (
    "inter_token_latency_s is time per output token: (t_last - t_first_chunk) / (tokens - tokens of the first "
    "chunk); llmperf's own figure (E2E / chunks, first-token time included) is llmperf_inter_token_latency_s. "
    "Tokens are the server's count. A failed request has nulls instead of zeros and is not among the completed. "
    "Throughput of the whole is over the time with a request in flight. Minima and maxima of token counts are numbers."
)
QUANTILES = (25, 50, 75, 90, 95, 99)
SUMMARISED = (
    "inter_token_latency_s",
    "ttft_s",
    "end_to_end_latency_s",
    "request_output_throughput_token_per_s",
    "number_input_tokens",
    "number_output_tokens",
)
"""Keys of a response with a distribution in the summary, in llmperf's order."""
EXTRA = ("llmperf_inter_token_latency_s", "tokens_per_chunk", "inter_chunk_latency_s")
"""The same for the keys that llmperf does not have."""


def write(raw: RawRun, folder: Path) -> list[Path]:
    """Two files under `folder`/llmperf for each cell with a measured request. Raises StorageError."""
    plan = raw.plan
    written = []
    for (arm, class_, load), records in _cells(raw).items():
        place = _cell_folder(folder, arm, class_, load)
        answers = [response(plan.arm(arm), record) for record in records]
        name = stem(plan, answers)
        about = {"arm": arm, "class": class_, "experiment": plan.experiment, "run": raw.sittings[0].run}
        about["provenance"] = raw.sittings[0].provenance
        whole = summary(plan, name, records, answers) | about | {"schema_note": NOTE}
        whole["timestamp"] = int(max(map(_ended, records)))
        written.append(_store(place / f"{name}_individual_responses.json", answers))
        written.append(_store(place / f"{name}_summary.json", whole))
    return written


def _cell_folder(folder: Path, arm: str, class_: str, load: str) -> Path:
    """Where the files of a cell lie; `load` is `c4` or `r2.5`."""
    return folder / FOLDER / _slug(arm) / f"{_slug(class_)}-{_slug(load)}"


def response(arm: Arm, record: RequestRecord) -> dict[str, Any]:
    """One request; the first ten keys are llmperf's, in its order."""
    values = request_values(record, arm.max_tokens_per_step)
    tokens = output_tokens(record, arm.max_tokens_per_step) if record.error is None else None
    known = record.prompt_tokens is not None and tokens is not None
    waits = gaps(record)
    return {
        "error_code": None if record.error is None else _error_code(record.error),
        "error_msg": "" if record.error is None else f"{record.error}: {record.message or ''}",
        "inter_token_latency_s": values.get(metrics.TPOT.name),
        "ttft_s": values.get(metrics.TTFT.name),
        "end_to_end_latency_s": values.get(metrics.E2E.name),
        "request_output_throughput_token_per_s": values.get(metrics.OUTPUT_TOKENS_PER_S.name),
        "number_total_tokens": (record.prompt_tokens or 0) + (tokens or 0) if known else None,
        "number_output_tokens": tokens,
        "number_input_tokens": record.prompt_tokens,
        "llmperf_inter_token_latency_s": values.get(metrics.LLMPERF_INTER_TOKEN_LATENCY.name),
        "tokens_per_chunk": values.get(metrics.TOKENS_PER_CHUNK.name),
        "inter_chunk_latency_s": statistics.fmean(waits) if waits and record.error is None else None,
    }


def summary(
    plan: Plan, name: str, records: Sequence[RequestRecord], answers: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """llmperf's flat summary of one cell, without what is the caller's to add."""
    inputs = [
        answer["number_input_tokens"] for answer in answers if answer["number_input_tokens"] is not None
    ]
    sampling = {"temperature": plan.temperature, **plan.extra_body}
    return {
        "version": VERSION,
        "name": f"{name}_summary",
        "model": plan.model,
        "mean_input_tokens": _mean_tokens(answers),
        "stddev_input_tokens": round(statistics.stdev(inputs)) if len(inputs) > 1 else 0,
        "mean_output_tokens": plan.max_tokens,
        "stddev_output_tokens": 0,
        "num_concurrent_requests": records[0].concurrency,
        "rate_per_s": records[0].rate_per_s,
        **_flat("additional_sampling_params", sampling),
        **_flat("results", _results(records, answers)),
    }


def stem(plan: Plan, answers: Sequence[Mapping[str, Any]]) -> str:
    """What both file names begin with: model, mean input and output tokens, as llmperf spells them."""
    plain = re.sub(r"[^\w\d-]+", "-", f"{plan.model}_{_mean_tokens(answers)}_{plan.max_tokens}")
    return re.sub(r"-{2,}", "-", plain)


def _results(records: Sequence[RequestRecord], answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    failures = [answer["error_code"] for answer in answers if answer["error_code"] is not None]
    completed = [answer for answer in answers if answer["error_code"] is None]
    busy_s = _busy_s(records)
    tokens = sum(answer["number_output_tokens"] or 0 for answer in completed)
    return {
        **{key: _spread([answer[key] for answer in completed]) for key in (*SUMMARISED, *EXTRA)},
        "num_requests_started": len(answers),
        "error_rate": len(failures) / len(answers),
        "number_errors": len(failures),
        "error_code_frequency": str(dict(Counter(failures).most_common())),
        "mean_output_throughput_token_per_s": tokens / busy_s if busy_s and tokens else None,
        "num_completed_requests": len(completed),
        "num_completed_requests_per_min": len(completed) / busy_s * 60 if busy_s else None,
    }


def _spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Quantiles (linear), mean, extremes and sample deviation; null where there are too few values."""
    known = sorted(value for value in values if value is not None)
    return {
        "quantiles": {f"p{q}": percentile(known, q) if known else None for q in QUANTILES},
        "mean": statistics.fmean(known) if known else None,
        "min": known[0] if known else None,
        "max": known[-1] if known else None,
        "stddev": statistics.stdev(known) if len(known) > 1 else None,
    }


def _flat(prefix: str, content: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{prefix}_{key}"
        found |= _flat(name, value) if isinstance(value, Mapping) else {name: value}
    return found


def _cells(raw: RawRun) -> dict[tuple[str, str, str], list[RequestRecord]]:
    """Measured requests by arm, class and load, in the order in which they ended."""
    cells: dict[tuple[str, str, str], list[RequestRecord]] = {}
    for record in sorted(raw.requests, key=_ended):
        if record.phase == "measured":
            load = f"c{record.concurrency}" if record.rate_per_s is None else f"r{record.rate_per_s:g}"
            cells.setdefault((record.arm, record.class_, load), []).append(record)
    return cells


def _ended(record: RequestRecord) -> float:
    return record.started_unix_s + (record.e2e_s or 0.0)


def _busy_s(records: Sequence[RequestRecord]) -> float:
    """Time in which at least one answered request was in flight."""
    busy, until = 0.0, float("-inf")
    for record in sorted(records, key=lambda one: one.started_unix_s):
        end = _ended(record)
        busy += max(0.0, end - max(until, record.started_unix_s))
        until = max(until, end)
    return busy


def _mean_tokens(answers: Sequence[Mapping[str, Any]]) -> int:
    known = [answer["number_input_tokens"] for answer in answers if answer["number_input_tokens"] is not None]
    return round(statistics.fmean(known)) if known else 0


def _error_code(error: str) -> int:
    """The HTTP status, else llmperf's -1."""
    status = error.removeprefix("http_")
    return int(status) if status.isdecimal() else -1


def _slug(name: str) -> str:
    """`name` as a folder; what it loses is made up for by a hash, so that two names stay two folders."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def _store(path: Path, content: Any) -> Path:
    return write_whole(path, json.dumps(content, indent=4, allow_nan=False) + "\n")
