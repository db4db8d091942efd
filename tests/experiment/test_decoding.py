"""The forecast of a decode step, held to every published result."""

from __future__ import annotations

import statistics

import pytest

from experiment.catalogue.models import MODELS
from experiment.catalogue.published import (
    DRAFTED,
    NOT_DENSE,
    PLAIN,
    REFERENCE,
    REFERENCE_DRAFTED,
    SPEED_UP,
    Drafted,
    Plain,
)
from experiment.decoding import (
    LARGEST_BATCH,
    LONGEST_CONTEXT,
    Configuration,
    DraftedStep,
    Forecaster,
    PlainStep,
    forecaster,
    of_row,
    published_forecaster,
)

HEALTHY = [row for row in PLAIN if row.handicap is None]


def _without(row: Plain) -> PlainStep:
    """Forecast by the rows of all models of another shape: constants and range."""
    others = forecaster([other for other in PLAIN if other.model.shape != row.model.shape])
    return others.plain(of_row(row))


@pytest.fixture(scope="module")
def held_out() -> dict[str, PlainStep]:
    return {row.row: _without(row) for row in HEALTHY}


def test_no_row_is_dropped() -> None:
    """To make a forecast look better."""
    numbered = [f"P{n}" for n in (*range(1, 11), 15, 18, 19)]
    lengths = [
        f"{n}{k}-{length}" for n in (11, 12, 13, 14) for k in ("", "k") for length in ("short", "long")
    ]
    lengths += [f"16-{tokens}" for tokens in (2048, 4096, 8192, 16384, 32768)] + ["17-1024", "17-4096"]
    assert {row.row for row in PLAIN} == {*numbered, *(f"P{length}" for length in lengths)}
    drafted = "S1 S2 S3 S4 S5-1 S5-2 S5-3 S5-4 S5-5 S5-6 S6 S6-4 S7 S7-4 S8 S9"
    assert [row.row for row in DRAFTED] == drafted.split()
    assert (len(PLAIN), len(HEALTHY), len(NOT_DENSE)) == (36, 26, 4)


def test_nine_tenths_of_the_rows_lie_in_the_range_that_the_other_models_give(
    held_out: dict[str, PlainStep],
) -> None:
    inside = [row.row for row in HEALTHY if _holds(held_out[row.row], row)]
    assert len(inside) >= 0.9 * len(HEALTHY), sorted(held_out.keys() - set(inside))


def test_no_range_is_wider_than_a_factor_of_1_7(held_out: dict[str, PlainStep]) -> None:
    for name, step in held_out.items():
        assert step.high_s is not None
        assert step.high_s / step.low_s <= 1.7, name


def test_the_median_error_is_what_the_guide_says(held_out: dict[str, PlainStep]) -> None:
    errors = [abs((held_out[row.row].likely_s or 0) / row.tpot_s - 1) for row in HEALTHY]
    assert statistics.median(errors) < 0.07


def test_rows_of_the_fit_stand_inside_what_is_called_published() -> None:
    assert max(row.batch for row in HEALTHY) == LARGEST_BATCH
    assert max(row.compiled_tokens for row in HEALTHY) == LONGEST_CONTEXT


@pytest.mark.parametrize("row", [row for row in PLAIN if row.handicap], ids=lambda row: row.row)
def test_beyond_it_there_is_a_bound_and_no_value(row: Plain) -> None:
    step = published_forecaster().plain(of_row(row), row.handicap)
    assert step.likely_s is None
    assert step.high_s is None
    assert step.low_s == step.bound_s <= row.tpot_s
    assert "times the formula" in step.why
    assert row.row in step.rows


def test_batch_and_length_are_seen_without_being_told() -> None:
    for batch, compiled in ((LARGEST_BATCH + 1, 1024), (1, LONGEST_CONTEXT + 1)):
        step = published_forecaster().plain(_qwen(batch=batch, compiled_tokens=compiled))
        assert step.likely_s is None, step


