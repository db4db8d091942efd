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


def test_it_chooses_what_is_known_cheap_and_fits(new: New, reference: Experiment, tmp_path: Path) -> None:
    published = new()
    assert [arm.serving.tensor_parallel for arm in published.arms] == [32, 32]
    assert published.arms[1].speculation == reference.arms[1].speculation
    assert (published.cluster.instance, len(published.prompts)) == ("trn2.48xlarge", 40)
    (tmp_path / "mine.yaml").unlink()
    smaller = new("--model", "Qwen/Qwen3-14B")
    assert (smaller.cluster.instance, smaller.cluster.max_nodes) == ("trn2.3xlarge", 2)
    assert smaller.cluster.trn2_zone in smaller.instance.zones[smaller.cluster.region]
    (tmp_path / "mine.yaml").unlink()
    tuned = new("--model", "my-org/mine", "--like", "Qwen/Qwen3-32B", "--draft", "Qwen/Qwen3-0.6B").baseline
    assert (tuned.target.model.name, tuned.target.shape_of) == ("my-org/mine", "Qwen/Qwen3-32B")
    assert tuned.serving.devices == 8
    (tmp_path / "mine.yaml").unlink()
    long = new("--prompts", _prompts(tmp_path / "long.jsonl", *(f"{n}{'x' * 5000}" for n in range(50))))
    assert long.baseline.serving.max_model_len == 8192
    assert (long.benchmark.requests, long.classes) == (50, ("long",))
    for name in ("null", "yes", "e1"):  # which YAML reads otherwise
        assert main(["new", name]) == 0
        assert load(Path(f"{name}.yaml")).name == name


def test_it_writes_into_the_nearest_folder_of_experiments_or_where_it_is_told_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("experiments/prompts", "deep/er", "there"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "experiments/prompts/general.jsonl").write_bytes(GENERAL.read_bytes())
    (tmp_path / "experiments/experiment.schema.json").write_text("{}")
    words = ["new", "mine", "--out", "there/x.yaml", "--model", "Qwen/Qwen3-8B", "--json"]
    assert main(words) == 0
    said: Any = json.loads(capsys.readouterr().out)
    assert (said["path"], said["next"][0]) == ("there/x.yaml", "./trnspec check there/x.yaml")
    assert said["chosen"].keys() == {"draft", "runtime", "hardware", "context", "prompts"}
    assert load(Path("there/x.yaml")).name == "mine"
    monkeypatch.chdir(tmp_path / "deep/er")
    assert main(["new", "mine"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("wrote ../../experiments/mine.yaml\n")
    assert "next: ./trnspec check ../../experiments/mine.yaml\n" in out
    text = (tmp_path / "experiments/mine.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=./experiment.schema.json\n# Does drafting with ")
    assert "\n  file: prompts/general.jsonl " in text
    assert max(map(len, text.splitlines())) < 100


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
