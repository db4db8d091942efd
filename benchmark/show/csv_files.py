"""A run as three CSV files: its requests, its cells and its comparisons.

Times are in seconds, an empty field is an unknown value. Text that a spreadsheet would take for a formula
gets an apostrophe in front: names come from the plan, but finish reasons come from a server.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.analyse.stats import PERCENTILES
from benchmark.analyse.values import request_values
from benchmark.file_access import write_whole
from benchmark.measure.journal import RawRun
from benchmark.measure.records import to_json
from benchmark.metrics import METRICS

_OF_REQUEST = tuple(
    metric.name for metric in METRICS if metric.scope == "request" and metric.unit != "requests"
)
_OF_CELL = tuple(metric.name for metric in METRICS if metric.name in _OF_REQUEST or metric.scope == "chunk")
_PLACE = ("class", "concurrency", "rate_per_s")
REQUEST_COLUMNS = (
    *(
        "run",
        "arm",
        *_PLACE,
        "round",
        "start",
        "block",
        "phase",
        "counts",
        "pair_id",
        "prompt_id",
        "started_unix_s",
    ),
    *_OF_REQUEST,
    *("prompt_tokens", "cached_tokens", "completion_tokens", "token_source", "finish_reason", "error"),
)
_STATISTICS = ("mean", *(f"p{percent}" for percent in PERCENTILES))
CELL_COLUMNS = (
    *("arm", *_PLACE, "n", "errors", "error_rate"),
    *(f"{name}_{statistic}" for name in _OF_CELL for statistic in _STATISTICS),
    *("acceptance_tokens_per_step", "acceptance_source", "equal_outputs", "paired_outputs"),
    *("goodput_per_s", "goodput_share", "usd_per_hour", "usd_per_million_output_tokens", "objective"),
)
COMPARISON_COLUMNS = (
    *(*_PLACE, "baseline", "treatment", "metric", "ratio", "ci_low", "ci_high", "n_pairs", "n_prompts"),
    *("verdict", "p_value", "p_holm", "detectable_ratio"),
    *("error_rate_baseline", "error_rate_treatment", "warning"),
)


def write(raw: RawRun, summary: Mapping[str, Any], folder: Path) -> list[Path]:
    """The three files in `folder`. Raises StorageError."""
    files = (
        ("requests.csv", REQUEST_COLUMNS, _requests(raw)),
        ("cells.csv", CELL_COLUMNS, _cells(summary)),
        ("comparisons.csv", COMPARISON_COLUMNS, map(_comparison, summary["comparisons"])),
    )
    return [write_whole(folder / name, _text(columns, rows)) for name, columns, rows in files]


def _requests(raw: RawRun) -> Iterable[Mapping[str, Any]]:
    arms = {arm.name: arm for arm in raw.plan.arms}
    for record in raw.requests:
        yield {
            **to_json(record),
            "counts": int(record.phase == "measured" and raw.counts(record)),
            **dict.fromkeys(_OF_REQUEST),
            **request_values(record, arms[record.arm].max_tokens_per_step),
        }


def _cells(summary: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Each with whether its arm meets the objective at its load, over all classes."""
    of = ("arm", "concurrency", "rate_per_s")
    told = {tuple(map(row.get, of)): row["outcome"] for row in summary["objectives"]}
    return (_cell(cell) | {"objective": told.get(tuple(map(cell.get, of)))} for cell in summary["cells"])


def _cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    spreads = {
        f"{name}_{statistic}": cell[name][statistic]
        for name in _OF_CELL
        if cell.get(name)
        for statistic in _STATISTICS
    }
    equality, goodput = cell["output_equality"] or {}, cell["goodput"] or {}
    return {
        **cell,
        **spreads,
        "acceptance_tokens_per_step": cell["acceptance"]["tokens_per_step"],
        "acceptance_source": cell["acceptance"]["source"],
        "equal_outputs": equality.get("equal"),
        "paired_outputs": equality.get("n_pairs"),
        "goodput_per_s": goodput.get("per_s"),
        "goodput_share": goodput.get("share"),
        **(cell["cost"] or {}),
    }


def _comparison(comparison: Mapping[str, Any]) -> Mapping[str, Any]:
    baseline, treatment = comparison["error_rates"]
    return {**comparison, "error_rate_baseline": baseline, "error_rate_treatment": treatment}


def _text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_field(row.get(column)) for column in columns] for row in rows)
    return out.getvalue()


def _field(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value
