"""Progress of a long command on stderr: a line for each stage that is done, and on a terminal a bar with the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from core.edge import printable
from core.screen import width, wrapped

_REDRAWN_PER_S = 2
"""Rarely, because what is measured may run on the same processors."""


@dataclass
class Stage:
    """A stage that is under way."""

    done: str
    """Its line once it is done."""
    reach: Callable[[int], None]
    """Takes how much of the stage's total is done."""


class Stages:
    """The stages of one command."""

    def __init__(self) -> None:
        stream = getattr(sys.stderr, "stream", sys.stderr)  # what moves the cursor is meant
        self._console = Console(file=stream, highlight=False)
        self.finished: list[dict[str, Any]] = []
        """`{stage, seconds}` of each, for a machine."""

    @contextmanager
    def stage(self, doing: str, *, total: int | None = None) -> Iterator[Stage]:
        """One stage; its line is printed unless an error ends it."""
        began = time.monotonic()
        columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}", markup=False)]
        columns += [BarColumn(), TimeRemainingColumn()] if total else [TimeElapsedColumn()]
        bar = Progress(
            *columns,
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
            refresh_per_second=_REDRAWN_PER_S,
        )
        with bar:
            task = bar.add_task(printable(doing), total=total)
            stage = Stage(doing, lambda done: bar.update(task, completed=done))
            yield stage
        seconds = time.monotonic() - began
        self.finished.append({"stage": stage.done, "seconds": round(seconds, 1)})
        *above, last = wrapped(printable(stage.done), rest="  ", free=8)
        text = "".join(f"{line}\n" for line in above) + f"{last:<{width() - 8}}"
        self._console.print(Text.assemble(text, (f"{seconds:>6.0f} s", "dim")), soft_wrap=True)

    def say(self, text: str) -> None:
        """A line between, for example before something long is fetched."""
        self._console.print(printable(text), markup=False, soft_wrap=True)
