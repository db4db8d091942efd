"""Safe output: control characters are escaped, and a closed, full or abandoned standard output is one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

CANNOT_WRITE = 3
"""Exit code if standard output cannot be written."""


class Unwritable(Exception):
    """Standard output cannot be written."""


def printable(text: str) -> str:
    """Return `text` as one line in which control characters and line ends are escaped, so that a terminal does not obey them."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def one_line(text: str, max_length: int = 300) -> str:
    """Return the beginning of a foreign text as one line without control characters."""
    text = text[: 10 * max_length]
    shown = (c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return " ".join("".join(shown).split())[:max_length]


def shortened(text: str, max_length: int) -> str:
    """Return at most `max_length` characters of `text`."""
    return text if len(text) <= max_length else f"{text[: max_length - 3]}..."


class Escaping:
    """A stream that escapes control characters and keeps line ends."""

    stream: TextIO

    def __init__(self, stream: TextIO | Escaping) -> None:
        self.stream = stream.stream if isinstance(stream, Escaping) else stream  # text is escaped only once

    def write(self, text: str) -> int:
        self.stream.write("\n".join(map(printable, text.split("\n"))))
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Output(Escaping):
    """Standard output whose write errors are distinguished from other errors of the system."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise Unwritable from error

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            raise Unwritable from error


@contextmanager
def escaped() -> Iterator[None]:
    """A context in which stdout and stderr escape control characters."""
    with redirect_stdout(_Output(sys.stdout)), redirect_stderr(Escaping(sys.stderr)):
        yield


def guarded(who: str, act: Callable[[], int]) -> int:
    """Run a command with escaped output and return its exit code.

    If standard output is closed or full, print one line and return 3. If its reader has stopped reading, return 0.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  as long as the process
    try:
        if sys.stdout is None or sys.stdout.closed:
            raise Unwritable("closed")
        with escaped():
            try:
                return act()
            finally:
                sys.stdout.flush()
    except Unwritable as error:
        why = error.__cause__
        if isinstance(why, OSError):
            # Buffered text would fail again when the interpreter exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(why, BrokenPipeError):
            return 0
        text = (why.strerror if isinstance(why, OSError) else None) or str(error)
        print(f"{who}: standard output cannot be written ({text}); give it a file or a pipe", file=sys.stderr)
        return CANNOT_WRITE
