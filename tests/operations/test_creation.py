"""`new`: what it writes passes every check, and what it cannot write is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiment import Experiment, load
from experiment.catalogue.models import FETCHED
from operations.__main__ import main
from tests.conftest import ROOT

SMALLEST = {"Qwen/Qwen3-0.6B", "meta-llama/Llama-3.2-1B-Instruct", "TinyLlama/TinyLlama-1.1B-Chat-v1.0"}
GENERAL = ROOT / "experiments" / "prompts" / "general.jsonl"
New = Callable[..., Experiment]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def new(tmp_path: Path) -> New:
    """The experiment that `new mine` with these options writes into the current folder."""

    def written(*options: str) -> Experiment:
        assert main(["new", "mine", *options]) == 0
        return load(tmp_path / "mine.yaml")

    return written


def _prompts(path: Path, *texts: str) -> str:
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return str(path)


@pytest.mark.parametrize("model", sorted(FETCHED.keys() - SMALLEST))
def test_every_model_of_the_catalogue_gets_an_experiment_that_passes(new: New, model: str) -> None:
    experiment = new("--model", model)
    plain, drafted = experiment.arms
    assert (plain.target.model.name, plain.speculation) == (model, None)
    assert drafted.speculation is not None
    assert drafted.speculation.draft.model.parameters < plain.target.model.parameters / 2
    assert main(["check", "mine.yaml"]) == 0


def test_without_options_it_is_the_published_pair_where_it_was_published(
    new: New, reference: Experiment
) -> None:
    experiment = new()
    assert [arm.serving.tensor_parallel for arm in experiment.arms] == [32, 32]
    assert experiment.arms[1].speculation == reference.arms[1].speculation
    assert experiment.cluster.instance == "trn2.48xlarge"
    assert len(experiment.prompts) == 40


def test_another_model_stands_where_an_hour_is_cheapest(new: New) -> None:
    experiment = new("--model", "Qwen/Qwen3-14B")
    assert (experiment.cluster.instance, experiment.cluster.max_nodes) == ("trn2.3xlarge", 2)
    assert experiment.cluster.region in experiment.instance.regions


def test_a_fine_tune_is_taken_with_the_model_that_it_is_like(new: New) -> None:
    experiment = new("--model", "my-org/mine", "--like", "Qwen/Qwen3-32B", "--draft", "Qwen/Qwen3-0.6B")
    assert experiment.baseline.target.model.name == "my-org/mine"
    assert experiment.baseline.target.shape_of == "Qwen/Qwen3-32B"
    assert experiment.baseline.serving.devices == 8


def test_long_prompts_and_large_classes_fit(new: New, tmp_path: Path) -> None:
    experiment = new("--prompts", _prompts(tmp_path / "long.jsonl", *(f"{n}{'x' * 5000}" for n in range(50))))
    assert experiment.baseline.serving.max_model_len == 8192
    assert experiment.benchmark.requests == 50
    assert experiment.classes == ("long",)


@pytest.mark.parametrize("name", ["null", "yes", "e1"])
def test_a_name_that_yaml_reads_otherwise_stays_a_name(name: str) -> None:
    assert main(["new", name]) == 0
    assert load(Path(f"{name}.yaml")).name == name


def test_it_writes_into_the_nearest_folder_of_experiments_and_names_what_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("experiments/prompts", "deep/er"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "experiments/prompts/general.jsonl").write_bytes(GENERAL.read_bytes())
    (tmp_path / "experiments/experiment.schema.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "deep/er")
    assert main(["new", "mine"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("wrote ../../experiments/mine.yaml\n")
    assert "next: ./trnspec check ../../experiments/mine.yaml\n" in out
    text = (tmp_path / "experiments/mine.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=./experiment.schema.json\n# Does drafting with ")
    assert "\n  file: prompts/general.jsonl " in text
    assert max(map(len, text.splitlines())) < 100


def test_a_machine_reads_the_path_and_what_was_chosen(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    assert main(["new", "mine", "--out", "there/x.yaml", "--model", "Qwen/Qwen3-8B", "--json"]) == 0
    said: Any = json.loads(capsys.readouterr().out)
    assert said["path"] == "there/x.yaml"
    assert said["chosen"].keys() == {"draft", "runtime", "hardware", "context", "prompts"}
    assert said["next"][0] == "./trnspec check there/x.yaml"
    assert load(Path("there/x.yaml")).name == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "Missing argument 'NAME'"),
        ("Mine", "name = 'Mine'"),
        ("x:[", "name = 'x:['"),
        ("kube-mine", "reserved"),
        ("m" * 40, "use 25 at most"),
        ("a/b", "there is no folder"),
        ("old", "old.yaml: cannot be written (File exists); choose another NAME, or --out"),
        ("mine --out nowhere/x.yaml", "there is no folder"),
        ("mine --out .", "cannot be written"),
        ("mine --prompts nowhere.jsonl", "--prompts: nowhere.jsonl is not a file"),
        ("mine --prompts .", "--prompts: . is not a file"),
        ("mine --prompts few.jsonl", "class 'few' has 2 distinct prompts"),
        ("mine --prompts broken.jsonl", "line 1 of broken.jsonl'"),
        ("mine --prompts long.jsonl", "do not fit max_model_len 32768"),
        (
            "mine --model Qwen/Qwen3-33B",
            "did you mean Qwen/Qwen3-32B? For a fine-tune add --like Qwen/Qwen3-32B",
        ),
        ("mine --model my-org/mine", "For a fine-tune add --like"),
        ("mine --model lab/target", "is not in the catalogue"),
        ("mine --model my-org/mine --like Qwen/Qwen3-33B", "--like = 'Qwen/Qwen3-33B'"),
        ("mine --model nobody --like Qwen/Qwen3-32B", "write it as owner/name"),
        ("mine --model Qwen/Qwen3-8B --draft Qwen/Qwen3-1.8B", "did you mean Qwen/Qwen3-1.7B?"),
        ("mine --model Qwen/Qwen3-8B --draft Qwen/Qwen3-14B", "not smaller than the target"),
        ("mine --draft meta-llama/Llama-3.2-1B-Instruct", "its tokenizer (llama3"),
        ("mine --model Qwen/Qwen3-0.6B", "is the smallest of its family"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line_and_nothing_is_written(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old.yaml").write_text("mine")
    (tmp_path / "broken.jsonl").write_text("{")
    _prompts(tmp_path / "few.jsonl", "a", "b")
    _prompts(tmp_path / "long.jsonl", *(f"{number}{'x' * 40_000}" for number in range(8)))
    before = sorted(tmp_path.iterdir())
    assert main(["new", *words.split()]) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert said in line
    assert not out
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "old.yaml").read_text() == "mine"


def test_without_a_checkout_prompts_must_be_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("operations.creation.FILES", tmp_path / "nothing")
    assert main(["new", "mine"]) == 2
    assert (
        "--prompts: experiments/prompts/general.jsonl is not a file; give a file of prompts"
        in capsys.readouterr().err
    )
    assert main(["new", "mine", "--prompts", str(GENERAL)]) == 0
    assert Path("mine.yaml").read_text().startswith("# Does drafting")
