"""How large a cell is: its sets of blocks, the requests that count in each, and how long a block takes.

The client, an experiment's cost and the deadline of the pod take it from here.
"""

from __future__ import annotations

SETS = 4
"""Sets of blocks that a cell is cut into: the shortest order of the arms that cancels a linear and a quadratic drift."""
SETS_A_START = 2
"""Sets under one start of the servers, where a run has several starts, and sets of the cell that is repeated at the end."""
ANSWERS_A_BLOCK = 4
"""Median answers that a block's steady window takes at least: shorter blocks would show the moment, not the load."""


def cell_requests(requests: int) -> int:
    """About how many a cell of a search has of each class and arm, in a plan with so many: a quarter, or the few that there are."""
    return max(-(-requests // 4), min(requests, 8))


def search_cells(cells: int, starts: int) -> int:
    """How many of a search's `cells` the first start of the servers has; each later one measures the same again."""
    return max(cells // starts, 2)


def sets_in_all(starts: int) -> int:
    """How many sets a cell has over all starts of the servers."""
    return SETS if starts == 1 else SETS_A_START * starts


def set_size(*, requests: int, classes: int, starts: int, at_once: int | None) -> int:
    """How many requests of a block count at least: enough for `requests` of each of the cell's `classes`, and so many that the
    load lasts for ANSWERS_A_BLOCK answers; of each class alike."""
    least = max(-(-requests * classes // sets_in_all(starts)), ANSWERS_A_BLOCK * (at_once or 1))
    return -(-least // classes) * classes


def block_s(*, answer_s: float, counted: int, in_flight: float, most_s: float | None = None) -> float:
    """About how long a block takes that keeps `in_flight` requests under way, of which `counted` count: build up, steady window
    (`most_s` at most), then the last that counts and those that were sent meanwhile, which one slot alone does not have."""
    window_s = answer_s * max(ANSWERS_A_BLOCK, counted / in_flight)
    beside_s = answer_s * (3 - 1 / max(in_flight, 1))
    return beside_s + (window_s if most_s is None else min(window_s, most_s))
