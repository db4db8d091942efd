"""What a person's terminal gets: tables, bars, any exception as one line."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import click

from core.edge import Escaping, Unwritable, guarded, printable, shortened
from core.json_text import json_text
from core.screen import folded, table
from experiment.finding import InvalidExperiment, Misuse, Outside, Refusal

_COLOURS = {"fine": "green", "finding": "red", "warning": "yellow", "unknown": "yellow"}
_HERE = Path(__file__).resolve().parent.parent


def carried_out(name: str, act: Callable[[], int | None], *, as_json: bool = False) -> int:
    """The exit code of a command. What stops it is printed, a line for each finding; `as_json` prints them on stdout too,
    as `{"problems": [...]}`."""
    signal.signal(signal.SIGTERM, _interrupt)
    return guarded(name, lambda: _carried_out(name, act, as_json=as_json))


def _carried_out(name: str, act: Callable[[], int | None], *, as_json: bool) -> int:
    try:
        return act() or 0
    except (KeyboardInterrupt, click.Abort):
        print(f"{name}: interrupted; it can be run again", file=sys.stderr)
        return 130
    except Unwritable:
        raise
    except Exception as error:
        known = _known(name, error)
        # The lines of an experiment begin with its file.
        who = "" if isinstance(known, InvalidExperiment) else f"{name}: "
        for line in known.lines:
            print(f"{who}{line}", file=sys.stderr)
        if as_json:
            print_json({"problems": known.as_json()})
        return known.exit_code


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _known(name: str, error: Exception) -> Refusal:
    if isinstance(error, click.NoSuchOption) and error.option_name == "--experiment":
        return Misuse(f"--experiment: the experiment is the first argument now: ./{name} FILE ...")
    if isinstance(error, click.UsageError):
        return Misuse(f"{error.format_message()} (see ./{name} --help)")
    if isinstance(error, ModuleNotFoundError):  # `pip install .` brings what the benchmark and `check` need
        return Misuse(
            f"needs {error.name}, which is not installed here; clone the repository and type ./{name} there"
        )
    return refusal_of(error)


def refusal_of(error: Exception) -> Refusal:
    """An exception that nobody expected becomes one line with its place in this project: it is not a finding."""
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


class _Unsure(Escaping):
    """A terminal that may go while something is drawn on it: no reason to end what is under way."""

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
    """On a terminal, as long as it lasts: a bar with the time left, or a spinner where no `total` is known.

    It takes `steps` that were done since, and what it is `doing` now. Lines that are printed meanwhile stand above it.
    """
    stream: Any = _Unsure(getattr(sys.stderr, "stream", sys.stderr))  # what moves the cursor is meant
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

    def told(steps: float = 0, doing: str = "") -> None:
        bar.update(task, advance=steps, description=shortened(printable(doing), room) if doing else None)

    bar = bars.Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        speed_estimate_period=3600,  # a step can take a quarter of an hour
    )
    above: Any = FileProxy(console, stream)
    with bar, redirect_stderr(Escaping(above)):
        task = bar.add_task("", total=total)
        told(steps=1e-9, doing=doing)  # the time of the first step counts too
        yield told


def warn(text: str) -> None:
    """A line on stderr, with the name of the verb that is carried out."""
    context = click.get_current_context(silent=True)
    print(f"{context.command_path}: {text}" if context else text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """JSON as every verb prints it."""
    print(json_text(value, indent=2))


def _drawn_on(stream: TextIO) -> bool:
    """Whether it is a terminal that shows colours and moves its cursor."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    return not plain and stream.isatty()


def print_text(*lines: str) -> None:
    """Lines within the terminal's width."""
    print("\n".join(folded(lines)), flush=True)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table. A state has its colour where the terminal shows colours."""
    stream: TextIO = getattr(sys.stdout, "stream", sys.stdout)  # the escape sequences of colours are meant
    rows, drawn = [[printable(cell) for cell in row] for row in rows], _drawn_on(stream)
    lines = table(headings, rows, paint=_coloured if drawn else str)
    print("\n".join(lines), file=stream if drawn else sys.stdout)


def _coloured(cell: str) -> str:
    colour = _COLOURS.get(cell.strip())
    return click.style(cell, fg=colour) if colour else cell
