"""The window for each load, and the schedule that vLLM takes."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.analyse.test_decision import run_of
from tests.benchmark.conftest import Captured, reported
from tests.benchmark.records import result_of, store
from tests.conftest import ROOT
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.analyse.result_parts import WindowAtLoad
from trnspec.benchmark.analyse.window_schedule import speculative_config, window_for, windows_by_load
from trnspec.benchmark.measure.raw_run import RawRun


def at(*pairs: tuple[int, int]) -> list[WindowAtLoad]:
    return [WindowAtLoad(concurrency=load, window=window) for load, window in pairs]


@pytest.mark.parametrize(
    ("windows", "ranges"),
    [
        (at((1, 7), (4, 7), (16, 3), (32, 0)), [[1, 4, 7], [5, 16, 3], [17, 32, 0]]),
        (at((1, 7), (8, 0)), [[1, 1, 7], [2, 8, 0]]),
        (at((1, 3), (8, 7), (16, 0)), [[1, 7, 3], [8, 8, 7], [9, 16, 0]]),
        (at((4, 5), (8, 5)), [[1, 8, 5]]),
    ],
)
def test_the_ranges_begin_at_one_and_leave_no_gap(
    windows: list[WindowAtLoad], ranges: list[list[int]]
) -> None:
    """What vLLM checks: a first range from 1, ranges that do not overlap."""
    config = speculative_config(windows)
    assert config is not None
    assert config["num_speculative_tokens_per_batch_size"] == ranges
    assert config["num_speculative_tokens"] == max(one.window for one in windows)
    assert all(later[0] == before[1] + 1 for before, later in pairwise(ranges))


def test_one_load_is_not_a_ladder() -> None:
    assert window_for((), 8).startswith("No window for a load: measure two loads or more")


def test_without_a_window_that_pays_there_is_nothing_to_add() -> None:
    assert speculative_config(at((1, 0), (8, 0))) is None


def ladder() -> RawRun:
    """Seven drafts are best alone, three with four requests, none with sixteen; two are as fast as three with four."""
    parts = {
        1: {"spec-k7": 3.0, "spec-k3": 2.0, "spec-k2": 1.8},
        4: {"spec-k7": 1.2, "spec-k3": 1.60, "spec-k2": 1.59},
        16: {"spec-k7": 0.5, "spec-k3": 0.8, "spec-k2": 0.85},
    }
    runs = [
        run_of(
            {arm: {"chat": gain} for arm, gain in gains.items()},
            prompts=16,
            loads=(load,),
            spread=0.05,
            max_tokens=200,
        )
        for load, gains in parts.items()
    ]
    plan = runs[0].plan.model_copy(update={"concurrency": tuple(parts)})
    requests = tuple(one for run in runs for one in run.requests)
    whole: Any = runs[0].with_plan(plan)
    return RawRun(whole.sessions, requests)


def test_each_load_has_its_window_and_where_it_cannot_be_told_the_smaller_one() -> None:
    result = result_of(ladder())
    windows = {one.concurrency: one for one in result.windows}
    assert {load: one.window for load, one in windows.items()} == {1: 7, 4: 2, 16: 0}
    assert windows[1].ratio == pytest.approx(3.0, rel=0.1)
    assert windows[1].cannot_tell == ""
    assert (
        windows_by_load(
            result.model_copy(update={"mix": [one for one in result.mix if one.concurrency == 1]})
        )
        == ()
    )


def test_a_load_that_cannot_tell_is_named_and_gets_the_smaller_window() -> None:
    gains = {"spec-k7": {"chat": 1.62}, "spec-k3": {"chat": 1.6}}
    raw = run_of(gains, prompts=16, loads=(1, 4), spread=0.2, max_tokens=200)
    for one in result_of(raw).windows:
        assert (one.window, one.arm) == (3, "spec-k3")
    told = [one.cannot_tell for one in result_of(raw).windows]
    assert "cannot tell whether spec-k7 is faster than spec-k3" in told


def test_a_report_writes_what_vllm_takes_and_the_window_for_a_load(tmp_path: Path, capsys: Captured) -> None:
    store(ladder(), tmp_path)
    main(["report", str(tmp_path)])
    said = capsys.readouterr().out
    schedule = '"num_speculative_tokens": 7, "num_speculative_tokens_per_batch_size": [[1, 1, 7], [2, 4, 2], [5, 16, 0]]'
    assert schedule in said
    assert "vllm#49548" in said
    for load, words in (
        (16, "For 16 concurrent requests: no drafts"),
        (3, "3 concurrent requests (measured with 4): 2 draft"),
    ):
        main(["report", str(tmp_path), "--load", str(load)])
        assert words in capsys.readouterr().out
    main(["report", str(tmp_path), "--load", "40"])
    assert "40 concurrent requests are more than the 16 that were measured." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (
            "e1-mid",
            "Next window: serve drafted with 1 draft token and measure again. Predicted: 0.32 to 1.70 times as fast",
        ),
        ("e4-k1", "Next window: keep 1 draft token with k1. No other window that is known is faster."),
        (
            "e5-aa",
            "Next window: unknown. No arm is declared to draft; if one does, add its draft tokens, for example",
        ),
    ],
)
def test_a_report_ends_with_the_window_to_try_next_or_with_what_is_missing(
    tmp_path: Path, capsys: Captured, run: str, told: str
) -> None:
    recorded = gzip.decompress((ROOT / f"tests/data/h200/{run}/requests.jsonl.gz").read_bytes())
    (tmp_path / "requests.jsonl").write_bytes(recorded)
    assert reported(tmp_path)
    *_, last = capsys.readouterr().out.split("\n\n")
    assert " ".join(last.split()).startswith(told)
