"""What published results predict, against what a run measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmark.analyse.expectation import FILE_NAME, against_published
from benchmark.analyse.summary import summarise
from benchmark.errors import ResultsError
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from benchmark.show.terminal import render, render_all
from tests.benchmark.records import answered, emulated, raw_run

QUOTED = [{"text": "as published", "source": "a blog"}]


def of_arms(*plain: float | None) -> dict[str, Any]:
    """A file that expects so much time per token of `steady`: the value, and from what to what."""
    names = ("plain_tpot_s", "plain_tpot_low_s", "plain_tpot_high_s")
    steady = {"arm": "steady", **dict(zip(names, plain, strict=True))}
    step = {"step_over_plain": 1.2, "step_over_plain_low": 0.9, "step_over_plain_high": 1.5}
    return {"schema": 1, "arms": [steady, {**steady, "arm": "spec", "drafted": step}], "quoted": QUOTED}


def figure(**changes: Any) -> dict[str, Any]:
    plain = {"arm": "steady", "metric": "tpot_s", "classes": [], "concurrency": 2}
    return {**plain, "value": 0.1, "tolerance": 0.1, "source": "a table", **changes}


def answers(*more: RequestRecord, spread: float = 0.01, prompts: int = 6, **plan: Any) -> RawRun:
    """Time per output token of about 100 ms plain, of about 50 ms drafted at 2 tokens a step."""
    found = list(more)
    for pair in range(prompts):
        step = 0.1 * (1 + spread * (pair - 2.5))
        found.append(answered("steady", pair, chunk_s=(0.1, 0.1 + step, 0.1 + 2 * step)))
        found.append(answered("spec", pair, chunk_s=(0.1, 0.1 + step), chunk_tokens=(1, 2)))
    return raw_run(*found, **plan)


def told(folder: Path, raw: RawRun, content: object) -> dict[str, Any]:
    (folder / FILE_NAME).write_text(content if isinstance(content, str) else json.dumps(content))
    return against_published(folder, summarise(raw), raw)


def verdict(folder: Path, raw: RawRun, **changes: Any) -> dict[str, Any]:
    (entry,) = told(folder, raw, {"arms": [], "figures": [figure(**changes)]})["expectations"]
    return dict(entry)


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ((0.05, 0.04, 0.06), "4.0 times slower than its model, chips and length suggest"),
        ((0.21, 0.15, 0.25), "within that range"),
        ((0.4, 0.3, 0.5), "2.0 times faster"),
    ],
)
def test_an_arm_is_held_against_its_range_over_the_classes_of_the_largest_load(
    tmp_path: Path, expected: tuple[float, ...], words: str
) -> None:
    other_class = answered("steady", class_="raw", prompt_id="raw-0", pair_id="raw", chunk_s=(0.1, 0.5, 0.9))
    other_load = answered("steady", concurrency=1, chunk_s=(0.1, 4.5, 9.1))
    raw = answers(other_class, other_load, concurrency=[1, 2])
    plain, drafted = told(tmp_path, raw, of_arms(*expected))["expectations"]
    assert words in plain["text"]
    assert plain["measured"] == pytest.approx(0.2, rel=0.01)
    assert drafted["text"].startswith("a step of spec takes 1.0 plain ones")
    assert drafted["text"].endswith("within that range")


def test_what_cannot_be_expected_or_was_not_measured_is_left_out(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"expectations": [], "quoted": [], "drafts": {}}
    plain = raw_run(*(answered("steady", pair) for pair in range(6)))
    assert told(tmp_path, plain, of_arms(None, 0.1, None)) == {**nothing, "quoted": QUOTED}
    (tmp_path / FILE_NAME).unlink()
    assert against_published(tmp_path, summarise(plain), plain) == nothing


@pytest.mark.parametrize("text", ["{", "[]", '{"arms": [{"arm": "a", "plain_tpot_s": -1}]}'])
def test_a_file_of_another_form_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(ResultsError, match=r"expected\.json: is not an expectation") as refused:
        told(tmp_path, answers(), text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
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
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    found = verdict(tmp_path, answers(), **changes)
    assert (found["verdict"], found["origin"]) == (expected, "measured")
    assert found["text"].startswith(f"{expected}: ")
    assert "to be met within" in found["text"]
    assert found["text"].endswith("% (a table)")
    assert found["ci_low"] <= found["measured"] <= found["ci_high"]


@pytest.mark.parametrize(
    ("raw", "changes", "words"),
    [
        (answers(), {"arm": "nobody"}, "the arm was not measured"),
        (answers(), {"concurrency": 8}, "it was not measured"),
        (answers(), {"classes": ["raw"]}, "it was not measured"),
        (emulated(answers(), made_up={"steady": ["chat"]}), {}, "makes up the acceptance of chat"),
        (answers(prompts=3), {}, "too few prompts"),
        (answers(spread=0.2), {}, "a table"),
    ],
    ids=["arm", "load", "class", "made up", "prompts", "interval"],
)
def test_what_was_not_measured_or_has_too_wide_an_interval_tells_nothing(
    tmp_path: Path, raw: RawRun, changes: dict[str, Any], words: str
) -> None:
    found = verdict(tmp_path, raw, **changes)
    assert found["verdict"] == "cannot tell"
    assert words in found["text"]


def test_the_terminal_counts_the_figures_and_has_each_on_request(tmp_path: Path) -> None:
    raw = emulated(answers())
    figures = [figure(), figure(arm="spec", value=0.05), figure(value=0.12)]
    summary = summarise(raw) | told(tmp_path, raw, {"arms": [], "figures": figures})
    assert "Published figures (emulated): 2 reproduced, 1 not reproduced; --all has each." in render(summary)
    assert render_all(summary).count("reproduced (emulated): time per output token of") == 3
