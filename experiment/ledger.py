"""The published results as a person or a machine reads them, each beside what the others forecast for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from core.screen import folded, table
from experiment.catalogue.models import Shape
from experiment.catalogue.published import DRAFTED, LISTED, NOT_DENSE, PLAIN, Drafted, Plain
from experiment.decoding import BEYOND, Forecaster, forecaster, left_out, of_row, published_forecaster


def as_json() -> dict[str, Any]:
    """Every row with its source; plain rows with the forecast of the other models."""
    by, ratios = published_forecaster(), left_out(_inside())
    return {
        "schema": 1,
        "origin": "quoted",
        "fit": {
            "seconds_a_layer": by.fit.layer_s,
            "cache_factor": by.fit.cache_factor,
            "range": [by.low, by.high],
            "rows": list(by.rows),
        },
        "plain": [_plain_as_json(row, ratios.get(row.row)) for row in PLAIN],
        "drafted": [
            asdict(row) | {"step_ratio": row.step_ratio, "most_step_ratio": row.most_step_ratio}
            for row in DRAFTED
        ],
        "not_dense": [asdict(row) for row in NOT_DENSE],
    }


def as_lines() -> Iterator[str]:
    """Lines for a person, as wide as the terminal."""
    yield from folded(_lines())


def _lines() -> Iterator[str]:
    """The tables; sources come last, by row."""
    by, inside, folds = published_forecaster(), _inside(), _folds()
    ratios, missed = left_out(inside), []
    for row in inside:
        step = folds[row.model.shape].plain(of_row(row))
        if not step.low_s <= row.tpot_s <= (step.high_s or 0):
            missed.append(row.row)
    widest = max(fold.high / fold.low for fold in folds.values())
    yield "QUOTED: published results of decoding on Trainium2; none was measured here."
    yield ""
    yield from table(
        ("row", "model", "TP", "chips", "batch", "tokens", "ms", "bound", "measured / forecast"),
        [
            (
                *(row.row, row.model.name, str(row.tensor_parallel), f"{row.chips:g}", str(row.batch)),
                *(str(row.compiled_tokens), f"{row.tpot_s * 1000:.2f}", f"{of_row(row).bound_s * 1000:.2f}"),
                f"{ratios[row.row]:.2f}" if row.handicap is None else row.handicap,
            )
            for row in PLAIN
        ],
        names={0, 1},
    )
    yield ""
    yield (
        f"step = weights / bandwidth + {by.fit.layer_s * 1000:.3f} ms x layers + {by.fit.cache_factor:.1f} x compiled "
        "key-value cache / bandwidth"
    )
    yield (
        f"Fitted to {len(inside)} rows; the range is {by.low:.2f} to {by.high:.2f} of the forecast. Forecast by the models of "
        f"other shapes, {len(inside) - len(missed)} of {len(inside)} rows lie in the range that those give (not {', '.join(missed)}), which is "
        f"{widest:.2f} wide at most."
    )
    for handicap, text in BEYOND.items():
        rows = [row.row for row in PLAIN if row.handicap == handicap]
        yield f"Not forecast, {handicap} ({text}): {', '.join(rows) or 'no result is published'}."
    yield ""
    yield from table(
        ("row", "beside", "mode", "k", "at once", "plain ms", "ms", "tok/step", "step / plain"),
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
    yield "No forecast for models with experts or layers without attention; published for them:"
    for other in NOT_DENSE:
        yield f"  {other.model}: {other.figures}"
    yield ""
    yield "Sources; * a part was derived from the source's figures, ! the model's shape was not compared with a configuration"
    for source in dict.fromkeys([*(row.source for row in PLAIN), *(row.source for row in DRAFTED)]):
        rows = [_marked(row) for row in PLAIN if row.source == source]
        rows += [_marked(row) for row in DRAFTED if row.source == source]
        yield f"  {', '.join(rows)}: {source}"


def _inside() -> list[Plain]:
    return [row for row in PLAIN if row.handicap is None]


def _folds() -> dict[Shape, Forecaster]:
    """For each shape the forecaster of all other shapes."""
    return {
        shape: forecaster(other for other in PLAIN if other.model.shape != shape)
        for shape in dict.fromkeys(row.model.shape for row in _inside())
    }


def _plain_as_json(row: Plain, ratio: float | None) -> dict[str, Any]:
    step = published_forecaster().plain(of_row(row), row.handicap)
    return asdict(row) | {
        "model": row.model.name,
        "shape": asdict(row.model.shape) if row.model.confirmed != LISTED else None,
        "shape_confirmed": row.model.confirmed,
        "chips": row.chips,
        "bound_s": step.bound_s,
        "measured_over_forecast_of_others": ratio,
    }


def _marked(row: Plain | Drafted) -> str:
    unsure = isinstance(row, Plain) and row.model.confirmed is None
    return row.row + "*" * bool(row.derived) + "!" * unsure
