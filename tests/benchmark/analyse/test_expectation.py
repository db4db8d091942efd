"""What published results predict, against what a run measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmark.analyse.beside import EXPECTED, against_published
from benchmark.analyse.decision import decide
from benchmark.analyse.summary import summarise
from benchmark.errors import ResultsError
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from benchmark.show.page import render as render_page
from benchmark.show.pictures import forecast
from benchmark.show.text import render, render_all, said
from tests.benchmark.conftest import plan_content
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
    (folder / EXPECTED).write_text(content if isinstance(content, str) else json.dumps(content))
    return against_published(folder, summarise(raw), raw)


def verdict(folder: Path, raw: RawRun, **changes: Any) -> dict[str, Any]:
    (entry,) = told(folder, raw, {"arms": [], "figures": [figure(**changes)]})["expectations"]
    return dict(entry)


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ((0.05, 0.04, 0.06), "range 40 to 60: above the range, by a factor of 4.0 from the forecast"),
        ((0.21, 0.15, 0.25), "forecast from published results 210, range 150 to 250: within the range"),
        ((0.4, 0.3, 0.5), "below the range, by a factor of 2.0 from the forecast"),
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
    assert plain["text"].startswith("steady: time per output token, ms, lower is better: measured 2")
    assert drafted["text"].startswith(
        "spec: decode step with drafts, plain steps, lower is better: measured 1; "
    )
    assert drafted["text"].endswith("within the range")


def test_what_cannot_be_expected_or_was_not_measured_is_left_out(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {
        "expectations": [],
        "quoted": [],
        "drafts": {},
        "hardware": {},
        "predicted_cost": {},
    }
    plain = raw_run(*(answered("steady", pair) for pair in range(6)))
    assert told(tmp_path, plain, of_arms(None, 0.1, None)) == {**nothing, "quoted": QUOTED}
    (tmp_path / EXPECTED).unlink()
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
    assert found["text"].startswith({"cannot tell": "inconclusive"}.get(expected, expected) + ": ")
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


FIGURES = [
    figure(),
    figure(arm="spec", metric="speed_up", value=3.0),
    figure(arm="spec", metric="speed_up", value=1.0),
    figure(classes=["raw"]),
]
COLOURS = {
    "reproduced": "equivalent",
    "not reproduced, worse": "slower",
    "not reproduced, better": "faster",
    "inconclusive": "not-shown",
    "worse": "slower",
    "within the range": "equivalent",
}


def test_each_row_against_the_forecast_has_its_own_quantity_direction_and_bounds(tmp_path: Path) -> None:
    content = {**of_arms(0.05, 0.04, 0.06), "figures": FIGURES}
    raw = answers()
    summary = summarise(raw) | told(tmp_path, raw, content)
    drawn = forecast(summary["expectations"])
    assert drawn
    rows = [tuple(field.replace("\N{NO-BREAK SPACE}", " ") for field in row) for row in drawn.table.rows]
    tpot, speed_up = "time per output token, ms, lower is better", "speed-up, higher is better"
    assert [(arm, quantity, *rest) for arm, quantity, _, *rest in rows] == [
        ("steady", f"{tpot}: all classes, 2 at a time", "100", "90 to 110 (tolerance)", "reproduced"),
        (
            "spec",
            f"{speed_up}: all classes, 2 at a time",
            "3",
            "2.7 to 3.3 (tolerance)",
            "not reproduced, worse",
        ),
        (
            "spec",
            f"{speed_up}: all classes, 2 at a time",
            "1",
            "0.9 to 1.1 (tolerance)",
            "not reproduced, better",
        ),
        ("steady", f"{tpot}: raw, 2 at a time", "100", "90 to 110 (tolerance)", "inconclusive"),
        ("steady", tpot, "50", "40 to 60 (forecast range)", "worse"),
        (
            "spec",
            "decode step with drafts, plain steps, lower is better",
            "1.2",
            "0.9 to 1.5 (forecast range)",
            "within the range",
        ),
    ]
    assert [lane.kind for lane in drawn.lanes] == [COLOURS[row[-1]] for row in rows]
    (values,) = {row[2] for row in rows[1:3]}
    assert re.fullmatch(r"(1\.99|2) \[\S+, \S+\]", values)
    assert "1 of 4 published figures reproduced, 2 not reproduced, 1 inconclusive" in " ".join(
        render(summary).split()
    )
    assert render_all(summary).count("Expected: ") == 6
    page = render_page(raw, summary)
    for word in ("within the bounds", "better", "worse", "inconclusive"):
        assert re.search(rf'style="--c: var\(--\w+\)"><svg[^>]*><path[^>]*/></svg> {word}</span>', page), word
    assert "cost of a step" not in page.partition('id="forecast"')[2]


def test_an_emulated_run_is_not_held_against_what_the_emulator_is_made_from(tmp_path: Path) -> None:
    raw = emulated(answers())
    summary = summarise(raw) | told(tmp_path, raw, {**of_arms(0.05, 0.04, 0.06), "figures": FIGURES})
    section = render_page(raw, summary).partition('id="forecast"')[2].partition("</section>")[0]
    assert "the comparison would be circular." in section
    assert not re.search(r"svg|<table|measured|reproduced", section)
    for text in (render(summary), render_all(summary)):
        assert "the comparison would be circular." in " ".join(text.split())
        assert "reproduced" not in text


def test_the_page_says_on_which_chips_at_which_load_for_how_long_answers_and_when(tmp_path: Path) -> None:
    raw, content = answers(max_tokens=7), of_arms(0.05, 0.04, 0.06)
    for arm in content["arms"]:
        arm |= {"instance": "trn2.48xlarge", "chips": 8}
    summary = summarise(raw) | told(tmp_path, raw, content)
    conditions = {
        "Hardware": "trn2.48xlarge, 8 chips for each arm",
        "Load": "2 at a time",
        "Answers": "median 3, at most 7 tokens",
        "Date": "2026-09-21",
    }
    header = render_page(raw, summary).partition("</header>")[0]
    for name, text in conditions.items():
        assert f"<strong>{name}</strong> {text}" in header
    content["arms"][1] |= {"chips": 1}
    other = summarise(emulated(raw)) | told(tmp_path, raw, content)
    unlike = "emulated trn2.48xlarge, 8 chips for steady; trn2.48xlarge, 1 chip for spec"
    assert said("hardware", other) == unlike
    assert said("hardware", summarise(raw)) == "", "an older run"


@pytest.mark.parametrize("origin", ["measured", "emulated"])
def test_the_page_says_why_a_token_costs_otherwise_than_the_forecast_says(
    tmp_path: Path, origin: str
) -> None:
    """An hour costs $3.6: at 25 ms and two at a time 80 tokens a second, $12.50 a million."""
    arms = [{**arm, "usd_per_hour": 3.6} for arm in plan_content()["arms"]]
    raw = answers(arms=arms)
    expected = of_arms(0.025, 0.02, 0.03)
    expected["arms"][0] |= {"plain_usd_per_million": 12.5, "at_once": 2}
    raw = emulated(raw) if origin == "emulated" else raw
    summary = summarise(raw)
    summary |= told(tmp_path, raw, expected)
    mix = decide(summary).at.mix
    assert mix
    usd = mix.usd_before
    page = render_page(raw, summary)
    assert (
        f"check says $12.50 per million tokens for steady, and this page ${usd:.2f}: check predicts decoding alone"
        in page
    )
    took = "the emulator takes" if origin == "emulated" else "here it took"
    assert f"25.0 ms a token with 2 at a time; {took} 100.0 ms, and prompts and waiting are included." in page
    assert "check says" not in render_page(raw, summary | {"predicted_cost": {}})
