"""The README against the code: commands exist, the output it shows is what comes out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiment import InvalidExperiment, load
from tests.cdk8s_charts.objects import objects_of
from tests.conftest import REFERENCE, ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
MISTAKES = (
    ("num_speculative_tokens: 7", "num_speculative_tokens: 1"),
    ("model: Qwen/Qwen3-1.7B", "model: meta-llama/Llama-3.2-1B-Instruct"),
    ("tensor_parallel: 32", "tensor_paralel: 64"),
    ("temperature: 0 ", "temperature: 0.7 "),
)


def _block(name: str) -> str:
    match = re.search(rf"<!-- {name}: begin -->\n```\n(.*?)```\n<!-- {name}: end -->", README, re.DOTALL)
    assert match, f"README has no block {name}"
    return match[1]


def test_the_refusals_shown_are_those_printed(tmp_path: Path) -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    for right, wrong in MISTAKES:
        assert right in text
        text = text.replace(right, wrong)
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidExperiment) as caught:
        load(path)
    assert _block("refusal") == str(caught.value).replace(str(path), "experiments/mine.yaml") + "\n"


def test_the_demo_shown_has_both_arms_in_each_class_and_says_emulated() -> None:
    shown = _block("demo")
    experiment = load(REFERENCE)
    assert "EMULATED" in shown
    for class_name in experiment.classes:
        for arm in experiment.arms:
            assert re.search(rf"^{class_name} +{arm.name} +8 +0 ", shown, re.MULTILINE)


def test_the_demo_shown_counts_the_objects_that_are_committed() -> None:
    """Every other count of it is compared with a fresh demonstration by `.ci/run`."""
    objects = objects_of(REFERENCE)
    assert f"manifests     {len(objects)} objects, recorded" in _block("demo")


def test_lock_files_and_readme_name_no_index_and_no_machine() -> None:
    for path in (
        *ROOT.glob("requirements*.txt"),
        ROOT / "package-lock.json",
        *ROOT.glob("images/*/requirements.txt"),
        ROOT / "maintenance" / "requirements.txt",
    ):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"--(extra-)?index|--find-links|https?://|file:", text), path.name
