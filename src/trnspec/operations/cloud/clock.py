"""A clock that tests can replace, waiting, and time limits."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from trnspec.core.console import progress


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


def poll(
    ask: Callable[[], str | None],
    *,
    clock: Clock,
    every_s: float,
    patience_s: float,
    between: Callable[[str], str | None] = lambda _: None,
    paused: Callable[[], bool] = lambda: False,
) -> str | None:
    """Ask every `every_s` seconds until `ask` returns None; what it returns is what is waited for, which a terminal shows.

    `between` is called with it before each pause; a line that it returns is shown instead. Time in which the waiting is `paused` does
    not count. Returns None, or what is still waited for after `patience_s`.
    """
    last = clock.ticking()
    end = last + patience_s
    with progress("waiting") as show:
        while (waiting_for := ask()) is not None:
            now = clock.ticking()
            end, last = end + (now - last) * paused(), now
            if now >= end:
                return waiting_for
            show(doing=between(waiting_for) or waiting_for)
            clock.sleep(every_s)
    return None


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
