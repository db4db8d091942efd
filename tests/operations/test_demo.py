"""The demonstration's command: the experiment comes first, a refusal is one line or one object, an answer names what is next."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.conftest import ROOT
from trnspec.core.findings import Refusal
from trnspec.lab.demo import Stages
from trnspec.operations import demo_command as demo
from trnspec.operations.__main__ import main
from trnspec.operations.options import REFERENCE


@pytest.fixture(autouse=True)
def _own_signal_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's handler of SIGTERM must not stay with the tests'."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)


def test_the_experiment_comes_first_and_a_wrong_one_is_exit_2_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts").symlink_to(ROOT / "experiments" / "prompts")
    wrong = text.replace("num_speculative_tokens: 7", "num_speculative_tokens: 1")
    Path("mine.yaml").write_text(wrong, encoding="utf-8")
    words = ["demo", "mine.yaml", "--out", "out"]
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "num_speculative_tokens = 1" in captured.err
    assert "Traceback" not in captured.err
    assert main([*words, "--json"]) == 2
    problem, *_ = json.loads(capsys.readouterr().out)["problems"]
    assert problem["where"] == "arms[1].speculation.num_speculative_tokens"
    assert problem["message"].startswith("mine.yaml:")
    assert problem["remedy"]
    assert not list(Path().glob("out/*"))


def test_the_default_comes_from_the_environment_and_an_answer_leads_to_an_own_experiment_and_that_one_to_aws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def experiment_in(*words: str) -> Path:
        chosen: Path = demo.command.make_context("demo", [*words]).params["path"]
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


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted, servers are stopped; what was measured is in mine"),
        (Refusal("no room"), 1, "no room"),
        (OSError(28, "No space left on device", "x"), 3, "x: No space left on device"),
    ],
)
def test_a_demonstration_that_ends_early_is_one_line_and_keeps_what_it_measured(
    raised: BaseException,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def demonstrate(_: Path, *, out: Path, **__: object) -> None:
        assert out == tmp_path / "mine", "where the person is, whatever folder its servers run in"
        (out / "requests.jsonl").write_text("{}\n", encoding="utf-8")
        raise raised

    monkeypatch.setattr("trnspec.lab.demo.demonstrate", demonstrate)
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--out", "mine"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["requests.jsonl"]


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
