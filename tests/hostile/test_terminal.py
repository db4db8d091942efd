"""Texts of AWS, of a cluster or of a state file that would move the cursor or forge a line."""

from __future__ import annotations

import click
import pytest

from core.console import print_table
from core.findings import Outside
from operations import __main__ as operations
from operations import status

TEXTS = {
    "clears the screen": "\x1b[2J",
    "sets the title": "\x1b]0;owned\x07",
    "goes back to the start of the line": "a\rstatus: fine",
    "one byte for an escape": "\x9b31m",
    "turns the direction": "\u202egnp.exe",
    "another kind of line end": "a\u2028status: fine",
    "half a character": "\ud800",
    "forges lines": "a\nstatus: fine\n\x1b[31mstatus: all is well",
}


@pytest.mark.parametrize("error", [Outside, ValueError])
@pytest.mark.parametrize("what", TEXTS)
def test_what_a_verb_prints_moves_nothing_and_its_error_is_one_line(
    what: str,
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    def said() -> int:
        print_table(("stack", "why"), [("qwen3-32b", TEXTS[what]), (TEXTS[what], "fine")])
        print(f"progress {TEXTS[what]}")
        raise error(f"AWS said {TEXTS[what]}")

    monkeypatch.setattr(status, "command", said)
    assert operations.main(["status"]) == 3
    out, err = capsys.readouterr()
    assert all(line.isprintable() for line in (out + err).split("\n"))
    assert len(err.splitlines()) == 1
