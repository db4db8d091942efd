"""The three commands of the lab: the experiment comes first, a refusal is one line or one object, an answer names what is next."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.analyse.decision import decide
from benchmark.analyse.summary import summarise
from core.findings import Refusal
from lab import __main__ as demo
from lab import rehearse
from lab.arguments import REFERENCE, shown
from lab.real import __main__ as real
from lab.real.lab_results import Results
from tests.benchmark.show.runs import run_of
from tests.conftest import ROOT
from tests.lab.real.made_up import results

Command = Callable[[list[str]], int]
COMMANDS: dict[str, Command] = {"demo": demo.main, "lab": real.main, "rehearse": rehearse.main}


@pytest.fixture(autouse=True)
def _own_signal_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_experiment_comes_first_and_a_wrong_one_is_exit_2_and_leaves_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts").symlink_to(ROOT / "experiments" / "prompts")
    Path("mine.yaml").write_text(
        text.replace("num_speculative_tokens: 7", "num_speculative_tokens: 1"), encoding="utf-8"
    )
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
    with pytest.raises(SystemExit) as ended:
        COMMANDS[name](["--experiment", "mine.yaml"])
    assert ended.value.code == 2
    said = "the experiment is the first argument now; type mine.yaml without --experiment"
    assert said in capsys.readouterr().err


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


def test_the_default_comes_from_the_environment_and_leads_to_an_own_experiment_and_that_one_to_aws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRNSPEC_EXPERIMENT", "experiments/mine.yaml")
    assert demo.parser("trnspec").parse_args([]).experiment == Path("experiments/mine.yaml")
    assert rehearse.parser("trnspec").parse_args(["other.yaml"]).experiment == Path("other.yaml")
    monkeypatch.delenv("TRNSPEC_EXPERIMENT")
    assert demo.parser("trnspec").parse_args([]).experiment == REFERENCE
    assert demo._next(REFERENCE) == "./trnspec new mine --prompts FILE"
    mine, far = REFERENCE.with_name("mine.yaml"), Path("/my files/own.yaml")
    assert demo._next(mine) == "./trnspec forecast experiments/mine.yaml"
    assert demo._next(far) == "./trnspec forecast '/my files/own.yaml'"


def test_the_lab_says_how_many_claims_are_met_and_shows_those_that_are_not(tmp_path: Path) -> None:
    def shown_of(found: Results, *, every_claim: bool = False) -> str:
        return "\n".join(real.as_lines(found, tmp_path, every_claim=every_claim))

    summary = summarise(run_of())
    found = replace(results(), summary=summary | {"decision": decide(summary).as_json()})
    assert "9 of 9 are met" in shown_of(found)
    assert "every arm answers" not in shown_of(found)
    assert "met: every arm answers every request" in shown_of(found, every_claim=True)
    missed = replace(found, claims=(replace(found.claims[0], met=False), *found.claims[1:]))
    assert "NOT MET: every arm answers every request" in shown_of(missed)
    assert f"Report     {shown(tmp_path)}/report.html" in shown_of(missed)
    assert f"Next       ./trnspec benchmark advise {tmp_path} --timed-with tiny-sd-k1" in shown_of(found)
    told = real.as_data(missed, tmp_path)
    assert told["claims"][0]["met"] is False
    assert told["decision"]["sentence"]


def test_an_interrupted_rehearsal_ends_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rehearse, "_rehearse", interrupted)
    assert rehearse.main([]) == 130
    assert capsys.readouterr().err == "rehearse: interrupted, the stand-in for AWS is stopped\n"


def test_a_demonstration_writes_where_the_person_is_whatever_folder_its_servers_run_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def demonstrate(_: Path, *, out: Path, **__: object) -> None:
        (out / "plan.json").touch()
        raise Refusal(str(out))

    monkeypatch.setattr("lab.demo.demonstrate", demonstrate)
    monkeypatch.chdir(tmp_path)
    assert demo.main(["--out", "mine"]) == 1
    assert capsys.readouterr().err == f"demo: {tmp_path / 'mine'}\n"
