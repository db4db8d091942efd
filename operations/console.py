"""What a person's terminal gets: text that is shown and not obeyed, tables within 100 columns, any exception as one line."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import click

from experiment.finding import InvalidExperiment, Misuse, Outside, Refusal, printable

WIDTH = 100
_HERE = Path(__file__).resolve().parent.parent


def carried_out(name: str, act: Callable[[], int]) -> int:
    """The exit code of a command. What stops it is printed, a line for each finding."""
    signal.signal(signal.SIGTERM, _interrupt)
    with escaped():
        try:
            return act()
        except (KeyboardInterrupt, click.Abort):
            print(f"{name}: interrupted; it can be run again", file=sys.stderr)
            return 130
        except BrokenPipeError:
            # Whoever read the result has read enough; the interpreter must not complain once more as it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except click.UsageError as error:
            print(f"{name}: {error.format_message()} (see ./{name} --help)", file=sys.stderr)
            return error.exit_code
        except ModuleNotFoundError as error:  # `pip install .` brings what the benchmark and `check` need
            print(
                f"{name}: needs {error.name}, which is not installed here; clone the repository and type ./{name} there",
                file=sys.stderr,
            )
            return Misuse.exit_code
        except Exception as error:
            known = refusal_of(error)
            who = (
                "" if isinstance(error, InvalidExperiment) else f"{name}: "
            )  # whose lines begin with the file
            for line in known.lines:
                print(f"{who}{line}", file=sys.stderr)
            return known.exit_code


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def refusal_of(error: Exception) -> Refusal:
    """One that nobody expected becomes one line with the place in this project: it is no finding."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, OSError) and error.strerror:
        return Outside(
            f"{error.filename or 'the machine'}: {error.strerror}; make room or correct its permissions"
        )
    what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(": ")
    ours = [
        f" in {Path(frame.filename).relative_to(_HERE)}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(_HERE) and ".venv" not in frame.filename
    ]
    return Outside(
        f"{what}{ours[-1] if ours else ''}: a fault of this program, or an answer that it cannot read; run this again"
    )


class _Escaping:
    """A stream on which control characters are escaped; line ends stay."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write("\n".join(map(printable, text.split("\n"))))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def escaped() -> Iterator[None]:
    """As long as it lasts, stdout and stderr escape control characters."""
    with redirect_stdout(_Escaping(sys.stdout)), redirect_stderr(_Escaping(sys.stderr)):
        yield


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as needed; the last one is wrapped."""
    if not rows:
        return ""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in (headings, *rows)) for column in range(len(headings) - 1)]
    room = max(24, WIDTH - sum(widths) - 2 * len(widths))
    lines = []
    for row in (headings, *rows):
        first = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        for part in textwrap.wrap(row[-1], room, break_on_hyphens=False) or [""]:
            lines.append(f"{first}  {part}".rstrip())
            first = " " * len(first)
    return "\n".join(lines)
