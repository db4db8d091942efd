"""A stage is one line on stderr once it is done; only a terminal sees a bar, and only where colour is wanted colour."""

from __future__ import annotations

import re

import pytest

from lab.stages import Stages


@pytest.fixture(autouse=True)
def _no_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def _run() -> Stages:
    stages = Stages()
    with stages.stage("counting to [2]", total=2) as stage:
        stage.reach(1)
        stage.reach(2)
        stage.done = "counted to [2]"
    return stages


def test_a_log_gets_one_plain_line_for_each_stage_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    finished = _run().finished
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"counted to \[2\] +0 s\n", captured.err)
    assert [one["stage"] for one in finished] == ["counted to [2]"]


def test_a_terminal_gets_a_bar_that_goes_away_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    _run()
    shown = capsys.readouterr().err
    assert "counting to [2]" in shown
    assert "\x1b[2K" in shown, "the bar's line is emptied"
    assert re.search(r"counted to \[2\] +\x1b\[2m +0 s\x1b\[0m\n$", shown)


def test_a_stage_that_fails_leaves_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    stages = Stages()
    with pytest.raises(ValueError, match="broken"), stages.stage("breaking"):
        raise ValueError("broken")
    assert capsys.readouterr().err == ""
    assert stages.finished == []
