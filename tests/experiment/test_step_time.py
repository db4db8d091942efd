"""The forecast of a decode step, held to every published result."""

from __future__ import annotations

import re
import statistics

import pytest

from trnspec.experiment.catalogue.models import MODELS
from trnspec.experiment.catalogue.published import (
    DRAFTED,
    NOT_DENSE,
    PLAIN,
    REFERENCE,
    REFERENCE_DRAFTED,
    Drafted,
    Plain,
)
from trnspec.experiment.step_time import (
    MAX_BATCH,
    MAX_CONTEXT,
    DraftedStep,
    PlainEngine,
    forecaster,
    of_row,
    published_forecaster,
)

HEALTHY = [row for row in PLAIN if row.known_slowdown is None]
QWEN = PlainEngine(shape=MODELS["Qwen/Qwen3-32B"], chips=8, batch=4, compiled_tokens=1024)
FORECAST = published_forecaster()


def _drafted(mode: str, k: int, at_once: int, target: PlainEngine = QWEN) -> DraftedStep:
    draft = MODELS["Qwen/Qwen3-1.7B"]
    return FORECAST.drafted(target, mode=mode, draft=draft, num_speculative_tokens=k, at_once=at_once)


def test_no_row_is_dropped() -> None:
    """To make a forecast look better."""
    for rows, known in ((PLAIN, 36), (HEALTHY, 26), (DRAFTED, 16), (NOT_DENSE, 4)):
        assert len(rows) >= known
    assert len({row.row for row in PLAIN} | {row.row for row in DRAFTED}) == len(PLAIN) + len(DRAFTED)


@pytest.mark.parametrize("row", PLAIN, ids=lambda row: row.row)
def test_a_row_of_nxd_inference_reads_the_first_bucket_that_holds_its_request(row: Plain) -> None:
    """Powers of two from 128, or what its source lists (P8, P9); where no lengths are published, its source's word is taken."""
    nxd = row.stack.startswith(("NxD", "vLLM V0"))
    lengths = re.fullmatch(r"(\d+) / (\d+)", row.lengths)
    if nxd and lengths:
        holds = sum(map(int, lengths.groups()))
        assert row.compiled_tokens == next(2**power for power in range(7, 20) if 2**power >= holds)


def test_a_model_is_forecast_by_the_others_as_well_as_the_guide_says() -> None:
    """By the rows of all models of another shape: constants and range."""
    missed, errors = [], []
    for row in HEALTHY:
        others = forecaster([other for other in PLAIN if other.model.shape != row.model.shape])
        step = others.plain(of_row(row))
        assert step.likely_s is not None
        assert step.high_s is not None
        assert step.high_s / step.low_s <= 1.7, row.row
        errors.append(abs(step.likely_s / row.tpot_s - 1))
        if not step.low_s <= row.tpot_s <= step.high_s:
            missed.append(row.row)
    assert len(missed) <= 0.1 * len(HEALTHY), missed
    assert statistics.median(errors) < 0.07


def test_beyond_the_rows_of_the_fit_there_is_a_bound_and_no_value_and_every_limit_is_named() -> None:
    assert max(row.batch for row in HEALTHY) == MAX_BATCH == 4
    assert max(row.compiled_tokens for row in HEALTHY) == MAX_CONTEXT == 12_800
    for row in PLAIN:
        if row.known_slowdown:
            step = FORECAST.plain(of_row(row), row.known_slowdown)
            assert (step.likely_s, step.high_s) == (None, None)
            assert step.low_s == step.bound_s <= row.tpot_s
            assert "times the formula" in step.why
            assert row.row in step.rows
    for batch, compiled, said in ((4, 12_800, 0), (5, 12_800, 1), (4, 12_801, 1), (5, 12_801, 2)):
        step = FORECAST.plain(QWEN._replace(batch=batch, compiled_tokens=compiled))
        assert (step.likely_s is None) == bool(said)
        assert ("more than 4 sequences" in step.why) + ("more than 12,800 tokens" in step.why) == said


def test_the_reference_is_several_times_slower_than_expected_and_its_pair_would_break_even_at_half_its_window() -> (
    None
):
    step = FORECAST.plain(of_row(REFERENCE))
    assert step.likely_s is not None
    assert step.high_s is not None
    assert 3.4 < REFERENCE.tpot_s / step.likely_s < 3.8
    assert step.low_s < REFERENCE_DRAFTED.tpot_s < step.high_s, (
        "a healthy plain arm may beat what was published as drafted"
    )
    drafted = _drafted("fused", 7, at_once=4)
    assert drafted.likely == pytest.approx(3.5, abs=0.15)
    assert drafted.ceiling == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("row", DRAFTED, ids=lambda row: row.row)
def test_a_published_drafted_step_lies_in_the_range_of_its_mode(row: Drafted) -> None:
    plain = next((one for one in PLAIN if one.row == row.base), REFERENCE)
    draft = MODELS.get(row.draft.split(",")[0], plain.model.shape)
    step = FORECAST.drafted(
        of_row(plain),
        mode=row.mode,
        draft=draft,
        num_speculative_tokens=row.num_speculative_tokens,
        at_once=row.concurrency,
    )
    if row.mode == "fused":  # tokens per step were not published: only that a step took at most so long
        assert step.low <= row.most_step_ratio
        assert (step.high is None) == (plain.known_slowdown is not None and plain is not REFERENCE)
        return
    assert step.high is not None
    assert step.low <= row.most_step_ratio <= step.high


@pytest.mark.parametrize(
    ("mode", "k", "at_once"),
    [
        ("eagle3", 3, 4),
        ("eagle3", 4, 1),
        ("dflash", 9, 2),
        ("eagle", 3, 1),
        ("fused", 7, 8),
        ("fused", 16, 4),
    ],
)
def test_nothing_is_extrapolated_over_concurrency_window_or_mode(mode: str, k: int, at_once: int) -> None:
    step = _drafted(mode, k, at_once)
    assert (step.likely, step.high) == (None, None)
    assert f"mode {mode} is published" in step.why


@pytest.mark.parametrize(("mode", "k", "at_once"), [("eagle3", 3, 1), ("dflash", 9, 1), ("fused", 7, 4)])
def test_where_a_plain_step_is_not_forecast_a_drafted_one_is_not_either(
    mode: str, k: int, at_once: int
) -> None:
    assert _drafted(mode, k, at_once).likely is not None
    step = _drafted(mode, k, at_once, QWEN._replace(batch=16))
    assert (step.likely, step.high) == (None, None)
    assert "times the formula" in step.why