def test_the_reference_baseline_is_several_times_slower_than_expected() -> None:
    step = published_forecaster().plain(of_row(REFERENCE))
    assert step.likely_s is not None
    assert step.high_s is not None
    assert 3.4 < REFERENCE.tpot_s / step.likely_s < 3.8
    assert (
        step.low_s < REFERENCE_DRAFTED.tpot_s < step.high_s
    )  # a healthy plain arm may beat what was published as drafted
    assert pytest.approx(3) == SPEED_UP


def test_the_reference_pair_breaks_even_at_half_its_window_on_a_healthy_baseline() -> None:
    step = _drafted(published_forecaster(), at_once=4)
    assert step.likely is not None
    assert step.likely == pytest.approx(3.5, abs=0.15)
    assert step.ceiling == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("row", DRAFTED, ids=lambda row: row.row)
def test_a_published_drafted_step_lies_in_the_range_of_its_mode(row: Drafted) -> None:
    plain = next((one for one in PLAIN if one.row == row.base), REFERENCE)
    draft = MODELS.get(row.draft.split(",")[0], plain.model.shape)
    step = published_forecaster().drafted(
        of_row(plain),
        mode=row.mode,
        draft=draft,
        num_speculative_tokens=row.num_speculative_tokens,
        at_once=row.concurrency,
    )
    if row.mode == "fused":  # tokens per step were not published: only that a step took at most so long
        assert step.low <= row.most_step_ratio
        assert (step.high is None) == (plain.handicap is not None and plain is not REFERENCE)
        return
    assert step.high is not None
    assert step.low <= row.most_step_ratio <= step.high


@pytest.mark.parametrize(
    ("mode", "k", "at_once"), [("eagle3", 3, 4), ("eagle3", 4, 1), ("dflash", 9, 2), ("eagle", 3, 1)]
)
def test_nothing_is_extrapolated_over_concurrency_window_or_mode(mode: str, k: int, at_once: int) -> None:
    step = published_forecaster().drafted(
        _qwen(),
        mode=mode,
        draft=MODELS["Qwen/Qwen3-1.7B"],
        num_speculative_tokens=k,
        at_once=at_once,
    )
    assert step.likely is None
    assert step.high is None
    assert f"mode {mode} is" in step.why


@pytest.mark.parametrize(("mode", "k", "at_once"), [("eagle3", 3, 1), ("dflash", 9, 1), ("fused", 7, 4)])
def test_where_a_plain_step_is_not_forecast_a_drafted_one_is_not_either(
    mode: str, k: int, at_once: int
) -> None:
    step = published_forecaster().drafted(
        _qwen(batch=16), mode=mode, draft=MODELS["Qwen/Qwen3-1.7B"], num_speculative_tokens=k, at_once=at_once
    )
    assert (step.likely, step.high) == (None, None)
    assert "times the formula" in step.why


def test_every_limit_that_is_passed_is_named() -> None:
    step = published_forecaster().plain(_qwen(batch=8, compiled_tokens=32_768))
    assert "more than 4 sequences" in step.why
    assert "more than 12,800 tokens" in step.why


def test_a_fused_step_at_more_requests_than_published_is_not_forecast() -> None:
    assert _drafted(published_forecaster(), at_once=8).likely is None


def test_shapes_are_compared_or_marked() -> None:
    for row in PLAIN:
        family = row.model
        assert family.confirmed is None or family.confirmed.startswith(("https://", "experiment/")), (
            family.name
        )


def _holds(step: PlainStep, row: Plain) -> bool:
    return step.high_s is not None and step.low_s <= row.tpot_s <= step.high_s


def _qwen(*, batch: int = 4, compiled_tokens: int = 1024) -> Configuration:
    return Configuration(
        shape=MODELS["Qwen/Qwen3-32B"], chips=8, batch=batch, compiled_tokens=compiled_tokens
    )


def _drafted(by: Forecaster, *, at_once: int) -> DraftedStep:
    return by.drafted(
        _qwen(), mode="fused", draft=MODELS["Qwen/Qwen3-1.7B"], num_speculative_tokens=7, at_once=at_once
    )
