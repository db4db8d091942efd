"""A clock that tests can replace, and time limits."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime


class Clock:
    """The machine's clock. Tests replace it with one that does not wait."""

    def now(self) -> datetime:
        """Return the time in UTC."""
        return datetime.now(UTC)

    def ticking(self) -> float:
        """Return seconds of a monotonic clock, for durations."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


AGAIN_S = 5.0
"""Python drops exceptions that are raised in a destructor, so the limit is raised again after this time."""


class TooLateError(BaseException):
    """Raised by `within`. It is not an `Exception`, because a library would treat that as a failed attempt and retry."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TooLateError after `seconds`, even if the main thread is waiting."""

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
    """Return the time in ISO 8601, to the second, with Z, e.g. `2026-04-01T12:00:00Z`."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
