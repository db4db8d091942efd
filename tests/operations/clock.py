"""A clock for tests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from trnspec.operations.cloud.clock import Clock

START = datetime(2026, 4, 1, 12, 0, tzinfo=UTC)


class FakeClock(Clock):
    """Moves when somebody waits, and then tells who wants to know."""

    def __init__(self, ticked: Callable[[], None] = lambda: None) -> None:
        self.time = START
        self.ticked = ticked

    def now(self) -> datetime:
        return self.time

    def ticking(self) -> float:
        return self.time.timestamp()

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)
        self.ticked()
