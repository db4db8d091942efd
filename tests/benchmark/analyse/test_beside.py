"""What lies beside the records reaches summary, page and table; what does not is said to be absent.

The answers are what lm-eval 0.4.13 itself wrote, the comparison of engines what `store` writes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmark.__main__ import main
from store.artifact import comparison
from tests.benchmark.records import store
from tests.benchmark.show.runs import FUSED, PLAIN, run_of
from tests.benchmark.show.test_page import text_of
from tests.conftest import ROOT

ANSWERS = ROOT / "tests" / "data" / "lmeval"
PLAIN_CONFIG = {"neuron_config": {"speculation_length": 0, "async_mode": False, "tp_degree": 32}}
FUSED_CONFIG = {
    "fused_spec_config": {"draft_model_path": "/checkpoints/x"},
    "neuron_config": {"speculation_length": 7, "async_mode": True, "tp_degree": 32},
}
DECLARED = ("speculation_length", "fused_spec_config")
ADDRESS = "s3://x-artifacts-123456789012-us-east-2/0123456789abcdef"
OFF = "asynchronous scheduling is off"

Reported = Callable[[], tuple[str, str, dict[str, Any]]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return store(run_of((PLAIN, FUSED | {"also_changes": [OFF]}), classes=("json",)), tmp_path)


@pytest.fixture
def reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> Reported:
    """Table, page and summary of the folder."""

    def reported() -> tuple[str, str, dict[str, Any]]:
        assert main(["report", str(folder), "--all"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        page = " ".join(text_of((folder / "report.html").read_text()).split())
        return shown, page, json.loads((folder / "summary.json").read_text())

    return reported


@pytest.mark.parametrize(
    ("theirs", "ours", "said"),
    [
        (PLAIN_CONFIG, FUSED_CONFIG, "apart from the 2 values that speculation sets, these differ: neuron_config.async_mode false -> true."),
        ({"a": 1, "speculation_length": 0}, {"a": 1, "speculation_length": 7}, "equal but for the 1 value that speculation sets."),
        (None, FUSED_CONFIG, "not compared, the baseline's compiled configuration was not there."),
        (None, None, "not compared, engines/qwen-sd-vllm.json is not beside the records.")
    ],
    ids=["different", "equal", "no baseline", "absent"]
)  # fmt: skip
def test_what_engines_have_different_beyond_speculation_is_said_and_what_they_declare(
    folder: Path, reported: Reported, theirs: dict[str, Any] | None, ours: dict[str, Any] | None, said: str
) -> None:
    if ours:
        (folder / "engines").mkdir()
        (folder / "engines" / "qwen-sd-vllm.json").write_text(comparison(ADDRESS, theirs, ours, DECLARED))
    table, page, summary = reported()
    for text in (table, page):
        assert f"Engine of qwen-sd-vllm against qwen-vllm: {said}" in text
        assert f"Engine of qwen-sd-vllm, declared beside speculation: {OFF}." in text
        assert "Engine of qwen-vllm, declared" not in text
    assert [arm.get("also_changes") for arm in summary["run"]["arms"]] == [None, [OFF]]
    keys = [one["baseline_key"] for one in summary["engines"].values()]
    assert keys == ([ADDRESS.rpartition("/")[2]] if ours else [])
    assert "123456789012" not in page + table + json.dumps(summary)


def test_answers_are_compared_question_by_question_and_of_two_tries_the_later_counts(
    folder: Path, reported: Reported
) -> None:
    shutil.copytree(ANSWERS / "qwen-vllm", folder / "lmeval" / "qwen-vllm")
    assert "Quality: only qwen-vllm was asked, nothing is compared." in reported()[0]
    shutil.copytree(ANSWERS, folder / "lmeval", dirs_exist_ok=True)
    (earlier,) = (folder / "lmeval" / "qwen-vllm").rglob("*.jsonl")
    earlier.with_name("samples_gsm8k_2026-01-01T00-00-00.jsonl").write_text("")
    questions = {"dataset": "openai/gsm8k", "revision": "0" * 40, "sha256": {}}
    (folder / "lmeval" / "questions.json").write_text(json.dumps(questions))
    table, page, summary = reported()
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
    assert [one["n"] for one in summary["quality"]["scores"]] == [10] * 4


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
