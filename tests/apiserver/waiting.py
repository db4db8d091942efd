"""Waiting for what controllers do in their own time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 120


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll until `condition` holds; a generous deadline, because machines differ."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {DEADLINE_S} s: {what}")
        time.sleep(0.1)
