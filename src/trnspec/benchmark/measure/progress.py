"""The progress of a run, for people: one line per block in a log, one line that is updated on a terminal."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TextIO

from trnspec.benchmark.measure.records import LATE_S, REPEATED
from trnspec.benchmark.measure.schedule import Block
from trnspec.benchmark.plan import MIXED
from trnspec.core.safe_output import printable, shortened
from trnspec.core.screen import width, wrapped
from trnspec.core.words import count

_BACK = "\r\x1b[K"
"""Returns the cursor to the start of the line and clears it."""


@dataclass
class _BlockInProgress:
    """A block that is being loaded."""

    title: str
    began: float
    ok: int = 0
    failed: int = 0

    def __str__(self) -> str:
        return f"{self.title}: {self.ok} ok, {self.failed} failed, {time.monotonic() - self.began:.1f} s"


class Progress:
    """Writes the lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO = getattr(
            stream, "stream", stream
        )  # the stream below, which can move the cursor
        self._moving = stream.isatty()
        self._blocks = self._begun = 0
        self._in_progress = _BlockInProgress("", 0.0)
        self._errors = Counter[tuple[str, str]]()
        self._late_s: list[float] = []
        """How late the client was, for each measured block in which it was late."""
        self.left_s: float | None = None
        """The remaining time in seconds, if known."""

    def expect(self, blocks: int) -> None:
        """Add `blocks` to the expected number of blocks."""
        self._blocks += blocks

    def begin(self, block: Block) -> None:
        """A block starts."""
        self._begun += 1
        count = f"[{self._begun}/{self._blocks}]"
        again = "repeat of " if block.round == REPEATED else ""
        class_ = "all classes" if block.class_ == MIXED else block.class_
        measured = f"{again}{class_}, {block.load.in_words}, {block.arm}"
        left = "" if self.left_s is None else f" (about {duration(self.left_s)} left)"
        title = f"{count}{left} {f'warm-up {block.arm}' if block.phase == 'warmup' else measured}"
        self._in_progress = _BlockInProgress(title, time.monotonic())

    def count(self, *, failed: bool) -> None:
        """One request of the block has ended."""
        self._in_progress.failed += failed
        self._in_progress.ok += not failed
        if self._moving:
            line = printable(str(self._in_progress))
            self._stream.write(_BACK + shortened(line, width() - 1))  # a longer one would leave lines behind
            self._stream.flush()

    def failed(self, arm: str, name: str, message: str) -> None:
        """A request of an arm failed: the first message of each kind of error is printed, the others are counted."""
        if not self._errors[arm, name]:
            self.warn(f"{arm}: {name}: {message}")
        self._errors[arm, name] += 1

    def summary(self) -> None:
        """Print how often each kind of error occurred, if one occurred more than once; and whether the client was late."""
        if max(self._errors.values(), default=0) > 1:
            each = (f"{arm} {name} ({number:,})" for (arm, name), number in self._errors.items())
            self.warn(f"failed requests: {', '.join(each)}")
        if self._late_s:
            self.warn(
                f"this client was late in {count(len(self._late_s), 'block')}, by {max(self._late_s) * 1000:.0f} ms at most: measured "
                "times may be too long by that. Give it a CPU core of its own, or send fewer concurrent requests"
            )

    def end(self, block: Block, *, lag_s: float) -> None:
        """The block has ended; the client's event loop was `lag_s` late at the worst."""
        self.tell(str(self._in_progress))
        if lag_s > LATE_S and block.phase == "measured":
            self._late_s.append(lag_s)

    def tell(self, text: str) -> None:
        """Print a line, in a log as one line, on a terminal folded to its width."""
        lines = "\n".join(wrapped(printable(text))) if self._moving else printable(text)
        self._stream.write(f"{_BACK if self._moving else ''}{lines}\n")
        self._stream.flush()

    def warn(self, text: str) -> None:
        """Print a warning."""
        self.tell(f"warning: {text}")


def duration(seconds: float) -> str:
    """The time in words: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
