"""Where a run stands, for people: a line per block in a log, one moving line on a terminal."""

from __future__ import annotations

from time import monotonic
from typing import TextIO

from benchmark.measure.schedule import Block


class Progress:
    """Writes to `stream`, standard error as a rule."""

    def __init__(self, stream: TextIO, blocks: int = 0) -> None:
        self._stream = stream
        self._moving = stream.isatty()
        self._blocks = blocks
        self._block = 0
        self._started = 0.0
        self._ok = self._failed = 0
        self._title = ""

    def expect(self, blocks: int) -> None:
        """Say how many blocks there will be."""
        self._blocks = blocks

    def begin(self, block: Block) -> None:
        """A block starts."""
        self._block += 1
        self._started = monotonic()
        self._ok = self._failed = 0
        cell = "warm-up" if block.phase == "warmup" else f"{block.class_} c{block.concurrency}"
        self._title = f"[{self._block}/{self._blocks}] {cell} {block.arm}"

    def count(self, failed: bool) -> None:
        """One request of the block has ended."""
        self._failed += failed
        self._ok += not failed
        if self._moving:
            self._stream.write(f"\r\x1b[K{self._line()}")
            self._stream.flush()

    def end(self) -> None:
        """The block has ended."""
        start = "\r\x1b[K" if self._moving else ""
        self._stream.write(f"{start}{self._line()}\n")
        self._stream.flush()

    def _line(self) -> str:
        took = monotonic() - self._started
        return f"{self._title}: {self._ok} ok, {self._failed} failed, {took:.1f} s"
