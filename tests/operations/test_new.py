"""`new`: what it writes passes every check, and what it cannot write is refused in one line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from trnspec.experiment import Experiment, load
from trnspec.experiment.catalogue.models import MODELS
from trnspec.lab.emulator.timings import emulated
from trnspec.operations.__main__ import main

SMALLEST = {"Qwen/Qwen3-0.6B", "meta-llama/Llama-3.2-1B-Instruct", "TinyLlama/TinyLlama-1.1B-Chat-v1.0"}
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))
GENERAL = ROOT / "experiments" / "prompts" / "general.jsonl"
New = Callable[..., Experiment]
Capture = pytest.CaptureFixture[str]


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


def test_a_name_that_the_committed_policies_do_not_admit_is_said_when_the_file_is_written(
    capsys: Capture,
) -> None:
    assert main(["new", "mine"]) == 0
    err = " ".join(capsys.readouterr().err.split())
    assert (
        "to deploy mine: the roles of mine begin with its name, and infra/bootstrap/policies.yaml allows"
        in err
    )
    assert "add role/mine-* and instance-profile/mine-* to Roles of infra/bootstrap/policies.yaml" in err
    assert main(["new", "qwen3-mine"]) == 0
    assert "policies.yaml" not in capsys.readouterr().err


HEADER = """# title: Mine
# answers: Does it pay?
# hardware: 1 x trn2.48xlarge
# hours: 3
# price: $$
# difficulty: beginner
version: 1
"""
HEADERS = (
    ("# hours: 3\n", "", "header hours: is missing; add a line `# hours: ...` before the first key"),
    ("# hours: 3", "# hours: three", "header hours = 'three': cannot be used; write whole hours, as in 3"),
    (
        "1 x trn2.48xlarge",
        "a node",
        "header hardware = 'a node': cannot be used; write it as in 2 x trn2.3xlarge",
    ),
    ("pay?", "pay", "header answers = 'Does it pay': cannot be used; end with a question mark"),
    ("$$", "$100", "header price = '$100': cannot be used; use $, $$ and $$$"),
    (
        "beginner",
        "easy",
        "header difficulty = 'easy': cannot be used; use beginner, intermediate and advanced",
    ),
    (
        "# title: Mine",
        "# title: Mine\n# title: Yours",
        "header title: is given 2 times; keep one of the lines",
    ),
    ("# title: Mine", "# title:", "header title: is missing; add a line `# title: ...` before the first key"),
)


def test_the_experiments_to_start_from_are_listed_with_what_their_headers_say(capsys: Capture) -> None:
    assert main(["new", "--list", "--json"]) == 0
    shipped = json.loads(capsys.readouterr().out)
    assert {Path(one["path"]).name for one in shipped} == {path.name for path in EXPERIMENTS}
    folder = Path("experiments")
    folder.mkdir()
    (folder / "mine.yaml").write_text(HEADER)
    (folder / "without.yaml").write_text("version: 1\n# title: too late\n")
    assert main(["new", "--list"]) == 0
    heading, row, *_ = capsys.readouterr().out.splitlines()
    assert heading.split() == ["name", "answers", "hardware", "hours", "price", "difficulty"]
    assert " ".join(row.split()) == "mine Does it pay? 1 x trn2.48xlarge 3 $$ beginner"
    for old, text, said in HEADERS:
        (folder / "mine.yaml").write_text(HEADER.replace(old, text, 1))
        assert main(["new", "--list"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line == f"trnspec new: experiments/mine.yaml: {said}"


def _prompts(path: Path, *texts: str) -> str:
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return str(path)


QWEN, LLAMA = "Qwen/Qwen3-{}B", "meta-llama/Llama-3.{}B-Instruct"
OLD, PLUGIN, NATIVE = "nxdi-vllm-0.9.1", "nxdi-vllm-0.16", "native-vllm-0.29"
EAGLE3_32B = "RedHatAI/Qwen3-32B-speculator.eagle3"
DFLASH_8B = "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat"
WAYS: list[tuple[str, str, str, str, str, int]] = [
    # Without a word the image with a future, where a head is known.
    (QWEN.format(32), "", NATIVE, "eagle3", EAGLE3_32B, 3),
    (QWEN.format(4), "", NATIVE, "dflash", "z-lab/Qwen3-4B-DFlash-b16", 15),
    (LLAMA.format("3-70"), "", NATIVE, "eagle3", "RedHatAI/Llama-3.3-70B-Instruct-speculator.eagle3", 3),
    (QWEN.format(8), "", NATIVE, "eagle3", "RedHatAI/Qwen3-8B-speculator.eagle3", 3),
    (QWEN.format(14), "", NATIVE, "eagle3", "RedHatAI/Qwen3-14B-speculator.eagle3", 3),
    ("lmsys/vicuna-7b-v1.3", "", OLD, "fused", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", 7),
    # As asked.
    (QWEN.format(32), "--mode fused", OLD, "fused", QWEN.format(1.7), 7),
    (QWEN.format(32), "--draft Qwen/Qwen3-0.6B", OLD, "fused", QWEN.format(0.6), 7),
    (QWEN.format(32), f"--draft {EAGLE3_32B}", NATIVE, "eagle3", EAGLE3_32B, 3),
    (QWEN.format(4), "--mode fused", OLD, "fused", QWEN.format(0.6), 7),
    (LLAMA.format("1-8"), "--mode fused", OLD, "fused", LLAMA.format("2-1"), 7),
    (LLAMA.format("1-8"), "--mode dflash", NATIVE, "dflash", DFLASH_8B, 9),
    # No step of its window is published.
    (QWEN.format(8), "--mode dflash", NATIVE, "dflash", "RedHatAI/Qwen3-8B-speculator.dflash", 7),
    (LLAMA.format("3-70"), "--mode fused", OLD, "fused", LLAMA.format("2-1"), 7),
    *((model, "--mode eagle3 --draft my/head", NATIVE, "eagle3", "my/head", 3) for model in sorted(MODELS)),
    *(
        (model, "--mode eagle --draft my/head", PLUGIN, "eagle", "my/head", 3)
        for model in sorted(MODELS)
        if not model.startswith("Qwen/")
    ),
    (LLAMA.format("1-8"), f"--mode eagle --draft my/head --runtime {OLD}", OLD, "eagle", "my/head", 3),
]


def test_every_model_and_mode_of_the_catalogue_is_in_the_table() -> None:
    assert {model for model, *_ in WAYS if model not in SMALLEST} == MODELS.keys() - SMALLEST
    assert {mode for _, _, _, mode, *_ in WAYS} == {"fused", "eagle", "eagle3", "dflash"}


@pytest.mark.parametrize(("model", "options", "runtime", "mode", "draft", "k"), WAYS)
def test_what_is_written_for_a_model_and_a_mode_passes_every_check(
    new: New, model: str, options: str, runtime: str, mode: str, draft: str, k: int, capsys: Capture
) -> None:
    plain, drafted = new("--model", model, *options.split()).arms
    assert (plain.target.model.name, plain.speculation, plain.runtime.name) == (model, None, runtime)
    assert drafted.speculation is not None
    assert (drafted.speculation.mode, drafted.speculation.draft.model.name) == (mode, draft)
    assert drafted.num_speculative_tokens == k
    assert main(["check", "mine.yaml"]) == 0
    timed = mode == "fused" or emulated(load(Path("mine.yaml")))["drafted"].timed is not None
    next_verb = "demo" if timed else "preflight"
    assert f"then: ./trnspec {next_verb} mine.yaml\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("", f"eagle3 with {EAGLE3_32B} on {NATIVE} (recommended by AWS; no result of this draft on Trn2 is"),
        ("", f"alternative: --mode fused with Qwen/Qwen3-1.7B on {OLD} (vLLM V0 is not supported from SDK"),
        ("--model Qwen/Qwen3-1.7B", "drafts with heads only, and the catalogue has none for Qwen/Qwen3-1.7B"),
        (
            "--prompts long.jsonl",
            f"not eagle3 on {NATIVE}: runtime {NATIVE} takes 16384 tokens of context at most",
        ),
        (
            "--model Qwen/Qwen3-4B",
            "published: 1.8 times as fast at 1 and 0.35 times as fast at 4 concurrent requests",
        ),
        (f"--runtime {OLD}", "published: 3 times as fast at 4 concurrent requests), as you asked"),
    ],
)
def test_it_says_in_one_line_what_it_chose_and_why_and_what_else_there_is(
    options: str, why: str, capsys: Capture, tmp_path: Path
) -> None:
    _prompts(tmp_path / "long.jsonl", *(f"{number}{'x' * 17_000}" for number in range(8)))
    assert main(["new", "mine", "--json", *options.split()]) == 0
    said = json.loads(capsys.readouterr().out)["why"]
    assert (why in said, "\n" in said) == (True, False)
    Path("mine.yaml").unlink()
    assert main(["new", "mine", *options.split()]) == 0
    assert said in " ".join(capsys.readouterr().out.split())


def test_it_chooses_what_is_known_cheap_and_fits(new: New, reference: Experiment, tmp_path: Path) -> None:
    published = new("--mode", "fused")
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


def test_the_first_zone_is_the_one_of_which_the_spot_price_is(new: New, capsys: Capture) -> None:
    for words, zone in (((), "us-east-2c"), (("--model", "Qwen/Qwen3-8B"), "ap-southeast-4c")):
        assert new(*words).cluster.availability_zones[0] == zone
        assert re.search(rf"\$\d+ to \$\d+ by spot in {zone}", " ".join(capsys.readouterr().out.split()))
        Path("mine.yaml").unlink()


def test_it_writes_into_the_nearest_folder_of_experiments_or_where_it_is_told_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for folder in ("experiments/prompts", "deep/er", "there"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "experiments/prompts/general.jsonl").write_bytes(GENERAL.read_bytes())
    (tmp_path / "experiments/experiment.schema.json").write_text("{}")
    words = ["new", "mine", "--out", "there/x.yaml", "--model", "Qwen/Qwen3-8B", "--json"]
    assert main(words) == 0
    said: Any = json.loads(capsys.readouterr().out)
    assert (said["path"], said["next"][0]) == ("there/x.yaml", "./trnspec check there/x.yaml")
    assert said["chosen"].keys() == {"draft", "runtime", "hardware", "context", "prompts", "price"}
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
        ("kube-mine", "reserved"),
        ("a/b", "there is no folder"),
        ("old", "old.yaml: cannot be written (File exists); choose another NAME, or --out"),
        ("mine --out nowhere/x.yaml", "there is no folder"),
        ("mine --prompts nowhere.jsonl", "--prompts: nowhere.jsonl is not a file"),
        ("mine --prompts few.jsonl", "class 'few' has 2 distinct prompts"),
        ("mine --prompts broken.jsonl", "line 1 of broken.jsonl'"),
        ("mine --prompts long.jsonl", "do not fit max_model_len 32768"),
        ("mine --model Qwen/Qwen3-33B", "did you mean Qwen/Qwen3-32B? For a fine-tune add --like Qwen/Qwen3"),
        (
            "mine --model Qwen/Qwen3-30B-A3B",
            "is a mixture of experts by its name, and no runtime here serves",
        ),
        ("mine --model my-org/Mixtral-tuned --like Qwen/Qwen3-32b", "did you mean Qwen/Qwen3-32B?"),
        ("mine --model Qwen/Qwen3-32B-AWQ", "a quantized checkpoint by its name, and arms are compiled for"),
        ("mine --model my/32B-FP8 --like Qwen/Qwen3-32B", "name the model in bfloat16, as Qwen/Qwen3-32B"),
        ("mine --model nobody --like Qwen/Qwen3-32B", "write it as owner/name"),
        ("mine --model Qwen/Qwen3-8B --draft Qwen/Qwen3-1.8B", "did you mean Qwen/Qwen3-1.7B?"),
        ("mine --model Qwen/Qwen3-8B --draft Qwen/Qwen3-14B", "not smaller than the target"),
        ("mine --draft my/head", "For another head add its --mode"),
        ("mine --draft z-lab/Qwen3-4B-DFlash-b16", "was trained for Qwen/Qwen3-4B"),
        ("mine --draft Qwen/Qwen3-1.7B --mode eagle3", "needs a head, and this is a separate model"),
        ("mine --draft my/head --mode dflash", "is fixed by its training; start from a copy of"),
        (
            "mine --mode dflash",
            "none of this mode for Qwen/Qwen3-32B; it has one for Qwen/Qwen3-8B",
        ),
        ("mine --mode eagle --model meta-llama/Llama-3.1-8B-Instruct", "name one with --draft OWNER/NAME"),
        ("mine --mode eagle --draft my/head", "has EAGLE and Medusa code for Llama but none for Qwen3"),
        ("mine --mode medusa --draft my/head --model lmsys/vicuna-7b-v1.3", "its benchmark cannot report"),
        ("mine --mode vanilla --model lmsys/vicuna-7b-v1.3", "`inference_demo`, drafts unfused for Llama"),
        ("mine --mode fast", "is not a mode of speculation; known: fused, vanilla"),
        ("mine --mode fused --runtime native-vllm-0.29", "runtime native-vllm-0.29 cannot do it"),
        ("mine --runtime triton", "known: nxdi-vllm-0.9.1, nxdi-vllm-0.16, native-vllm-0.29"),
        ("mine --runtime native-vllm-0.29 --model Qwen/Qwen3-1.7B", "drafts with heads only; name a head"),
        ("mine --draft meta-llama/Llama-3.2-1B-Instruct", "its tokenizer (llama3"),
        ("mine --model Qwen/Qwen3-0.6B", "is the smallest of its family"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line_and_nothing_is_written(
    words: str, said: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "old.yaml").write_text("mine")
    (tmp_path / "broken.jsonl").write_text("{")
    _prompts(tmp_path / "few.jsonl", "a", "b")
    _prompts(tmp_path / "long.jsonl", *(f"{number}{'x' * 40_000}" for number in range(8)))
    before = sorted(tmp_path.iterdir())
    assert main(["new", *words.split()]) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert (out, said in line, sorted(tmp_path.iterdir())) == ("", True, before), line
    assert (tmp_path / "old.yaml").read_text() == "mine"


def test_without_a_checkout_prompts_must_be_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("trnspec.operations.new.FILES", tmp_path / "nothing")
    assert main(["new", "mine"]) == 2
    assert "general.jsonl is not a file; give a file of prompts" in capsys.readouterr().err
    assert main(["new", "mine", "--prompts", str(GENERAL)]) == 0
    assert Path("mine.yaml").read_text().startswith("# Does drafting")


def test_it_says_what_the_length_of_long_prompts_rests_on_and_how_to_count_them(
    new: New, tmp_path: Path, capsys: Capture
) -> None:
    texts = [f"{number} {'Grundsätze der Verfassung. ' * 400}" for number in range(8)]
    for given, length in (({}, 16384), ({"tokens": 3000}, 4096)):
        lines = "\n".join(json.dumps({"text": text, **given}) for text in texts)
        (tmp_path / "de.jsonl").write_text(lines)
        assert new("--prompts", "de.jsonl").baseline.serving.max_model_len == length
        said = " ".join(capsys.readouterr().out.split())
        rests = "by its 11,202 bytes, about 3,600 tokens; to compile less, count them and write `tokens`"
        assert (rests in said) is not bool(given)
        (tmp_path / "mine.yaml").unlink()
