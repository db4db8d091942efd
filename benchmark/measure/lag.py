"""How late the client's own event loop comes: what it adds to each time that it takes."""

from __future__ import annotations

import asyncio
from types import TracebackType

LIMIT_S = 0.02
"""From here on a block gets a warning: a client so late shows in the digits that arms are compared by."""
_EVERY_S = 0.2
"""Seldom enough to cost nothing beside the requests themselves."""


class LagWatch:
    """Sets an alarm again and again and keeps by how much the worst one came too late. A context manager."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._alarm: asyncio.TimerHandle | None = None

    def __enter__(self) -> LagWatch:
        self._set()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _set(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + _EVERY_S
        self._alarm = loop.call_at(due_s, self._ring, due_s)

    def _ring(self, due_s: float) -> None:
        self.worst_s = max(self.worst_s, asyncio.get_running_loop().time() - due_s)
        self._set()
