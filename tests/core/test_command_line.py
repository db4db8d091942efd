"""Every end of a command line is an exit code and, where it was stopped, a line that says why."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import click
import pytest

from trnspec.core.command_line import Verb, Verbs, carried_out
from trnspec.core.findings import Finding, Misuse, Outside, Refusal
from trnspec.core.screen import MAX_WIDTH, MIN_WIDTH, width

command = click.Command("fine", callback=lambda: None)


def _raised(error: BaseException) -> Callable[[], int]:
    def act() -> int:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (Refusal(Finding("a.b", 3, "is odd", "make it even")), 1, "tool: a.b = 3: is odd; make it even"),
        (Misuse("no"), 2, "tool: no"),
        (Outside("gone"), 3, "tool: gone"),
        (KeyboardInterrupt(), 130, "tool: interrupted; it can be run again"),
        (OSError(28, "No space left on device", "/x"), 3, "tool: /x: No space left on device; make room"),
        (
            ModuleNotFoundError("no", name="boto3"),
            2,
            "tool: needs boto3; run: pip install boto3",
        ),
        (
            ZeroDivisionError("by\nzero"),
            3,
            "tool: ZeroDivisionError: by zero in tests/core/test_command_line.py:",
        ),
    ],
)
def test_what_stops_a_command_is_a_line_and_an_exit_code(
    error: BaseException, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert carried_out(click.Command("tool", callback=_raised(error)), [], prog="python -m tool") == code
    (line,) = filter(None, capsys.readouterr().err.splitlines())
    assert line.startswith(words)


def test_a_verb_is_imported_when_it_is_called_and_named_in_what_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    door = Verbs("trnspec", {"fine": Verb(f"{__name__}:command", "does nothing")})
    assert carried_out(door, ["fine"], prog="trnspec") == 0
    assert carried_out(door, ["fine", "--json", "--no"], prog="trnspec") == 2
    told = capsys.readouterr()
    assert told.err.startswith("trnspec fine: No such option '--json'")
    assert json.loads(told.out)["problems"][0]["message"] in told.err
    assert carried_out(door, [], prog="python -m tool") == 2
    assert capsys.readouterr().err == "tool: Missing command. (see python -m tool --help)\n"
    assert carried_out(door, ["fnie"], prog="trnspec") == 2
    assert (
        "trnspec: No such command 'fnie'. Did you mean 'fine'? (see ./trnspec --help)"
        in capsys.readouterr().err
    )


def test_standard_output_that_is_closed_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert carried_out(command, [], prog="tool") == 3
    assert "tool: standard output cannot be written (closed)" in capsys.readouterr().err


def test_a_width_is_between_60_and_100_and_100_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, wide in (
        ("20", MIN_WIDTH),
        ("72", 72),
        ("500", MAX_WIDTH),
        ("0", MAX_WIDTH),
        ("many", MAX_WIDTH),
        ("", MAX_WIDTH),
    ):
        monkeypatch.setenv("COLUMNS", columns)
        assert width() == wide
    monkeypatch.setattr(sys, "stdout", None)
    assert width() == MAX_WIDTH
