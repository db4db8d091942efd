"""The published results as a person or a machine reads them, each beside what the others forecast for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from experiment.catalogue.models import Shape
from experiment.catalogue.published import DRAFTED, NOT_DENSE, PLAIN, Drafted, Plain
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
    """The tables, 100 columns wide at most; sources come last, by row."""
    by, inside, folds = published_forecaster(), _inside(), _folds()
    ratios, missed = left_out(inside), []
    for row in inside:
        step = folds[row.model.shape].plain(of_row(row))
        if not step.low_s <= row.tpot_s <= (step.high_s or 0):
            missed.append(row.row)
    widest = max(fold.high / fold.low for fold in folds.values())
    yield "QUOTED: published results of decoding on Trainium2; none was measured here."
    yield ""
    yield f"{'row':<10}  {'model':<32}  {'TP':>3} {'chips':>5} {'batch':>5} {'tokens':>6}  {'ms':>6}  {'bound':>5}  {'measured / forecast':>19}"
    for row in PLAIN:
        said = f"{ratios[row.row]:.2f}" if row.handicap is None else row.handicap
        yield (
            f"{row.row:<10}  {row.model.name[:32]:<32}  {row.tensor_parallel:>3} {row.chips:>5g} {row.batch:>5} "
            f"{row.compiled_tokens:>6}  {row.tpot_s * 1000:>6.2f}  {of_row(row).bound_s * 1000:>5.2f}  {said:>19}"
        )
    yield ""
    yield (
        f"step = weights / bandwidth + {by.fit.layer_s * 1000:.3f} ms x layers + {by.fit.cache_factor:.1f} x compiled "
        "key-value cache / bandwidth"
    )
    yield (
        f"Fitted to {len(inside)} rows; the range is {by.low:.2f} to {by.high:.2f} of the forecast. Forecast by the models of "
        f"other shapes,"
    )
    yield (
        f"{len(inside) - len(missed)} of {len(inside)} rows lie in the range that those give (not {', '.join(missed)}), which is "
        f"{widest:.2f} wide at most."
    )
    for handicap, text in BEYOND.items():
        rows = [row.row for row in PLAIN if row.handicap == handicap]
        yield f"Not forecast, {handicap} ({text}): {', '.join(rows) or 'no result is published'}."
    yield ""
    yield f"{'row':<5}  {'beside':<6}  {'mode':<6}  {'k':>2}  {'at once':>7}  {'plain ms':>8}  {'ms':>6}  {'tok/step':>8}  step / plain"
    for one in DRAFTED:
        tokens = "-" if one.tokens_per_step is None else f"{one.tokens_per_step:.2f}"
        ratio = (
            f"{one.step_ratio:.2f}" if one.step_ratio is not None else f"at most {one.most_step_ratio:.2f}"
        )
        yield (
            f"{one.row:<5}  {one.base or '-':<6}  {one.mode:<6}  {one.num_speculative_tokens:>2}  {one.concurrency:>7}  "
            f"{one.plain_tpot_s * 1000:>8.2f}  {one.tpot_s * 1000:>6.2f}  {tokens:>8}  {ratio}"
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
        "shape": asdict(row.model.shape) if row.model.confirmed != "experiment/catalogue/models.py" else None,
        "shape_confirmed": row.model.confirmed,
        "chips": row.chips,
        "bound_s": step.bound_s,
        "measured_over_forecast_of_others": ratio,
    }


def _marked(row: Plain | Drafted) -> str:
    unsure = isinstance(row, Plain) and row.model.confirmed is None
    return row.row + "*" * bool(row.derived) + "!" * unsure
