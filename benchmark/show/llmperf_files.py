"""A run as the two JSON files that ray-project/llmperf writes, for tools that read those.

Names and keys are llmperf's (`token_benchmark_ray.py`, version 2023-08-31). Values are corrected where its
own mislead, and `schema_note` in each summary says how; its figure for inter-token latency is given as well.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark import metrics
from benchmark.analyse.cells import covered, sort_out
from benchmark.analyse.stats import percentile
from benchmark.analyse.values import Records, gaps, output_tokens, request_values
from benchmark.file_access import write_whole
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from benchmark.plan import Arm, Load, Plan

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
    plan, opening = raw.plan, raw.sittings[0]
    written = []
    for (arm, place), members in sort_out(raw).requests.items():
        records = sorted(members, key=_ended)
        answers = [response(plan.arm(arm), record) for record in records]
        mean_input = _mean_input_tokens(answers)
        plain = re.sub(r"[^\w\d-]+", "-", f"{plan.model}_{mean_input}_{plan.max_tokens}")
        name = re.sub(r"-{2,}", "-", plain)  # as llmperf spells it
        whole = {
            **summary(plan, place.load, records, answers, f"{name}_summary", mean_input),
            "arm": arm,
            "class": place.class_,
            "experiment": plan.experiment,
            "run": opening.run,
            "provenance": opening.provenance,
            "schema_note": NOTE,
            "timestamp": int(max(map(_ended, records))),
        }
        rate = place.load.rate_per_s
        load = str(place.load) if rate is None else f"r{rate:g}"
        cell = folder / FOLDER / _slug(arm) / f"{_slug(place.class_)}-{_slug(load)}"
        for ending, content in (("individual_responses", answers), ("summary", whole)):
            text = json.dumps(content, indent=4, allow_nan=False) + "\n"
            written.append(write_whole(cell / f"{name}_{ending}.json", text))
    return written


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
    plan: Plan, load: Load, records: Records, answers: Sequence[Mapping[str, Any]], name: str, mean_input: int
) -> dict[str, Any]:
    """llmperf's flat summary of one cell."""
    inputs = _known(answers, "number_input_tokens")
    sampling = {"temperature": plan.temperature, **plan.extra_body}
    return {
        "version": VERSION,
        "name": name,
        "model": plan.model,
        "mean_input_tokens": mean_input,
        "stddev_input_tokens": round(statistics.stdev(inputs)) if len(inputs) > 1 else 0,
        "mean_output_tokens": plan.max_tokens,
        "stddev_output_tokens": 0,
        "num_concurrent_requests": load.concurrency,
        "rate_per_s": load.rate_per_s,
        **_flat("additional_sampling_params", sampling),
        **_flat("results", _results(records, answers)),
    }


def _results(records: Records, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    failures = [answer["error_code"] for answer in answers if answer["error_code"] is not None]
    completed = [answer for answer in answers if answer["error_code"] is None]
    busy_s = covered([(record.started_unix_s, _ended(record)) for record in records])
    tokens = sum(answer["number_output_tokens"] or 0 for answer in completed)
    return {
        **{key: _spread(sorted(_known(completed, key))) for key in (*SUMMARISED, *EXTRA)},
        "num_requests_started": len(answers),
        "error_rate": len(failures) / len(answers),
        "number_errors": len(failures),
        "error_code_frequency": str(dict(Counter(failures).most_common())),
        "mean_output_throughput_token_per_s": tokens / busy_s if busy_s and tokens else None,
        "num_completed_requests": len(completed),
        "num_completed_requests_per_min": len(completed) / busy_s * 60 if busy_s else None,
    }


def _spread(known: Sequence[float]) -> dict[str, Any]:
    """Quantiles (linear), mean, extremes and sample deviation; null where there are too few values."""
    return {
        "quantiles": {f"p{q}": percentile(known, q) if known else None for q in QUANTILES},
        "mean": statistics.fmean(known) if known else None,
        "min": known[0] if known else None,
        "max": known[-1] if known else None,
        "stddev": statistics.stdev(known) if len(known) > 1 else None,
    }


def _known(answers: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    return [answer[key] for answer in answers if answer[key] is not None]


def _flat(prefix: str, content: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{prefix}_{key}"
        found |= _flat(name, value) if isinstance(value, Mapping) else {name: value}
    return found


def _ended(record: RequestRecord) -> float:
    return record.started_unix_s + (record.e2e_s or 0.0)


def _mean_input_tokens(answers: Iterable[Mapping[str, Any]]) -> int:
    known = _known(answers, "number_input_tokens")
    return round(statistics.fmean(known)) if known else 0


def _error_code(error: str) -> int:
    """The HTTP status, else llmperf's -1."""
    status = error.removeprefix("http_")
    return int(status) if status.isdecimal() else -1


def _slug(name: str) -> str:
    """`name` as a folder; what it loses is made up for by a hash, so that two names stay two folders."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
