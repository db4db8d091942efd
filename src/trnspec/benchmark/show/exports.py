"""Export a run to other formats: three CSV files, and for each cell the two JSON files of ray-project/llmperf.

Times are in seconds; an empty field or null is an unknown value. The JSON files have the names and keys of llmperf
(`token_benchmark_ray.py`, version 2023-08-31). Values whose definition in llmperf is misleading are ours; see `schema_note`.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trnspec.benchmark import metrics
from trnspec.benchmark.analyse.cells import RequestsByCell
from trnspec.benchmark.analyse.delivered import covered
from trnspec.benchmark.analyse.request_table import CellKey, Requests
from trnspec.benchmark.analyse.result import Result
from trnspec.benchmark.analyse.statistics import PERCENTILES
from trnspec.benchmark.analyse.values import gaps, request_values
from trnspec.benchmark.measure.journal import write_whole
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import RequestRecord

Json = dict[str, Any]
_OF_REQUEST = tuple(m.name for m in metrics.METRICS if m.scope == "request" and m.unit != "requests")
_OF_CELL = tuple(m.name for m in metrics.METRICS if m.name in _OF_REQUEST or m.scope == "chunk")
_PLACE = ("class", "concurrency", "rate_per_s")
_STATISTICS = ("mean", *(f"p{percent}" for percent in PERCENTILES))
REQUEST_COLUMNS = (
    *("run", "arm", *_PLACE, "round", "block", "phase", "counts", "pair_id", "prompt_id"),
    *("started_unix_s", *_OF_REQUEST, "prompt_tokens", "cached_tokens", "completion_tokens"),
    *("token_source", "finish_reason", "error"),
)
CELL_COLUMNS = (
    *("arm", *_PLACE, "n", "errors", "error_rate"),
    *(f"{name}_{statistic}" for name in _OF_CELL for statistic in _STATISTICS),
    *("acceptance_tokens_per_step", "acceptance_source", "equal_outputs", "paired_outputs"),
    *("goodput_per_s", "goodput_share", "usd_per_hour", "usd_per_million_output_tokens"),
)
COMPARISON_COLUMNS = (
    *(*_PLACE, "baseline", "treatment", "metric", "ratio", "ci_low", "ci_high", "n_pairs", "n_prompts"),
    *("verdict", "p_value", "p_holm", "detectable_ratio"),
)
_FIELDS = {"class": "class_"}
LLMPERF = "llmperf"
NOTE = (
    "inter_token_latency_s is time per output token: (t_last - t_first_arrival) / (tokens - tokens of the first "
    "arrival); llmperf's own figure (E2E / chunks, first-token time included) is llmperf_inter_token_latency_s. "
    "Tokens are the server's count. A failed request has nulls instead of zeros and is not among the completed. "
    "Throughput of the whole is over the time with a request in flight. Minima and maxima of token counts are numbers."
)
_RESPONSE = {
    "inter_token_latency_s": metrics.TPOT,
    "ttft_s": metrics.TTFT,
    "end_to_end_latency_s": metrics.E2E,
    "request_output_throughput_token_per_s": metrics.OUTPUT_TOKENS_PER_S,
    **dict.fromkeys(("number_total_tokens", "number_output_tokens", "number_input_tokens")),
    "llmperf_inter_token_latency_s": metrics.LLMPERF_INTER_TOKEN_LATENCY,
    "tokens_per_chunk": metrics.TOKENS_PER_CHUNK,
    "inter_chunk_latency_s": None,
}
"""The keys of a response after those of its error, with our metric, if it has one: seven keys of llmperf, three of ours."""
_SUMMARISED = (*list(_RESPONSE)[:4], "number_input_tokens", "number_output_tokens", *list(_RESPONSE)[7:])


def write_csv(raw: RawRun, result: Result, folder: Path) -> list[Path]:
    """The three CSV files in `folder`. Raises StorageError."""
    comparisons = (one.model_dump() for one in result.comparisons)
    files = (
        ("requests.csv", REQUEST_COLUMNS, _requests(raw)),
        ("cells.csv", CELL_COLUMNS, _cells(result)),
        ("comparisons.csv", COMPARISON_COLUMNS, comparisons),
    )
    return [write_whole(folder / name, _csv(columns, rows)) for name, columns, rows in files]


def _requests(raw: RawRun) -> Iterator[Json]:
    for one in raw.requests:
        values = request_values(one, raw.plan.arm(one.arm).max_tokens_per_step)
        counts = int(one.phase == "measured" and raw.counts(one))
        named = {name: getattr(one, _FIELDS.get(name, name), None) for name in REQUEST_COLUMNS}
        yield named | {"counts": counts} | values


def _cells(result: Result) -> Iterator[Json]:
    for cell in (one.model_dump() for one in result.cells):
        row = _flat("", cell) | (cell["cost"] or {})
        outputs = {"equal_outputs": "output_equality_equal", "paired_outputs": "output_equality_n_pairs"}
        yield row | {name: row.get(key) for name, key in outputs.items()}


def _csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """The text of a CSV file. Text that a spreadsheet would read as a formula gets an apostrophe in front, because servers choose finish
    reasons."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for values in ([row.get(column) for column in columns] for row in rows):
        formulas = [isinstance(value, str) and value.startswith((*"=+-@\t\r",)) for value in values]
        writer.writerow([f"'{value}" if bad else value for value, bad in zip(values, formulas, strict=True)])
    return out.getvalue()


