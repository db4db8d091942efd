"""What published results let expect, against what a run measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmark.analyse.expectation import FILE_NAME, against_published
from benchmark.errors import ResultsError

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
    plain, drafted = against_published(tmp_path, _summary(*p50_s))["expectations"]
    assert words in plain["text"]
    assert plain["measured"] == pytest.approx(0.045 if p50_s[0] > 0.04 else plain["measured"])
    assert drafted["text"].startswith("a step of drafted takes 2.1 plain ones")
    assert drafted["text"].endswith("within that range")


def test_what_cannot_be_expected_or_was_not_measured_is_left_out(tmp_path: Path) -> None:
    _file(tmp_path, plain_tpot_s=None, plain_tpot_high_s=None)
    assert against_published(tmp_path, _summary(0.045, ratio=None)) == {
        "expectations": [],
        "quoted": [{"text": "as published", "source": "a blog"}],
        "drafts": {},
    }
    (tmp_path / FILE_NAME).unlink()
    assert against_published(tmp_path, _summary(0.045)) == {"expectations": [], "quoted": [], "drafts": {}}


@pytest.mark.parametrize("text", ["{", "[]", '{"arms": [{"arm": "a", "plain_tpot_s": -1}]}'])
def test_a_file_of_another_form_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text, encoding="utf-8")
    with pytest.raises(ResultsError, match=r"expected\.json: is not an expectation") as refused:
        against_published(tmp_path, _summary(0.045))
    assert "\n" not in str(refused.value)
