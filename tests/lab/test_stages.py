"""A stage is one line on stderr once it is done; only a terminal sees a bar, and only where colour is wanted colour."""

from __future__ import annotations

import re

import pytest

from lab.stages import Stages


@pytest.mark.parametrize("terminal", [False, True])
def test_a_log_gets_one_plain_line_for_each_stage_and_a_terminal_a_bar_that_goes_away_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
    stages = Stages()
    with stages.stage("counting to [2]", total=2) as stage:
        stage.reach(1)
        stage.reach(2)
        stage.done = "counted to [2]"
    assert [one["stage"] for one in stages.finished] == ["counted to [2]"]
    captured = capsys.readouterr()
    assert captured.out == ""
    if terminal:
        assert "counting to [2]" in captured.err
        assert "\x1b[2K" in captured.err, "the bar's line is emptied"
        assert re.search(r"counted to \[2\] +\x1b\[2m +0 s\x1b\[0m\n$", captured.err)
    else:
        assert re.fullmatch(r"counted to \[2\] +0 s\n", captured.err)


def test_a_stage_that_fails_leaves_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    stages = Stages()
    with pytest.raises(ValueError, match="broken"), stages.stage("breaking"):
        raise ValueError("broken")
    assert capsys.readouterr().err == ""
    assert stages.finished == []
