"""Where a command meets its terminal: text that is shown and not obeyed, standard output that is closed, full or no longer read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

CANNOT_WRITE = 3
"""Exit code where standard output cannot be written."""


class Unwritable(Exception):
    """Standard output takes no more."""


def printable(text: str) -> str:
    """`text` as one line that a terminal shows and does not obey: control characters and line ends are escaped."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def shortened(text: str, most: int) -> str:
    """At most `most` characters of `text`."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


class Escaping:
    """A stream on which control characters are escaped; line ends stay."""

    stream: TextIO

    def __init__(self, stream: TextIO | Escaping) -> None:
        self.stream = stream.stream if isinstance(stream, Escaping) else stream  # never twice

    def write(self, text: str) -> int:
        self.stream.write("\n".join(map(printable, text.split("\n"))))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Output(Escaping):
    """Standard output, whose write errors are distinguished from every other `OSError`."""

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
    """As long as it lasts, stdout and stderr escape control characters."""
    with redirect_stdout(_Output(sys.stdout)), redirect_stderr(Escaping(sys.stderr)):
        yield


def guarded(who: str, act: Callable[[], int]) -> int:
    """The exit code of a command, whose output is escaped.

    Standard output that is closed or full is one line and exit code 3. That its reader has read enough is no fault: 0.
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
            # What is still buffered would fail once more as the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(why, BrokenPipeError):
            return 0
        text = (why.strerror if isinstance(why, OSError) else None) or str(error)
        print(f"{who}: standard output cannot be written ({text}); give it a file or a pipe", file=sys.stderr)
        return CANNOT_WRITE
