"""The size of a cell: its prompts, its sets of blocks, the number of requests that count in each, and the duration of a block.

The client, the cost estimate of an experiment and the deadline of the pod use these functions.
"""

from __future__ import annotations

MIN_PROMPTS = 8
"""A class with fewer prompts has no verdict: an interval over so few is not reliable."""
SETS = 4
"""A cell is divided into this number of sets. Four is the smallest number whose order of arms cancels linear and quadratic drift."""
SETS_REPEATED = 2
"""The number of sets of the cell that is repeated at the end."""
ANSWERS_PER_BLOCK = 4
"""The steady window of a block lasts at least this number of median answers: a shorter block would not be representative of the load."""


def set_size(*, requests: int, classes: int, concurrency: int | None) -> int:
    """The minimum number of requests of a block that count: enough for `requests` per class of the cell, and enough that the
    load lasts for ANSWERS_PER_BLOCK answers. Each class has the same number."""
    minimum = max(-(-requests * classes // SETS), ANSWERS_PER_BLOCK * (concurrency or 1))
    return -(-minimum // classes) * classes


def block_s(*, answer_s: float, counted: int, in_flight: float, max_s: float | None = None) -> float:
    """The approximate duration of a block with `in_flight` requests in flight, of which `counted` count. It consists of the ramp-up,
    the steady window (at most `max_s`), and the time until the last requests have ended. With one request in flight the
    last part is shorter, because no other requests were sent meanwhile."""
    window_s = answer_s * max(ANSWERS_PER_BLOCK, counted / in_flight)
    ramp_and_drain_s = answer_s * (3 - 1 / max(in_flight, 1))
    return ramp_and_drain_s + (window_s if max_s is None else min(window_s, max_s))
