"""What a terminal sees of long work, and what a pipe does not."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, suppress
from threading import Thread

import pytest

from tests.conftest import ROOT
from tests.operations.conftest import Say
from trnspec.core.console import progress
from trnspec.core.findings import Finding, State
from trnspec.operations.__main__ import main
from trnspec.operations.preflight import checklist

_LEAVING = r"""
import os, sys, time
import click
from trnspec.core.command_line import carried_out
from trnspec.core.console import progress

@click.command()
def act():
    with progress("arms-1"):
        time.sleep(0.2)
        os.close(int(sys.argv[1])), time.sleep(0.2)
        print("after", file=sys.stderr)
    print("done")

sys.exit(carried_out(act, [], prog="run"))
"""
_NAME = f"AWS {{}} [b]\x1b]0;title\x07 {'x' * 200}"
_PLAIN = "".join(f"    AWS {number} [b]\\x1b]0;title\\x07 {'x' * 200}: fine\n" for number in range(4))
Shown = Callable[[Callable[[], object]], str]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """What something writes on a terminal that is its stderr."""
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def written(act: Callable[[], object]) -> str:
        ours, theirs = pty.openpty()
        parts: list[bytes] = []

        def read() -> None:
            with suppress(OSError):  # Linux says so when the last one has closed it
                while part := os.read(ours, 65536):
                    parts.append(part)

        reader = Thread(target=read)
        reader.start()
        with open(theirs, "w", encoding="utf-8") as terminal, redirect_stderr(terminal):
            act()
        reader.join()
        os.close(ours)
        return b"".join(parts).decode().replace("\r\n", "\n")

    return written


@pytest.fixture
def four_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """All checks of preflight, slowly enough to be drawn."""

    def run_checks(*_: object, **__: object) -> Iterator[Finding]:
        for number in range(4):
            time.sleep(0.15)
            yield Finding("", None, "why", check=_NAME.format(number), state=State.FINE)

    monkeypatch.setattr(checklist, "run_checks", run_checks)


def test_a_terminal_sees_a_bar_with_time_left_and_obeys_nothing_that_is_printed(
    shown: Shown, four_checks: None
) -> None:
    seen = shown(lambda: main(["preflight"]))
    assert "━" in seen
    assert seen.index("-:--:--") < seen.index("0:00:0"), "known after a step"
    assert "\x1b]0;" not in seen
    assert "\x07" not in seen
    assert all(line in seen for line in _PLAIN.splitlines(keepends=True)), "whole lines, above the bar"
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l"), "the cursor is back"


def test_a_terminal_sees_what_is_waited_for_and_the_predicted_rest(shown: Shown) -> None:
    def act() -> None:
        with progress("arms-1") as doing:
            doing(doing="arms-1, predicted 9 more minutes: pod\x1b[2J")
            time.sleep(0.2)

    seen = shown(act)
    assert "arms-1, predicted 9 more minutes: pod\\x1b[2J" in seen
    assert "\x1b[2J" not in seen
    assert "0:00:00" in seen


def test_a_plain_terminal_and_a_pipe_get_plain_lines(
    shown: Shown, say: Say, four_checks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert shown(lambda: main(["preflight"])) == _PLAIN
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert say("preflight")[2] == _PLAIN


def test_a_terminal_that_goes_ends_nothing() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-P", "-c", _LEAVING, str(ours)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "NO_COLOR": ""}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=env, stdout=pipe, stderr=theirs, pass_fds=[ours], text=True)
    os.close(ours)
    assert process.communicate(timeout=60)[0] == "done\n"
    os.close(theirs)
    assert process.returncode == 0
