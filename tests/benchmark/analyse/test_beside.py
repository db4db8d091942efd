"""What lies beside the records reaches summary, page and table; what does not is said to be absent.

The answers are what lm-eval 0.4.13 itself wrote, the comparison of engines what `store` writes.

Whether one arm answers as rightly as another: against scipy, and over many simulated comparisons.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest  # type: ignore[import-untyped] # scipy publishes no types

from benchmark.__main__ import main
from benchmark.analyse.beside import compare, mcnemar
from store.artifact import comparison
from tests.benchmark.records import store
from tests.benchmark.show.runs import FUSED, PLAIN, run_of
from tests.benchmark.show.test_page import text_of
from tests.conftest import ROOT

ANSWERS = ROOT / "tests" / "data" / "lmeval"
PLAIN_CONFIG = {"neuron_config": {"speculation_length": 0, "kv_cache_tiling": False, "tp_degree": 32}}
FUSED_CONFIG = {
    "fused_spec_config": {"draft_model_path": "/checkpoints/x"},
    "neuron_config": {"speculation_length": 7, "kv_cache_tiling": True, "tp_degree": 32},
}
DECLARED = ("speculation_length", "fused_spec_config")
ADDRESS = "s3://x-artifacts-123456789012-us-east-2/0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return store(run_of(classes=("json",)), tmp_path)


def _reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, str, dict[str, Any]]:
    assert main(["report", str(folder), "--all"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    page = " ".join(text_of((folder / "report.html").read_text()).split())
    return shown, page, json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize(
    ("theirs", "ours", "said"),
    [
        (PLAIN_CONFIG, FUSED_CONFIG, "apart from the 2 values that speculation sets, these differ: neuron_config.kv_cache_tiling false -> true."),
        ({"a": 1, "speculation_length": 0}, {"a": 1, "speculation_length": 7}, "equal but for the 1 values that speculation sets."),
        (None, FUSED_CONFIG, "not compared, the baseline's compiled configuration was not there."),
        (None, None, "not compared, engines/qwen-sd-vllm.json is not beside the records."),
    ],
    ids=["different", "equal", "no baseline", "absent"],
)  # fmt: skip
def test_what_engines_have_different_beyond_speculation_is_said_and_what_they_declare(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    theirs: dict[str, Any] | None,
    ours: dict[str, Any] | None,
    said: str,
) -> None:
    declared = "asynchronous scheduling is off"
    folder = store(run_of((PLAIN, FUSED | {"also_changes": [declared]}), classes=("json",)), tmp_path)
    if ours:
        path = folder / "engines" / "qwen-sd-vllm.json"
        path.parent.mkdir()
        path.write_text(comparison(ADDRESS, theirs, ours, DECLARED))
    table, page, summary = _reported(folder, capsys)
    for text in (table, page):
        assert f"Engine of qwen-sd-vllm against qwen-vllm: {said}" in text
        assert f"Engine of qwen-sd-vllm, declared beside speculation: {declared}." in text
        assert "Engine of qwen-vllm, declared" not in text
    assert [arm.get("also_changes") for arm in summary["run"]["arms"]] == [None, [declared]]
    keys = [one["baseline_key"] for one in summary["engines"].values()]
    assert keys == ([ADDRESS.rpartition("/")[2]] if ours else [])
    assert "123456789012" not in page + table + json.dumps(summary)


def test_answers_are_compared_question_by_question(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ANSWERS, folder / "lmeval")
    questions = {"dataset": "openai/gsm8k", "revision": "0" * 40, "sha256": {}}
    (folder / "lmeval" / "questions.json").write_text(json.dumps(questions))
    table, page, summary = _reported(folder, capsys)
    line = (
        "Quality, gsm8k (flexible-extract): qwen-sd-vllm against qwen-vllm, -10.0 points [-40.7, +24.0] over 10 questions, "
        "1 gained, 2 lost (McNemar p = 1.000): no difference shown, a loss of more than 40.7 points is excluded at 95 %."
    )
    for text in (table, page):
        assert line in text
        assert f"Questions: openai/gsm8k at commit {'0' * 40}." in text
    assert "9 of 10 90.0%" in page
    assert "quoted right answers to gsm8k lm-eval's own files" in page
    scores = {(one["arm"], one["filter"]): one["correct"] for one in summary["quality"]["scores"]}
    assert scores["qwen-sd-vllm", "flexible-extract"] == 8


def test_of_two_tries_the_later_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ANSWERS, folder / "lmeval")
    (earlier,) = (folder / "lmeval" / "qwen-vllm").rglob("*.jsonl")
    earlier.with_name("samples_gsm8k_2026-01-01T00-00-00.jsonl").write_text("")
    scores = _reported(folder, capsys)[2]["quality"]["scores"]
    assert [(one["arm"], one["n"]) for one in scores if one["arm"] == "qwen-vllm"] == [("qwen-vllm", 10)] * 2


def test_an_arm_that_was_asked_alone_is_compared_with_nobody(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ANSWERS / "qwen-vllm", folder / "lmeval" / "qwen-vllm")
    assert "Quality: only qwen-vllm was asked, nothing is compared." in _reported(folder, capsys)[0]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("engines/qwen-sd-vllm.json", "{"),
        ("engines/qwen-sd-vllm.json", '{"differences": []}'),
        ("engines/qwen-sd-vllm.json", "[]"),
        ("lmeval/qwen-vllm/samples_gsm8k_1.jsonl", "no"),
        ("lmeval/qwen-vllm/samples_gsm8k_1.jsonl", '{"filter": "x"}'),
        ("lmeval/qwen-vllm/samples_gsm8k_1.jsonl", "3"),
    ],
)
def test_a_file_that_is_something_else_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, content: str
) -> None:
    path = folder / name
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert main(["report", str(folder), "--all"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert name in line
    assert "bring it again, or remove it" in line


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (0, 6), (4, 5), (12, 3), (40, 41), (600, 700)])
def test_mcnemars_p_is_scipys(gained: int, lost: int) -> None:
    wanted = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert mcnemar(gained, lost) == pytest.approx(wanted)


def test_questions_are_paired_and_those_of_one_arm_left_out() -> None:
    found = compare(
        {"a": True, "b": True, "c": False, "only": True}, {"a": True, "b": False, "c": True, "d": True}
    )
    assert (found["n"], found["gained"], found["lost"], found["difference"]) == (3, 1, 1, 0.0)
    found = compare({"a": True}, {"b": True})
    assert (found["n"], found["difference"], found["p_value"]) == (0, None, None)


def test_equal_answers_do_not_exclude_every_difference() -> None:
    same = {str(number): number % 3 > 0 for number in range(200)}
    found = compare(same, same)
    assert found["difference"] == 0
    assert -0.015 < found["ci_low"] < 0 < found["ci_high"] < 0.015


@pytest.mark.parametrize(
    ("base", "flips_down", "flips_up"), [(0.6, 0.03, 0.03), (0.9, 0.05, 0.02), (0.5, 0.2, 0.1)]
)
def test_the_interval_covers_the_true_difference_about_as_often_as_it_says(
    base: float, flips_down: float, flips_up: float
) -> None:
    noise, questions, runs = random.Random(3), 200, 1000
    true = (1 - base) * flips_up - base * flips_down
    covered = 0
    for _ in range(runs):
        plain = {str(number): noise.random() < base for number in range(questions)}
        treated = {
            key: (noise.random() >= flips_down) if right else (noise.random() < flips_up)
            for key, right in plain.items()
        }
        found = compare(plain, treated)
        covered += found["ci_low"] <= true <= found["ci_high"]
    assert 0.93 <= covered / runs <= 0.985
