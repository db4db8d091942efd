"""Two arms in a process of their own whose every chunk leaves at a known time: `/steady/v1` and `/bursts/v1`; `/truth` says what was
sent when. The server's own lateness cancels: the truth is when its chunks left, not when they were due.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.benchmark.endpoint import MODEL, Endpoint, Timing, in_a_process, serve

__all__ = ["MODEL", "SIZES", "served"]

SIZES = {"steady": (1,), "bursts": tuple(range(1, 9))}
"""By arm: tokens in the chunks after the first, in turn. Each first chunk holds one, as after prefill."""


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    address: str

    def url(self, arm: str) -> str:
        """Base URL of an arm."""
        return f"{self.address}/{arm}/v1"

    def truth(self) -> list[dict[str, Any]]:
        """What it has sent since it was last asked: key, arm, sent_s and tokens of each answer."""
        with urllib.request.urlopen(f"{self.address}/truth", timeout=30) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found


@contextmanager
def served(*, first_ms: float, step_ms: float) -> Iterator[Served]:
    """Start it, stop it."""
    with in_a_process("tests.benchmark.known_server", first_ms, step_ms) as address:
        yield Served(address)


if __name__ == "__main__":
    first_s, step_s = (float(word) / 1000 for word in sys.argv[1:])
    arms = {
        name: Timing(first_s=first_s, step_s=step_s, sizes=sizes, owned_by="emulated timetable")
        for name, sizes in SIZES.items()
    }
    serve(Endpoint(arms))
