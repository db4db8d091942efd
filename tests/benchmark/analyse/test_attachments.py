"""What lies beside the records reaches summary, page and table, and what does not is said to be absent; published results against what a run
measured. The answers are what lm-eval 0.4.13 itself wrote, the comparison of engines what `store` writes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.conftest import Captured, plan_content
from tests.benchmark.records import answered, changed, emulated, raw_run, result_of, store
from tests.benchmark.show.runs import FUSED, PLAIN, run_of
from tests.benchmark.show.test_page import text_of
from tests.conftest import ROOT
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.analyse.attachments import EXPECTED, against_published
from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.analyse.decision import at_loads
from trnspec.benchmark.analyse.result import Result
from trnspec.benchmark.analyse.summary import summarise
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import RequestRecord
from trnspec.benchmark.show.page import forecast
from trnspec.benchmark.show.page import render as render_page
from trnspec.benchmark.show.report_templates import render, sentence
from trnspec.store.artifact import comparison

ANSWERS = ROOT / "tests" / "data" / "lmeval"
PLAIN_CONFIG = {"neuron_config": {"speculation_length": 0, "async_mode": False, "tp_degree": 32}}
FUSED_CONFIG = {
    "fused_spec_config": {"draft_model_path": "/checkpoints/x"},
    "neuron_config": {"speculation_length": 7, "async_mode": True, "tp_degree": 32},
}
DECLARED = ("speculation_length", "fused_spec_config")
ADDRESS = "s3://x-artifacts-123456789012-us-east-2/0123456789abcdef"
OFF = "asynchronous scheduling is off"
SAMPLES = "lmeval/qwen-vllm/samples_gsm8k_1.jsonl"

Reported = Callable[[], tuple[str, str, dict[str, Any]]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return store(run_of((PLAIN, FUSED | {"also_changes": [OFF]}), classes=("json",)), tmp_path)


@pytest.fixture
def reported(folder: Path, capsys: Captured) -> Reported:
    """Table, page and summary of the folder."""

    def reported() -> tuple[str, str, dict[str, Any]]:
        assert main(["report", str(folder), "--all"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        page = " ".join(text_of((folder / "report.html").read_text()).split())
        return shown, page, json.loads((folder / "summary.json").read_text())

    return reported


@pytest.mark.parametrize(
    ("theirs", "ours", "words"),
    [
        (PLAIN_CONFIG, FUSED_CONFIG, "besides the 2 values that speculation sets, these differ: neuron_config.async_mode false -> true."),
        ({"a": 1, "speculation_length": 0}, {"a": 1, "speculation_length": 7}, "equal except for the 1 value that speculation sets."),
        (None, FUSED_CONFIG, "not known, because the compiled configuration of the baseline was missing."),
        (None, None, "not known, because engines/qwen-sd-vllm.json is not in the folder of the run."),
    ],
    ids=["different", "equal", "no baseline", "absent"],
)  # fmt: skip
def test_what_engines_have_different_beyond_speculation_is_said_and_what_they_declare(
    folder: Path, reported: Reported, theirs: dict[str, Any] | None, ours: dict[str, Any] | None, words: str
) -> None:
    if ours:
        (folder / "engines").mkdir()
        (folder / "engines" / "qwen-sd-vllm.json").write_text(comparison(ADDRESS, theirs, ours, DECLARED))
    table, page, summary = reported()
    for text in (table, page):
        assert f"Engine of qwen-sd-vllm, compared with qwen-vllm: {words}" in text
        assert f"Engine of qwen-sd-vllm, declared besides speculation: {OFF}." in text
        assert "Engine of qwen-vllm, declared" not in text
    assert [arm["also_changes"] for arm in summary["run"]["arms"]] == [[], [OFF]]
    keys = [one["baseline_key"] for one in summary["engines"].values()]
    assert keys == ([ADDRESS.rpartition("/")[2]] if ours else [])
    assert "123456789012" not in page + table + json.dumps(summary)


def test_graphs_that_a_server_compiled_itself_are_a_warning_of_any_arm(
    folder: Path, reported: Reported
) -> None:
    (folder / "engines").mkdir()
    made = {"baseline": "", "compared": False, "compiled_at_serving": 3}
    (folder / "engines" / "qwen-vllm.json").write_text(json.dumps(made))
    line = "the server of qwen-vllm compiled 3 graphs when it started, which the stored artifact lacks"
    for text in reported()[:2]:
        assert line in text


def test_dollars_are_read_with_their_load_and_with_what_is_quoted_about_them(
    folder: Path, reported: Reported
) -> None:
    about_cost = {"about": "cost", "text": "quoted: a GPU at $15", "source": "a suite"}
    (folder / EXPECTED).write_text(
        json.dumps({"schema": 1, "arms": [], "quoted": [*QUOTED, about_cost], "figures": []})
    )
    _, page, _ = reported()
    assert (
        "Dollars are for 4 concurrent requests. The sources of these figures are under Method. Quoted: a GPU at $15"
        in page
    )


def test_answers_are_compared_by_question_and_the_later_try_counts(folder: Path, reported: Reported) -> None:
    shutil.copytree(ANSWERS / "qwen-vllm", folder / "lmeval" / "qwen-vllm")
    assert "Quality: nothing is compared, because only qwen-vllm was asked." in reported()[0]
    shutil.copytree(ANSWERS, folder / "lmeval", dirs_exist_ok=True)
    (earlier,) = (folder / "lmeval" / "qwen-vllm").rglob("*.jsonl")
    earlier.with_name("samples_gsm8k_2026-01-01T00-00-00.jsonl").write_text("")
    questions = {"dataset": "openai/gsm8k", "revision": "0" * 40, "sha256": {}}
    (folder / "lmeval" / "questions.json").write_text(json.dumps(questions))
    table, page, summary = reported()
    line = (
        "Quality, gsm8k (flexible-extract), qwen-sd-vllm compared with qwen-vllm: -10.0 points [-40.7, +24.0] over 10 questions, "
        "1 gained, 2 lost (McNemar p = 1.000): no difference shown; a loss of more than 40.7 points is excluded (95 %)."
    )
    for text in (table, page):
        assert line in text
        assert f"Questions: openai/gsm8k at commit {'0' * 40}." in text
        assert "Answered: qwen-vllm on 2026-11-22, qwen-sd-vllm on 2026-11-22." in text
    assert "9 of 10 90.0%" in page
    assert "quoted right answers to gsm8k the files of lm-eval" in page
    scores = {(one["arm"], one["filter"]): one["correct"] for one in summary["quality"]["scores"]}
    assert scores["qwen-sd-vllm", "flexible-extract"] == 8
    assert [one["n"] for one in summary["quality"]["scores"]] == [10] * 4


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("engines/qwen-sd-vllm.json", text) for text in ("{", '{"differences": []}', "[]")),
        *((SAMPLES, text) for text in ("no", '{"filter": "x"}', "3")),
        *((EXPECTED, text) for text in ("{", "[]", '{"arms": [{"arm": "a", "plain_tpot_s": -1}]}')),
    ],
)
def test_a_file_of_something_else_is_one_line(
    folder: Path, capsys: Captured, name: str, content: str
) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    assert main(["report", str(folder), "--all"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert name in line
    assert "fetch it again, or remove it" in line


QUOTED = [{"about": "decoding", "text": "as published", "source": "a blog"}]
NOTHING: dict[str, Any] = {
    "expectations": [],
    "quoted": [],
    "drafts": {},
    "hardware": {},
    "predicted_cost": {},
}


def of_arms(*plain: float | None) -> dict[str, Any]:
    """A file that expects so much time per token of `steady`: the value, and from what to what."""
    names = ("plain_tpot_s", "plain_tpot_low_s", "plain_tpot_high_s")
    served = {"instance": "trn2.48xlarge", "chips": 8, "engine": "vLLM 0.9.1", "at_once": 2}
    steady = {"arm": "steady", **served, **dict(zip(names, plain, strict=True))}
    step = {"step_over_plain": 1.2, "step_over_plain_low": 0.9, "step_over_plain_high": 1.5}
    arms = [steady, {**steady, "arm": "spec", "drafted": step}]
    return {"schema": 1, "arms": arms, "quoted": QUOTED, "figures": []}


def figure(**changes: Any) -> dict[str, Any]:
    plain = {"arm": "steady", "metric": "tpot_s", "classes": [], "concurrency": 2}
    return {**plain, "value": 0.1, "tolerance": 0.1, "source": "a table", **changes}


def answers(*more: RequestRecord, spread: float = 0.01, prompts: int = 8, **plan: Any) -> RawRun:
    """Time per output token of about 100 ms plain, of about 50 ms drafted at 2 tokens a step."""
    records = list(more)
    for pair in range(prompts):
        step = 0.1 * (1 + spread * (pair - 3.5))
        records.append(answered("steady", pair, chunk_s=(0.1, 0.1 + step, 0.1 + 2 * step)))
        records.append(answered("spec", pair, chunk_s=(0.1, 0.1 + step), chunk_tokens=(1, 2)))
    return raw_run(*records, **plan)


def compared(folder: Path, raw: RawRun, content: dict[str, Any]) -> Result:
    """The result with what was expected."""
    (folder / EXPECTED).write_text(json.dumps(content))
    return summarise(cells_of(raw), folder)


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ((0.05, 0.04, 0.06), "range 40 to 60: above the range, by a factor of 4.0 from the forecast"),
        ((0.21, 0.15, 0.25), "forecast from published results 210, range 150 to 250: within the range"),
        ((0.4, 0.3, 0.5), "below the range, by a factor of 2.0 from the forecast"),
    ],
)
def test_an_arm_is_held_against_its_range(tmp_path: Path, expected: tuple[float, ...], words: str) -> None:
    other_class = answered("steady", class_="raw", prompt_id="raw-0", pair_id="raw", chunk_s=(0.1, 0.5, 0.9))
    other_load = answered("steady", concurrency=1, chunk_s=(0.1, 4.5, 9.1))
    raw = answers(other_class, other_load, concurrency=[1, 2])
    plain, drafted = compared(tmp_path, raw, of_arms(*expected)).expectations
    assert words in plain.text
    assert plain.measured == pytest.approx(0.2, rel=0.01)
    assert plain.text.startswith("steady: time per output token, ms, lower is better: measured 2")
    step = "spec: decode step with drafts, plain steps, lower is better: measured 1; "
    assert drafted.text.startswith(step)
    assert drafted.text.endswith("within the range")


def test_what_cannot_be_expected_or_was_not_measured_is_left_out(tmp_path: Path) -> None:
    plain = raw_run(*(answered("steady", pair) for pair in range(6)))
    found = compared(tmp_path, plain, of_arms(None, 0.1, None)).model_dump(mode="json")
    hardware = {arm: {"instance": "trn2.48xlarge", "chips": 8} for arm in ("steady", "spec")}
    known = {"quoted": QUOTED, "hardware": hardware}
    assert {key: found[key] for key in NOTHING} == {**NOTHING, **known}
    (tmp_path / EXPECTED).unlink()
    assert against_published(tmp_path, result_of(plain), cells_of(plain)) == NOTHING


SPEED_UP: dict[str, Any] = {"arm": "spec", "metric": "speed_up"}
STEPS: dict[str, Any] = {"arm": "spec", "metric": "tokens_per_step"}
EMULATED = emulated(answers(), made_up={"steady": ["chat"]})


@pytest.mark.parametrize(
    ("raw", "changes", "expected", "words"),
    [
        (answers(), {}, "reproduced", ""),
        (answers(), {"value": 0.12}, "not reproduced", ""),
        (answers(), {"value": 0.105, "tolerance": 0.05}, "cannot tell", ""),
        (answers(), {"arm": "spec", "value": 0.05}, "reproduced", ""),
        (answers(), {**SPEED_UP, "value": 2.0}, "reproduced", ""),
        (answers(), {**SPEED_UP, "value": 3.0}, "not reproduced", ""),
        (answers(), {**STEPS, "value": 2.0, "classes": ["chat"]}, "reproduced", ""),
        (answers(), {**STEPS, "value": 3.2}, "not reproduced", ""),
        (answers(), {"arm": "nobody"}, "cannot tell", "the arm was not measured"),
        (answers(), {"concurrency": 8}, "cannot tell", "it was not measured"),
        (answers(), {"classes": ["raw"]}, "cannot tell", "it was not measured"),
        (EMULATED, {}, "cannot tell", "makes up the acceptance of chat"),
        (answers(prompts=3), {}, "cannot tell", "too few prompts"),
        (answers(spread=0.2), {}, "cannot tell", ""),
    ],
)
def test_a_published_figure_is_met_where_the_interval_lies_within_its_tolerance(
    tmp_path: Path, raw: RawRun, changes: dict[str, Any], expected: str, words: str
) -> None:
    content = {"arms": [], "quoted": [], "figures": [figure(**changes)]}
    (found,) = compared(tmp_path, raw, content).expectations
    assert found.verdict == expected
    assert found.text.startswith({"cannot tell": "inconclusive"}.get(expected, expected) + ": ")
    assert found.text.endswith("% (a table)")
    assert words in found.text
    if not words:
        assert found.origin == "measured"
        assert (found.ci_low or 9) <= (found.measured or 0) <= (found.ci_high or 0)


FIGURES = [
    figure(),
    figure(arm="spec", metric="speed_up", value=3.0),
    figure(arm="spec", metric="speed_up", value=1.0),
    figure(classes=["raw"]),
]
AT_2, UP = ": all classes, 2 concurrent requests", "speed-up, higher is better"
TPOT = "time per output token, ms, lower is better"
ROWS = {
    ("steady", TPOT + AT_2, "100", "90 to 110 (tolerance)", "reproduced"): "same",
    ("spec", UP + AT_2, "3", "2.7 to 3.3 (tolerance)", "not reproduced, worse"): "slower",
    ("spec", UP + AT_2, "1", "0.9 to 1.1 (tolerance)", "not reproduced, better"): "faster",
    ("steady", f"{TPOT}: raw, 2 concurrent requests", "100", "90 to 110 (tolerance)", "inconclusive"): "cannot-tell",
    ("steady", TPOT, "50", "40 to 60 (forecast range)", "worse"): "slower",
    ("spec", "decode step with drafts, plain steps, lower is better", "1.2", "0.9 to 1.5 (forecast range)", "within the range"): "same",
}  # fmt: skip
"""With the colour of each."""


def test_each_row_against_the_forecast_has_its_own_quantity_direction_and_bounds(tmp_path: Path) -> None:
    raw = answers()
    result = compared(tmp_path, raw, {**of_arms(0.05, 0.04, 0.06), "figures": FIGURES})
    drawn = forecast(result.expectations)
    assert drawn
    rows = [tuple(field.replace("\N{NO-BREAK SPACE}", " ") for field in row) for row in drawn.rows]
    assert [(arm, quantity, *rest) for arm, quantity, _, *rest in rows] == list(ROWS)
    assert [plot.kind for plot in drawn.plots] == list(ROWS.values())
    (values,) = {row[2] for row in rows[1:3]}
    assert re.fullmatch(r"(1\.99|2) \[\S+, \S+\]", values)
    met = "1 of 4 published figures reproduced, 2 not reproduced, 1 inconclusive"
    assert met in " ".join(render(result).split())
    assert render(result, everything=True).count("Expected: ") == 6
    page = render_page(cells_of(raw), result)
    for word in ("within the bounds", "better", "worse", "inconclusive"):
        assert re.search(rf'style="--c: var\(--\w+\)"><svg[^>]*><path[^>]*/></svg> {word}</span>', page), word
    assert "cost of a step" not in page.partition('id="forecast"')[2]


def test_an_emulated_run_is_not_held_against_what_the_emulator_is_made_from(tmp_path: Path) -> None:
    raw = emulated(answers())
    result = compared(tmp_path, raw, {**of_arms(0.05, 0.04, 0.06), "figures": FIGURES})
    page = render_page(cells_of(raw), result)
    assert 'id="forecast"' not in page
    assert "As published" in page.partition('id="published"')[2]
    for text in (page, render(result), render(result, everything=True)):
        assert "reproduced" not in text


def test_the_page_says_on_which_chips_at_which_load_for_how_long_answers_and_when(tmp_path: Path) -> None:
    raw, content = answers(max_tokens=7), of_arms(0.05, 0.04, 0.06)
    header = render_page(cells_of(raw), compared(tmp_path, raw, content)).partition("</header>")[0]
    hardware = "trn2.48xlarge, 8 chips for each arm"
    known = {"Hardware": hardware, "Load": "2 concurrent requests", "Answers": "median 3, at most 7 tokens"}
    for name, text in {**known, "Date": "2026-09-21"}.items():
        assert f"<strong>{name}</strong> {text}" in header
    content["arms"][1] |= {"chips": 1}
    unlike = "emulated trn2.48xlarge, 8 chips for steady; trn2.48xlarge, 1 chip for spec"
    assert sentence("hardware", compared(tmp_path, emulated(raw), content)) == unlike


@pytest.mark.parametrize("origin", ["measured", "emulated"])
def test_the_page_says_why_a_token_costs_other_than_the_forecast(tmp_path: Path, origin: str) -> None:
    """An hour costs $3.6: at 25 ms and two at a time 80 tokens a second, $12.50 a million."""
    raw = answers(arms=[{**arm, "usd_per_hour": 3.6} for arm in plan_content()["arms"]])
    raw = emulated(raw) if origin == "emulated" else raw
    expected = of_arms(0.025, 0.02, 0.03)
    expected["arms"][0] |= {"plain_usd_per_million": 12.5}
    result = compared(tmp_path, raw, expected)
    mix = at_loads(result)[result.here].mix
    assert mix
    assert mix.usd_before is not None
    page, took = (
        render_page(cells_of(raw), result),
        "The emulator takes" if origin == "emulated" else "Here it took",
    )
    usd = f"check says $12.50 per million tokens, and this page says ${mix.usd_before:.2f}."
    assert f"For steady, ./trnspec {usd} The command predicts decoding alone" in page
    ms = (
        f"25.0 ms per token and 2 concurrent requests. {took} 100.0 ms, and prompts and waiting are included."
    )
    assert ms in page
    assert "check says" not in render_page(cells_of(raw), changed(result, predicted_cost={}))
