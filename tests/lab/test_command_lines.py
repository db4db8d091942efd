"""The three commands of the lab: the experiment comes first, a refusal is one line or one object, an answer names what is next."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.analyse.decision import decide
from benchmark.analyse.summary import summarise
from benchmark.plan import from_dict
from core.findings import Refusal
from experiment import Experiment, load
from lab import __main__ as demo
from lab import rehearse
from lab.command import REFERENCE, Stages, shown
from lab.real import __main__ as real
from lab.real import installation
from lab.real.__main__ import sweep_of, with_starts
from lab.real.claims import Results
from tests.benchmark.conftest import plan_content
from tests.benchmark.show.runs import run_of
from tests.conftest import ROOT
from tests.lab.real.made_up import results
from tests.lab.real.test_installation import GOOD

Command = Callable[[list[str]], int]
COMMANDS: dict[str, Command] = {"demo": demo.main, "lab": real.main, "rehearse": rehearse.main}
TINY = ROOT / "experiments" / "lab-tiny.yaml"


@pytest.fixture(autouse=True)
def _own_signal_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's handler of SIGTERM must not stay with the tests'."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)


@pytest.fixture(scope="module")
def tiny() -> Experiment:
    return load(TINY)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_experiment_comes_first_and_a_wrong_one_is_exit_2_and_leaves_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts").symlink_to(ROOT / "experiments" / "prompts")
    wrong = text.replace("num_speculative_tokens: 7", "num_speculative_tokens: 1")
    Path("mine.yaml").write_text(wrong, encoding="utf-8")
    words = ["mine.yaml", *([] if name == "rehearse" else ["--out", "out"])]
    assert COMMANDS[name](words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "num_speculative_tokens = 1" in captured.err
    assert "Traceback" not in captured.err
    assert COMMANDS[name]([*words, "--json"]) == 2
    problem, *_ = json.loads(capsys.readouterr().out)["problems"]
    assert problem["where"] == "arms[1].speculation.num_speculative_tokens"
    assert problem["message"].startswith("mine.yaml:")
    assert problem["remedy"]
    assert not list(Path().glob("out/*"))
    assert COMMANDS[name](["--experiment", "mine.yaml"]) == 2
    assert "the experiment is the first argument now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "file", "said"),
    [
        (
            "demo",
            "lab-tiny.yaml",
            "arm tiny needs no Neuron devices, .*; type ./trnspec lab experiments/lab-tiny.yaml",
        ),
        ("lab", "qwen3-32b.yaml", "arm qwen-vllm needs Neuron devices, .*`./trnspec demo` emulates this one"),
    ],
)
def test_an_experiment_for_the_other_command_is_refused_with_its_name(
    name: str, file: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert COMMANDS[name]([str(ROOT / "experiments" / file), "--out", str(tmp_path / "out")]) == 2
    assert re.search(said, capsys.readouterr().err)


def test_the_default_comes_from_the_environment_and_an_answer_leads_to_an_own_experiment_and_that_one_to_aws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def experiment_in(*words: str) -> Path:
        chosen: Path = demo.command.make_context("demo", [*words]).params["experiment"]
        return chosen

    monkeypatch.setenv("TRNSPEC_EXPERIMENT", "experiments/mine.yaml")
    assert experiment_in() == Path("experiments/mine.yaml")
    assert experiment_in("other.yaml") == Path("other.yaml")
    monkeypatch.delenv("TRNSPEC_EXPERIMENT")
    assert experiment_in() == REFERENCE
    assert demo.next_command(REFERENCE) == "./trnspec new mine --prompts FILE"
    mine, far = REFERENCE.with_name("mine.yaml"), Path("/my files/own.yaml")
    assert demo.next_command(mine) == "./trnspec forecast experiments/mine.yaml"
    assert demo.next_command(far) == "./trnspec forecast '/my files/own.yaml'"


def test_the_lab_says_how_many_claims_are_met_and_shows_those_that_are_not(tmp_path: Path) -> None:
    def printed(found: Results, *, every_claim: bool = False) -> str:
        return "\n".join(real.as_lines(found, tmp_path, every_claim=every_claim))

    summary = summarise(run_of())
    found = replace(results(), summary=summary | {"decision": decide(summary).as_json()})
    assert "9 of 9 are met" in printed(found)
    assert "every arm answers" not in printed(found)
    assert "met: every arm answers every request" in printed(found, every_claim=True)
    missed = replace(found, claims=(replace(found.claims[0], met=False), *found.claims[1:]))
    assert "NOT MET: every arm answers every request" in printed(missed)
    assert f"Report     {shown(tmp_path)}/report.html" in printed(missed)
    assert f"Next       ./trnspec benchmark advise {tmp_path} --timed-with tiny-sd-k1" in printed(found)
    answer = real.as_data(missed, tmp_path)
    assert answer["claims"][0]["met"] is False
    assert answer["decision"]["sentence"]


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted, servers are stopped; what was measured is in mine"),
        (Refusal("no room"), 1, "no room"),
        (OSError(28, "No space left on device", "x"), 3, "x: No space left on device"),
    ],
)
def test_a_demonstration_that_ends_early_is_one_line_and_leaves_no_empty_file(
    raised: BaseException,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def demonstrate(_: Path, *, out: Path, **__: object) -> None:
        assert out == tmp_path / "mine", "where the person is, whatever folder its servers run in"
        (out / "plan.json").touch()
        (out / "requests.jsonl").write_text("{}\n", encoding="utf-8")
        raise raised

    monkeypatch.setattr("lab.demo.demonstrate", demonstrate)
    monkeypatch.chdir(tmp_path)
    assert demo.main(["--out", "mine"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["requests.jsonl"]


@pytest.mark.parametrize(
    ("words", "machine", "code", "said"),
    [
        ("--arms tiny-sd-k3,tiny-sd-k4", {}, 1, "--arms: 'tiny-sd-k4' is not an arm of lab-tiny; its arms are tiny, "),
        ("--arms tiny", {}, 1, "no chosen arm speculates"),
        ("requirements.in", {}, 2, "requirements.in"),
        ("--search 8:4", {}, 2, "'8:4' is not LOW:HIGH"),
        ("--weights lab/target", {}, 2, "'lab/target' is not MODEL=WHERE"),
        ("--engine-options \"'\"", {}, 2, "No closing quotation"),
        ("", {"memory_gib": 2.0}, 3, "memory: 2.0 GiB are available, 8 servers need 13.5"),
        ("--install-only", {"disk_gib": 1.0}, 3, "disk: 1.0 GiB are free"),
    ],
)  # fmt: skip
def test_what_the_lab_cannot_run_is_refused_before_anything_is_installed(
    words: str,
    machine: dict[str, Any],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(installation, "look", lambda _: replace(GOOD, **machine))
    monkeypatch.chdir(ROOT)
    home = tmp_path / "engine"
    given = [word.strip('"') for word in words.split()]
    assert real.main([*given, "--out", str(tmp_path / "out"), "--home", str(home)]) == code
    assert said in capsys.readouterr().err.splitlines()[0]
    assert not home.exists()


def test_the_sweep_is_the_arms_with_the_better_draft_and_one_batch_and_a_short_run_has_one_window(
    tiny: Experiment, tmp_path: Path
) -> None:
    arms = {k: f"tiny-sd-k{k}" for k in (1, 3, 5, 7, 10, 15)}
    sweep = sweep_of(tiny)
    assert (sweep.baseline, sweep.arms) == ("tiny", arms)
    assert sweep_of(tiny, short=True).arms == {7: sweep.main}
    path = tmp_path / "two.yaml"
    text = TINY.read_text(encoding="utf-8").replace("max_num_seqs: 4", "max_num_seqs: [4, 8]")
    path.write_text(text, encoding="utf-8")
    two = load(path)
    assert sweep_of(two).arms == arms
    further = sweep_of(two, ["tiny-sd-k3-b8", "tiny-sd-k5-b8"])
    assert (further.baseline, further.arms) == ("tiny-b8", {3: "tiny-sd-k3-b8", 5: "tiny-sd-k5-b8"})


def test_starts_of_the_command_line_replace_those_of_the_file_and_a_plan_that_cannot_have_them_is_refused() -> (
    None
):
    plan = from_dict(plan_content(starts=2))
    assert with_starts(plan, None).starts == 2
    assert with_starts(plan, 3) == from_dict(plan_content(starts=3))
    with pytest.raises(Refusal, match=r"^--starts: 33; must be a whole number from 1 to 32$"):
        with_starts(plan, 33)


def test_a_log_gets_one_plain_line_for_each_stage_that_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    stages = Stages()
    with stages.stage("counting to [2]", total=2) as stage:
        stage.reach(2)
        stage.done = "counted to [2]"
    with pytest.raises(ValueError, match="broken"), stages.stage("breaking"):
        raise ValueError("broken")
    assert [one["stage"] for one in stages.finished] == ["counted to [2]"], "one that fails leaves no line"
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"counted to \[2\] +0 s\n", captured.err)
