"""What the commands of the lab share: the experiment as the first argument, and progress of stages on stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from trnspec.core.checkout import ROOT
from trnspec.core.console import progress
from trnspec.core.safe_output import printable
from trnspec.core.screen import width, wrapped

REFERENCE = ROOT / "experiments" / "qwen3-32b.yaml"
PATH: Any = click.Path(path_type=Path)


def _experiments(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete an experiment file: those of the checkout, by path or name, else any file."""
    paths = [Path(os.path.relpath(path)) for path in sorted((ROOT / "experiments").glob("*.yaml"))]
    chosen = [
        str(path)
        for path in paths
        if incomplete in (str(path)[: len(incomplete)], path.stem[: len(incomplete)])
    ]
    return [*map(CompletionItem, chosen)] or [CompletionItem(incomplete, type="file")]


experiment_argument = click.argument(
    "experiment",
    required=False,
    type=PATH,
    default=lambda: Path(os.environ.get("TRNSPEC_EXPERIMENT") or REFERENCE),
    metavar="[EXPERIMENT]",
    shell_complete=_experiments,
)
"""The argument for the experiment file; an environment variable replaces the default."""


def shown(path: Path) -> str:
    """Return a path as a user would type it: relative, if the current folder is the checkout."""
    path = path.resolve()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) and Path.cwd() == ROOT else path)


@dataclass
class Stage:
    done: str
    """The line that is printed when the stage is done."""
    reach: Callable[[int], None]
    """Takes how much of the stage's total is done now."""


class Stages:
    """Progress of a long command: a line on stderr for each stage that is done, and on a terminal a bar with the time left."""

    def __init__(self) -> None:
        self.finished: list[dict[str, Any]] = []
        """`{stage, seconds}` of each stage, for JSON output."""

    @contextmanager
    def stage(self, doing: str, *, total: int | None = None) -> Iterator[Stage]:
        """One stage; its line is printed unless an error ends it."""
        began, reached = time.monotonic(), 0

        def reach(done: int) -> None:
            nonlocal reached
            advance(done - reached)
            reached = done

        with progress(doing, total) as advance:
            stage = Stage(doing, reach)
            yield stage
        seconds = time.monotonic() - began
        self.finished.append({"stage": stage.done, "seconds": round(seconds, 1)})
        *above, last = wrapped(printable(stage.done), rest="  ", free=8)
        self.say("\n".join([*above, f"{last:<{width() - 8}}{seconds:>6.0f} s"]))

    def say(self, text: str) -> None:
        """Print a line between stages, for example before a long download."""
        print(text, file=sys.stderr, flush=True)
