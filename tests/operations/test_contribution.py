"""A contributed run: the recording of a real accelerator, as if its arms were the reference's."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmark.analyse.summary import summarise
from core.findings import Refusal
from experiment import Experiment
from experiment.catalogue import published
from operations.__main__ import main
from operations.contribution import contribution
from tests.benchmark.records import recorded_run
from tests.conftest import REFERENCE

Json = dict[str, Any]


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Json:
    return dict(summarise(recorded_run("e3k1-list", tmp_path_factory.mktemp("recorded"))))


@pytest.fixture(scope="module")
def measured(summary: Json) -> Json:
    """The same with the names of the reference's arms."""
    text = json.dumps(summary)
    for own, name in (("plain", "qwen-vllm"), ("drafted", "qwen-sd-vllm")):
        text = text.replace(f'"{own}"', f'"{name}"')
    return dict(json.loads(text))


def _folder(tmp_path: Path, summary: Json) -> Path:
    (tmp_path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return tmp_path


def test_a_run_becomes_rows_that_are_quoted_like_any_other(
    measured: Json, reference: Experiment, tmp_path: Path
) -> None:
    content = contribution(reference, measured, commit="unknown")
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    rows = list(published.contributed(tmp_path))
    (mix,) = (row for row in measured["mix"] if row["concurrency"] == 24)
    plain, drafted = (
        next(row for row in rows if row.row.endswith(f"/{arm}/24")) for arm in ("qwen-vllm", "qwen-sd-vllm")
    )
    assert isinstance(plain, published.Plain)
    assert isinstance(drafted, published.Drafted)
    assert {row.origin for row in rows} == {"contributed"}
    assert plain.tpot_s == pytest.approx(mix["baseline_tpot_s"], abs=1e-6)
    assert drafted.plain_tpot_s / drafted.tpot_s == pytest.approx(mix["ratio"], rel=1e-3)
    assert (drafted.base, drafted.num_speculative_tokens, plain.tensor_parallel) == (plain.row, 7, 32)
    assert not {row.row for row in rows} & {
        row.row for table in (published.PLAIN, published.DRAFTED) for row in table
    }


def test_it_says_what_was_measured_with_what_and_nothing_of_prompts_answers_or_machines(
    measured: Json, reference: Experiment, tmp_path: Path
) -> None:
    content = contribution(reference, measured, commit="unknown")
    assert content["where"]["neuron_driver"] == reference.node_image.neuron_driver  # type: ignore[union-attr]
    assert {arm["image"] for arm in content["arms"]} == {reference.baseline.runtime.image}
    whole = [row for row in content["figures"] if row["class"] is None]
    assert [row["concurrency"] for row in whole] == [24, 48, 64]
    assert all(row["ci_low"] <= row["ratio"] <= row["ci_high"] for row in whole)
    text = yaml.safe_dump(content)
    run = recorded_run("e3k1-list", tmp_path)
    prompts = [str(one["content"]) for prompt in run.plan.prompts for one in prompt.messages or ()]
    assert prompts
    assert not [prompt for prompt in prompts if prompt[:30] in text]
    assert not [arm.url for arm in run.plan.arms if arm.url in text]
    assert "s3://" not in text


def test_the_verb_shows_first_and_writes_on_demand(
    measured: Json, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, kept = _folder(tmp_path, measured), tmp_path / "kept"
    monkeypatch.setattr(published, "CONTRIBUTED", kept)
    assert main(["contribute", str(REFERENCE), str(run)]) == 0
    shown = capsys.readouterr().out
    assert "# not written" in shown
    assert not kept.exists()
    assert main(["contribute", str(REFERENCE), str(run), "--write"]) == 0
    (file,) = kept.glob("*.yaml")
    assert yaml.safe_load(file.read_text()) == yaml.safe_load(shown)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"provenance": "emulated"}, "is emulated, and only what was measured"),
        ({"complete": False}, "has 1536 of 1536 requests; finish the run"),
    ],
)
def test_what_was_not_measured_to_its_end_is_refused(
    measured: Json, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: Json, words: str
) -> None:
    summary = copy.deepcopy(measured)
    summary["run"].update(changes)
    assert main(["contribute", str(REFERENCE), str(_folder(tmp_path, summary))]) == 2
    assert words in capsys.readouterr().err


def test_other_folders_and_other_experiments_are_refused(
    summary: Json, reference: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["contribute", str(REFERENCE), str(tmp_path)]) == 2
    assert "is not the summary of a run" in capsys.readouterr().err
    with pytest.raises(Refusal, match="has no arm plain, drafted, which the run measured"):
        contribution(reference, summary, commit="unknown")
