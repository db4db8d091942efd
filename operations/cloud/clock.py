"""Time, passed in so that tests wait for nothing, and a limit on how long something may take."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime


class Clock:
    """The machine's clock; a test passes one that does not wait."""

    def now(self) -> datetime:
        """The time, in UTC."""
        return datetime.now(UTC)

    def ticking(self) -> float:
        """Seconds on a clock that is never set: durations are measured with it."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


AGAIN_S = 5.0
"""Python drops what is raised while it calls a destructor: the limit is raised again after so long."""


class TooLateError(BaseException):
    """What `within` raises. No `Exception`, because a library would take that for a failed attempt and begin another."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """TooLateError once so much time has passed, whatever the main thread waits for."""

    def late(*_: object) -> None:
        raise TooLateError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def stamp(time: datetime) -> str:
    """ISO 8601 to the second with Z, e.g. `2026-04-01T12:00:00Z`."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
