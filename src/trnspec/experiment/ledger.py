"""The table of published results, with the forecast of each row from the models of other shapes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from trnspec.core.screen import table
from trnspec.core.words import count
from trnspec.experiment.arms import Experiment
from trnspec.experiment.catalogue.published import (
    DRAFTED,
    GPUS,
    LISTED,
    NOT_DENSE,
    PLAIN,
    Drafted,
    Gpu,
    Plain,
)
from trnspec.experiment.step_time import BEYOND, forecaster, left_out, of_row, published_forecaster

_INSIDE = [row for row in PLAIN if row.known_slowdown is None]
"""The rows that the forecast is fitted to."""


def ledger() -> dict[str, Any]:
    """Return every published row with its source as JSON; plain rows have the forecast from the other models."""
    by, ratios = published_forecaster(), left_out(_INSIDE)
    return {
        "schema": 1,
        "origin": "quoted",
        "fit": {
            "seconds_a_layer": by.fit.layer_s,
            "cache_factor": by.fit.cache_factor,
            "range": [by.low, by.high],
            "rows": list(by.rows),
        },
        "plain": [
            row._asdict()
            | {
                "model": row.model.name,
                "shape": None if row.model.confirmed == LISTED else asdict(row.model.shape),
                "shape_confirmed": row.model.confirmed,
                "bound_s": of_row(row).bound_s,
                "measured_over_forecast_of_others": ratios.get(row.row),
            }
            for row in PLAIN
        ],
        "drafted": [
            row._asdict() | {"step_ratio": row.step_ratio, "most_step_ratio": row.most_step_ratio}
            for row in DRAFTED
        ],
        "gpus": [row._asdict() for row in GPUS],
        "not_dense": [row._asdict() for row in NOT_DENSE],
    }


def ledger_lines() -> Iterator[str]:
    """Yield every published row as lines of text. The sources come last, by row."""
    by, ratios = published_forecaster(), left_out(_INSIDE)
    folds = {
        shape: forecaster(other for other in PLAIN if other.model.shape != shape)
        for shape in dict.fromkeys(row.model.shape for row in _INSIDE)
    }
    missed = []
    for row in _INSIDE:
        forecast = folds[row.model.shape].plain(of_row(row))
        if not forecast.low_s <= row.tpot_s <= (forecast.high_s or 0):
            missed.append(row.row)
    yield "QUOTED: published results of decoding on Trainium2; none was measured here."
    yield ""
    yield from table(
        ("row", "model", "TP", "chips", "batch", "tokens", "ms", "bound", "measured / forecast"),
        [
            (
                *(row.row, row.model.name, str(row.tensor_parallel), f"{row.chips:g}", str(row.batch)),
                *(str(row.compiled_tokens), f"{row.tpot_s * 1000:.2f}", f"{of_row(row).bound_s * 1000:.2f}"),
                f"{ratios[row.row]:.2f}" if row.known_slowdown is None else row.known_slowdown,
            )
            for row in PLAIN
        ],
        names={0, 1},
    )
    yield ""
    yield (
        f"Formula of the forecast: step = weights / bandwidth + {by.fit.layer_s * 1000:.3f} ms x layers + {by.fit.cache_factor:.1f} x compiled "
        "key-value cache / bandwidth"
    )
    rows, widest = len(_INSIDE), max(fold.high / fold.low for fold in folds.values())
    yield (
        f"Fitted to {rows} rows; measured times are {by.low:.2f} to {by.high:.2f} times the forecast. Check: each row was "
        f"predicted from the models of other shapes only. {rows - len(missed)} of {rows} rows are in the predicted range (not "
        f"{', '.join(missed)}). The widest range is a factor of {widest:.2f}."
    )
    for kind, text in BEYOND.items():
        beyond = ", ".join(row.row for row in PLAIN if row.known_slowdown == kind)
        yield f"Not forecast, {kind} ({text}): {beyond or 'no result is published'}."
    yield ""
    yield from table(
        ("row", "plain row", "mode", "k", "concurrency", "plain ms", "ms", "tok/step", "step / plain"),
        [
            (
                *(one.row, one.base or "-", one.mode, str(one.num_speculative_tokens), str(one.concurrency)),
                *(f"{one.plain_tpot_s * 1000:.2f}", f"{one.tpot_s * 1000:.2f}"),
                "-" if one.tokens_per_step is None else f"{one.tokens_per_step:.2f}",
                f"at most {one.most_step_ratio:.2f}" if one.step_ratio is None else f"{one.step_ratio:.2f}",
            )
            for one in DRAFTED
        ],
        names={0, 1, 2, 8},
    )
    yield ""
    yield from table(
        ("row", "model", "on GPUs", "$/hour", "concurrency", "tok/s", "$/M", "prefix cache", "draft"),
        [
            (
                *(row.row, row.model, row.instance, f"{row.usd_per_hour:.2f}", str(row.concurrency)),
                *(_range(*row.tokens_per_s), _range(*row.usd_per_million)),
                *("yes" if row.prefix_cache else "no", row.draft or "-"),
            )
            for row in GPUS
        ],
        names={0, 1, 2, 7, 8},
    )
    yield ""
    yield "No forecast for models with experts or with layers without attention. Published results of such models:"
    yield from (f"  {other.model}: {other.figures}" for other in NOT_DENSE)
    yield ""
    yield "Sources. *: partly derived from the figures of the source. !: the model's shape was not compared with its config.json."
    by_source: dict[str, list[str]] = {}
    everything: list[Plain | Drafted | Gpu] = [*PLAIN, *DRAFTED, *GPUS]
    for published in everything:
        by_source.setdefault(published.source, []).append(_marked(published))
    yield from (f"  {', '.join(rows)}: {source}" for source, rows in by_source.items())


def _marked(row: Plain | Drafted | Gpu) -> str:
    unsure = isinstance(row, Plain) and row.model.confirmed is None
    return row.row + "*" * bool(not isinstance(row, Gpu) and row.derived) + "!" * unsure


def _range(low: float, high: float, unit: str = "") -> str:
    return f"{unit}{low:g}" if low == high else f"{unit}{low:g} to {unit}{high:g}"


def beside_dollars(experiment: Experiment) -> list[dict[str, str]]:
    """Return notes that explain dollars per token, each with its source: the load at which arms and nodes are full, and what the same
    model costs on GPUs."""
    arms, node = experiment.instance.devices // experiment.baseline.serving.devices, experiment.instance.name
    sizes = [first.serving.max_num_seqs for first, *_ in experiment.by_batch]
    arm_full, node_full = (" or ".join(str(size * times) for size in sizes) for times in (1, arms))
    requests = "request" if arm_full == "1" else "requests"
    text = (
        f"An arm is full at {arm_full} concurrent {requests}, and a {node} ({count(arms, 'such arm')}) at {node_full}. With fewer requests a "
        "token costs more. With more, requests wait."
    )
    target = experiment.baseline.target.shape_of or experiment.baseline.target.model.name
    return [
        {"text": text, "source": "serving.max_num_seqs and serving.devices of the experiment's file"},
        *_on_gpus([row for row in GPUS if row.model == target], experiment.benchmark.concurrency),
    ]


def _on_gpus(rows: list[Gpu], loads: Iterable[int]) -> Iterator[dict[str, str]]:
    """Yield a line for each instance: the published loads nearest to the smallest and the largest of ours, and the largest published."""
    plain: dict[str, list[Gpu]] = {}
    for row in rows:
        if not (row.prefix_cache or row.draft):  # our prompts never meet a prefix cache
            plain.setdefault(row.instance, []).append(row)
    for instance, known in plain.items():
        nearest = [
            min(known, key=lambda row: abs(math.log(row.concurrency / load)))
            for load in (min(loads), max(loads))
        ]
        largest = max(known, key=lambda row: row.concurrency)
        first, *more = sorted({*nearest, largest}, key=lambda row: row.concurrency)
        others = [f", {_range(*row.usd_per_million, '$')} at {row.concurrency}" for row in more]
        yield {
            "text": f"{first.model.rpartition('/')[2]} on one {instance} (${first.usd_per_hour:.2f} an hour) is published to cost "
            f"{_range(*first.usd_per_million, '$')} per million output tokens at {count(first.concurrency, 'concurrent request')}"
            f"{''.join(others)}. That is without prefix cache, for prompts of {first.prompt_tokens} tokens and answers of {first.answer_tokens}.",
            "source": first.source,
        }
