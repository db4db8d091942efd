"""How late the client's own event loop comes: what it adds to each time that it takes."""

from __future__ import annotations

import asyncio

_EVERY_S = 0.2
"""Seldom enough to cost nothing beside the requests themselves."""


class LagWatch:
    """Sets an alarm again and again until it is closed, and keeps by how much the worst one was late."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._set()

    def close(self) -> None:
        self._alarm.cancel()

    def _set(self) -> None:
        due_s = self._loop.time() + _EVERY_S
        self._alarm = self._loop.call_at(due_s, self._ring, due_s)

    def _ring(self, due_s: float) -> None:
        self.worst_s = max(self.worst_s, self._loop.time() - due_s)
        self._set()