def write_llmperf(cells: RequestsByCell, folder: Path) -> list[Path]:
    """Responses and summary under `folder`/llmperf for each cell with a measured request. Raises StorageError."""
    raw, written = cells.raw, []
    for (arm, place), requests in cells.requests.items():
        ended = np.argsort([_ended(record) for record in requests.answers], kind="stable")
        requests = requests.at(ended)
        records = requests.answers
        answers = [_response(requests, row) for row in range(len(records))]
        whole = _summary(raw, arm, place, records, answers)
        size = f"{raw.plan.model}_{whole['mean_input_tokens']}_{raw.plan.max_tokens}"
        name = re.sub(r"-{2,}", "-", re.sub(r"[^\w\d-]+", "-", size))  # as llmperf spells it
        rate = place.load.rate_per_s
        load = str(place.load) if rate is None else f"r{rate:g}"
        cell = folder / LLMPERF / slug(arm) / f"{slug(place.class_)}-{slug(load)}"
        contents = {"individual_responses": answers, "summary": whole | {"name": f"{name}_summary"}}
        for ending, content in contents.items():
            text = json.dumps(content, allow_nan=False) + "\n"
            written.append(write_whole(cell / f"{name}_{ending}.json", text))
    return written


def _response(requests: Requests, row: int) -> Json:
    """The response of one request. A failure has its HTTP status or -1, as in llmperf."""
    record = requests.answers[row]
    failed, status = record.error is not None, (record.error or "").removeprefix("http_")
    known = {key: requests.metrics[metric.name][row] for key, metric in _RESPONSE.items() if metric}
    answer = dict.fromkeys(_RESPONSE) | {key: float(v) for key, v in known.items() if not math.isnan(v)}
    counted = math.nan if failed else requests.tokens[row]
    tokens = None if math.isnan(counted) else int(counted)
    both = None if record.prompt_tokens is None or tokens is None else record.prompt_tokens + tokens
    waits = [] if failed else gaps(record)
    return {
        "error_code": (int(status) if status.isdecimal() else -1) if failed else None,
        "error_msg": f"{record.error}: {record.message or ''}" if failed else "",
        **answer,
        **{"number_total_tokens": both, "number_output_tokens": tokens},
        "number_input_tokens": record.prompt_tokens,
        "inter_chunk_latency_s": statistics.fmean(waits) if waits else None,
    }


def _summary(
    raw: RawRun, arm: str, place: CellKey, records: Sequence[RequestRecord], answers: Sequence[Json]
) -> Json:
    """The flat summary of llmperf for one cell, then additional keys."""
    plan, opening = raw.plan, raw.sessions[0]
    tokens = [answer["number_input_tokens"] for answer in answers]
    tokens = [number for number in tokens if number is not None]
    completed = [answer for answer in answers if answer["error_code"] is None]
    failures = Counter(answer["error_code"] for answer in answers if answer["error_code"] is not None)
    busy_s = covered([(record.started_unix_s, _ended(record)) for record in records])
    written = sum(answer["number_output_tokens"] or 0 for answer in completed)
    results = {
        **{key: _spread([answer[key] for answer in completed]) for key in _SUMMARISED},
        "num_requests_started": len(answers),
        "error_rate": failures.total() / len(answers),
        "number_errors": failures.total(),
        "error_code_frequency": str(dict(failures.most_common())),
        "mean_output_throughput_token_per_s": written / busy_s if busy_s and written else None,
        "num_completed_requests": len(completed),
        "num_completed_requests_per_min": len(completed) / busy_s * 60 if busy_s else None,
    }
    return {
        **{"version": "2023-08-31", "name": "", "model": plan.model},
        "mean_input_tokens": round(statistics.fmean(tokens)) if tokens else 0,
        "stddev_input_tokens": round(statistics.stdev(tokens)) if len(tokens) > 1 else 0,
        **{"mean_output_tokens": plan.max_tokens, "stddev_output_tokens": 0},
        "num_concurrent_requests": place.load.concurrency,
        "rate_per_s": place.load.rate_per_s,
        **_flat("additional_sampling_params_", {"temperature": plan.temperature, **plan.extra_body}),
        **_flat("results_", results),
        **{"arm": arm, "class": place.class_, "experiment": plan.experiment, "run": opening.run},
        **{"provenance": opening.provenance, "schema_note": NOTE},
        "timestamp": int(max(map(_ended, records))),
    }


def _spread(values: Iterable[float | None]) -> Json:
    """Quantiles (linear), mean, extremes and sample deviation; null if there are too few values."""
    known, wanted = sorted(value for value in values if value is not None), (25, 50, 75, 90, 95, 99)
    found = np.percentile(known, wanted).tolist() if known else [None] * len(wanted)
    return {
        "quantiles": {f"p{q}": value for q, value in zip(wanted, found, strict=True)},
        "mean": statistics.fmean(known) if known else None,
        "min": known[0] if known else None,
        "max": known[-1] if known else None,
        "stddev": statistics.stdev(known) if len(known) > 1 else None,
    }


def _flat(prefix: str, content: Mapping[str, Any]) -> Json:
    """A flat dictionary: nested keys are joined with _."""
    flat: Json = {}
    for key, value in content.items():
        name = f"{prefix}{key}"
        flat |= _flat(f"{name}_", value) if isinstance(value, Mapping) else {name: value}
    return flat


def _ended(record: RequestRecord) -> float:
    return record.started_unix_s + (record.e2e_s or 0.0)


def slug(name: str) -> str:
    """`name` as a folder name. If characters are replaced, a hash is added, so that different names remain different."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
