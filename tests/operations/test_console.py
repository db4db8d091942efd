"""What a terminal sees of long work, and what a pipe does not."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_PREFLIGHT = r"""
import sys, time
from experiment.finding import Finding, State
from operations.__main__ import main
from operations.preflight import checklist

def judge(*_, **__):
    for number in range(4):
        time.sleep(0.4)
        yield Finding("", None, "why", "", check=f"AWS {number} [b]\x1b]0;title\x07 " + "x" * 200, state=State.FINE)

checklist.judge = judge
sys.exit(main(["preflight"]))
"""
_SPINNER = r"""
import os, sys, time
from operations.console import carried_out, progress

def act():
    with progress("arms-1") as told:
        told(doing="arms-1, predicted 9 more minutes: pod\x1b[2J")
        time.sleep(0.5)
        if "gone" in sys.argv:
            os.close(int(sys.argv[2])), time.sleep(0.5)
            print("after", file=sys.stderr)
    print("done")

sys.exit(carried_out("run", act))
"""
_PLAIN = "".join(f"    AWS {number} [b]\\x1b]0;title\\x07 {'x' * 200}: fine\n" for number in range(4))


def _on_terminal(code: str, **environment: str) -> str:
    """What a program writes on a terminal that is its stderr."""
    ours, theirs = pty.openpty()
    env = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    command = [sys.executable, "-P", "-c", code]
    env |= {"PYTHONPATH": str(ROOT), "TERM": "xterm", **environment}
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 65536):
            written += part
    except OSError:  # Linux says so when the last one has closed it
        pass
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return written.decode().replace("\r\n", "\n")


def test_a_terminal_sees_a_bar_with_time_left_and_obeys_nothing_that_is_told() -> None:
    seen = _on_terminal(_PREFLIGHT)
    assert "━" in seen
    assert "0:00:0" in seen
    assert "\x1b]0;" not in seen
    assert "\x07" not in seen
    assert all(line in seen for line in _PLAIN.splitlines(keepends=True)), "whole lines, above the bar"
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l"), "the cursor is back"


def test_a_terminal_sees_what_is_waited_for_and_the_predicted_rest() -> None:
    seen = _on_terminal(_SPINNER)
    assert "arms-1, predicted 9 more minutes: pod\\x1b[2J" in seen
    assert "\x1b[2J" not in seen
    assert "0:00:00" in seen


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_plain_terminal_gets_plain_lines(environment: dict[str, str]) -> None:
    assert _on_terminal(_PREFLIGHT, **environment) == _PLAIN


def test_a_pipe_gets_plain_lines() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "FORCE_COLOR": "1"}
    command = [sys.executable, "-P", "-c", _PREFLIGHT]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert done.stderr == _PLAIN


def test_a_terminal_that_goes_ends_nothing() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-P", "-c", _SPINNER, "gone", str(ours)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    env.pop("NO_COLOR", None)
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=theirs, pass_fds=[ours], text=True
    )
    os.close(ours)
    assert process.communicate(timeout=60)[0] == "done\n"
    os.close(theirs)
    assert process.returncode == 0


def test_the_time_left_is_known_after_one_step() -> None:
    seen = _on_terminal(
        "import time; from operations.console import progress\n"
        "with progress('two steps', 2) as told: time.sleep(3); told(steps=1); time.sleep(0.5)"
    )
    assert "0:00:03" in seen or "0:00:04" in seen
    assert seen.index("-:--:--") < seen.index("0:00:0")
