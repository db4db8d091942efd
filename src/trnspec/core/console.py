"""Output for a terminal: tables, progress bars, warnings, JSON."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import Any, TextIO

import click

from trnspec.core.json_text import json_text
from trnspec.core.safe_output import Escaping, printable, shortened
from trnspec.core.screen import folded, table

_COLOURS = {"fine": "green", "finding": "red", "warning": "yellow", "unknown": "yellow"}


class _IgnoringErrors(Escaping):
    """A stream whose write errors are ignored: the command continues when its terminal closes."""

    def write(self, text: str) -> int:
        self._tried(lambda: self.stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._tried(self.stream.flush)

    def _tried(self, act: Callable[[], object]) -> None:
        try:
            act()
        except (OSError, ValueError):
            # What is still buffered would fail once more as the interpreter ends, and change the exit code.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


@contextmanager
def progress(doing: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Show a progress bar on a terminal; without a `total`, show a spinner.

    The yielded function takes the number of `steps` done since the last call, and what the program is `doing` now. Lines
    that are printed meanwhile appear above the bar.
    """
    stream: Any = _IgnoringErrors(getattr(sys.stderr, "stream", sys.stderr))  # a bar needs escape sequences
    if not _drawn_on(stream):
        yield lambda steps=0, doing="": None
        return
    from rich import progress as bars
    from rich.console import Console
    from rich.file_proxy import FileProxy

    console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
    columns: list[Any] = [bars.SpinnerColumn(), bars.TextColumn("{task.description}", markup=False)]
    columns += [bars.BarColumn(), bars.TimeRemainingColumn()] if total else [bars.TimeElapsedColumn()]
    room = max(16, console.width - (60 if total else 16))

    def advance(steps: float = 0, doing: str = "") -> None:
        bar.update(task, advance=steps, description=shortened(printable(doing), room) if doing else None)

    bar = bars.Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        speed_estimate_period=3600,  # a step can take 15 minutes
    )
    above: Any = FileProxy(console, stream)
    with bar, redirect_stderr(Escaping(above)):
        task = bar.add_task("", total=total)
        advance(steps=1e-9, doing=doing)  # starts the clock, so that the first step is timed too
        yield advance


def warn(text: str) -> None:
    """Print a line on stderr that begins with the name of the running verb."""
    context = click.get_current_context(silent=True)
    print(f"{context.command_path}: {text}" if context else text, file=sys.stderr, flush=True)


def pasted(path: Path) -> str:
    """Return a path for a command that can be pasted: quoted, and relative if it is in the current folder."""
    if (whole := os.path.abspath(path)).startswith(f"{os.getcwd()}{os.sep}"):
        path = Path(os.path.relpath(whole))
    return shlex.quote(str(path))


def print_json(value: Any) -> None:
    """Print JSON in the format of all verbs."""
    print(json_text(value, indent=2))


def _drawn_on(stream: TextIO) -> bool:
    """Return whether the stream is a terminal with colours and cursor movement."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    return not plain and stream.isatty()


def print_text(*lines: str) -> None:
    """Print lines, folded to the terminal's width."""
    print("\n".join(folded(lines)), flush=True)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. On a terminal with colours, states are coloured."""
    stream: TextIO = getattr(sys.stdout, "stream", sys.stdout)  # colours need escape sequences
    rows, drawn = [[printable(cell) for cell in row] for row in rows], _drawn_on(stream)
    lines = table(headings, rows, paint=_coloured if drawn else str)
    print("\n".join(lines), file=stream if drawn else sys.stdout)


def _coloured(cell: str) -> str:
    colour = _COLOURS.get(cell.strip())
    return click.style(cell, fg=colour) if colour else cell
