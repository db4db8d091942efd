"""The tree of candidates that Medusa's heads are asked for.

NxD Inference takes it as a list of paths: `[0, 2]` is the third choice of the second head after the first choice of the
first one. The published trees were searched on one model's accuracy; without such a measurement the choice is the
likeliest paths when a head's r-th choice is right with probability (3/5) / r^2, less with every further head.
"""

from __future__ import annotations

import heapq

SPECULATION_LENGTH = 64
"""Candidates verified in a step, the root among them; NxD Inference's feature guide uses the same."""
_CHOICES = 10
"""Choices of a head that are worth a look."""


def tree(heads: int) -> list[list[int]]:
    """The likeliest paths for a number of heads, parents before children, one fewer than the speculation length."""
    found: list[list[int]] = []
    waiting = [(-_probability(1, rank), [rank]) for rank in range(_CHOICES)]
    heapq.heapify(waiting)
    while waiting and len(found) < SPECULATION_LENGTH - 1:
        probability, path = heapq.heappop(waiting)
        found.append(path)
        if len(path) < heads:
            for rank in range(_CHOICES):
                heapq.heappush(waiting, (probability * _probability(len(path) + 1, rank), [*path, rank]))
    return sorted(found, key=lambda path: (len(path), path))


def _probability(head: int, rank: int) -> float:
    return 0.6 / head / (rank + 1) ** 2
