"""What published results let expect, against what a run measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmark.analyse.expectation import FILE_NAME, against_published
from benchmark.analyse.summary import summarise
from benchmark.errors import ResultsError
from benchmark.measure.journal import RawRun
from benchmark.show.terminal import render, render_all
from tests.benchmark.records import answered, emulated, raw_run

RAW = raw_run()
RANGE = {"step_over_plain": 3.5, "step_over_plain_low": 1.1, "step_over_plain_high": 4.4}


def _file(folder: Path, **of_plain: Any) -> None:
    plain = {"plain_tpot_s": 0.0126, "plain_tpot_low_s": 0.0109, "plain_tpot_high_s": 0.0172, **of_plain}
    arms = [{"arm": "plain", **plain}, {"arm": "drafted", **plain, "drafted": RANGE}]
    quoted = [{"text": "as published", "source": "a blog"}]
    (folder / FILE_NAME).write_text(
        json.dumps({"schema": 1, "arms": arms, "quoted": quoted}), encoding="utf-8"
    )


def _summary(*p50_s: float, ratio: float | None = 2.1) -> dict[str, Any]:
    cells = [
        {"arm": "plain", "class": str(number), "concurrency": 4, "tpot_s": {"p50": value}}
        for number, value in enumerate(p50_s)
    ]
    cells.append({"arm": "plain", "class": "0", "concurrency": 1, "tpot_s": {"p50": 9.0}})
    return {
        "cells": cells,
        "explanations": [{"treatment": "drafted", "concurrency": 4, "step_time_ratio": ratio}],
    }


@pytest.mark.parametrize(
    ("p50_s", "words"),
    [
        ((0.045, 0.045), "3.6 times slower than its model, chips and length suggest"),
        ((0.012, 0.014), "within that range"),
        ((0.006,), "2.1 times faster"),
    ],
)
def test_a_plain_arm_is_held_against_its_range(tmp_path: Path, p50_s: tuple[float, ...], words: str) -> None:
    _file(tmp_path)
    plain, drafted = against_published(tmp_path, _summary(*p50_s), RAW)["expectations"]
    assert words in plain["text"]
    assert plain["measured"] == pytest.approx(0.045 if p50_s[0] > 0.04 else plain["measured"])
    assert drafted["text"].startswith("a step of drafted takes 2.1 plain ones")
    assert drafted["text"].endswith("within that range")


def test_what_cannot_be_expected_or_was_not_measured_is_left_out(tmp_path: Path) -> None:
    _file(tmp_path, plain_tpot_s=None, plain_tpot_high_s=None)
    nothing: dict[str, Any] = {"expectations": [], "quoted": [], "drafts": {}}
    quoted = [{"text": "as published", "source": "a blog"}]
    assert against_published(tmp_path, _summary(0.045, ratio=None), RAW) == {**nothing, "quoted": quoted}
    (tmp_path / FILE_NAME).unlink()
    assert against_published(tmp_path, _summary(0.045), RAW) == nothing


@pytest.mark.parametrize("text", ["{", "[]", '{"arms": [{"arm": "a", "plain_tpot_s": -1}]}'])
def test_a_file_of_another_form_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text, encoding="utf-8")
    with pytest.raises(ResultsError, match=r"expected\.json: is not an expectation") as refused:
        against_published(tmp_path, _summary(0.045), RAW)
    assert "\n" not in str(refused.value)


def _answers(spread: float = 0.01, prompts: int = 6) -> RawRun:
    """Time per output token of about 100 ms plain, of about 50 ms drafted at 2 tokens a step."""
    found = []
    for pair in range(prompts):
        step = 0.1 * (1 + spread * (pair - 2.5))
        found.append(answered("steady", pair, chunk_s=(0.1, 0.1 + step, 0.1 + 2 * step)))
        found.append(answered("spec", pair, chunk_s=(0.1, 0.1 + step), chunk_tokens=(1, 2)))
    return raw_run(*found)


def _figure(**changes: Any) -> dict[str, Any]:
    plain = {"arm": "steady", "metric": "tpot_s", "classes": [], "concurrency": 2}
    return {**plain, "value": 0.1, "tolerance": 0.1, "source": "a table", **changes}


def _verdict(folder: Path, raw: RawRun, **changes: Any) -> dict[str, Any]:
    (folder / FILE_NAME).write_text(
        json.dumps({"arms": [], "figures": [_figure(**changes)]}), encoding="utf-8"
    )
    summary = {**_summary(0.1), "run": {"provenance": raw.sittings[0].provenance}}
    (entry,) = against_published(folder, summary, raw)["expectations"]
    return dict(entry)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "reproduced"),
        ({"value": 0.12}, "not reproduced"),
        ({"value": 0.105, "tolerance": 0.05}, "cannot tell"),
        ({"arm": "spec", "value": 0.05}, "reproduced"),
        ({"arm": "spec", "metric": "speed_up", "value": 2.0}, "reproduced"),
        ({"arm": "spec", "metric": "speed_up", "value": 3.0}, "not reproduced"),
        ({"arm": "spec", "metric": "tokens_per_step", "value": 2.0, "classes": ["chat"]}, "reproduced"),
        ({"arm": "spec", "metric": "tokens_per_step", "value": 3.2}, "not reproduced"),
    ],
)
def test_a_published_figure_is_met_where_the_interval_lies_within_its_tolerance(
    tmp_path: Path, changes: dict[str, Any], verdict: str
) -> None:
    found = _verdict(tmp_path, _answers(), **changes)
    assert (found["verdict"], found["origin"]) == (verdict, "measured")
    assert found["text"].startswith(f"{verdict}: ")
    assert "to be met within" in found["text"]
    assert found["text"].endswith("% (a table)")
    assert found["ci_low"] <= found["measured"] <= found["ci_high"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arm": "nobody"}, "the arm was not measured"),
        ({"concurrency": 8}, "it was not measured"),
        ({"classes": ["raw"]}, "it was not measured"),
    ],
)
def test_what_was_not_measured_or_has_too_wide_an_interval_tells_nothing(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    found = _verdict(tmp_path, _answers(), **changes)
    assert (found["verdict"], found["measured"]) == ("cannot tell", None)
    assert words in found["text"]
    assert "too few prompts" in _verdict(tmp_path, _answers(prompts=3))["text"]
    assert _verdict(tmp_path, _answers(spread=0.2))["verdict"] == "cannot tell"


def test_an_emulated_run_is_labelled_and_what_it_makes_up_is_not_judged(tmp_path: Path) -> None:
    raw = emulated(_answers(), made_up={"steady": ["chat"]})
    found = _verdict(tmp_path, raw)
    assert (found["verdict"], found["measured"]) == ("cannot tell", None)
    assert "makes up the acceptance of chat" in found["text"]


def test_the_terminal_counts_the_figures_and_has_each_on_request(tmp_path: Path) -> None:
    raw = emulated(_answers())
    figures = [_figure(), _figure(arm="spec", value=0.05), _figure(value=0.12)]
    (tmp_path / FILE_NAME).write_text(json.dumps({"arms": [], "figures": figures}), encoding="utf-8")
    summary = summarise(raw)
    summary |= against_published(tmp_path, summary, raw)
    assert "Published figures (emulated): 2 reproduced, 1 not reproduced; --all has each." in render(summary)
    assert render_all(summary).count("reproduced (emulated): time per output token of") == 3
