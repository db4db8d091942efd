"""A load that is held while it is measured: which requests a block sends, and which of them count.

So many requests are kept in flight by sending the next one as soon as one has ended. The first ones start one after the
other over the length of one answer, so that they do not run in lockstep. Requests count that are sent in the steady window:
it opens when all have started and one answer's time has passed, and closes when enough were sent and the window is at least
ANSWERS_A_BLOCK times as long as a median answer. Sending goes on until the last one that counts has ended, so that each of
them met the whole load. What is sent before the window is called `ramp`, what is sent after it `drain`: both are recorded,
neither is in a figure.

Counting by the time of sending, and waiting for each answer, gives long answers and short ones the same chance. Requests at
a rate are counted alike; they arrive when they are due, however many are in flight.

`HeldLoad` has no clock and does no input or output: the client drives it, and so does a simulation.
"""

from __future__ import annotations

import math
from bisect import insort
from typing import TYPE_CHECKING

from benchmark.cell_size import ANSWERS_A_BLOCK

if TYPE_CHECKING:
    from benchmark.measure.records import Phase

_OVERLOADED = 3 * ANSWERS_A_BLOCK
"""Answers that a window takes at most at a rate, each as long as under a light load: at a rate that a server cannot answer, each answer
takes longer than the one before, and so does each block's median. A window of so many of those would never be over, or take longer from
block to block."""
_STAGGER_S = 0.001
"""Between first requests, at least: opening many connections in one instant, a client would measure its own queue."""


class HeldLoad:
    """One block: what is sent when, and what counts. All times are seconds since the block began."""

    def __init__(
        self,
        *,
        at_once: int | None,
        counted: int,
        answer_s: float | None,
        light_s: float | None = None,
        most_s: float | None = None,
    ) -> None:
        """`at_once` requests in flight, None where they arrive at a rate; `counted` of them count at least, fewer only where
        the window may last `most_s` at most. `answer_s` is what an answer is expected to take, None where that is not known:
        then the ramp ends once as many requests have ended as are in flight. `light_s` is what it takes where few are in flight."""
        self.at_once, self.counted, self.answer_s = at_once, counted, answer_s
        slots = at_once or 1
        self._spread_s = max(answer_s or 0.0, slots * _STAGGER_S)
        self.starts_s = [slot * self._spread_s / slots for slot in range(slots)]
        """When each slot sends its first request, spread over one answer."""
        self._most_s = math.inf if most_s is None else most_s
        self._sent = self._open = self._ended = 0
        self._answers_s: list[float] = []
        self._enough_s = _OVERLOADED * (light_s or 0.0)
        self.steady_from_s: float | None = None
        self.steady_until_s: float | None = None

    def send(self, now_s: float) -> Phase | None:
        """Which kind of request is sent now; None where nothing is sent any more."""
        if self.steady_from_s is None:
            if not self._built_up(now_s):
                return "ramp"
            self.steady_from_s = now_s
            self._enough_s = self._enough_s or _OVERLOADED * (self.median_s or 0.0)
        if self.steady_until_s is None:
            if not self._enough(now_s):
                self._sent += 1
                self._open += 1
                return "measured"
            self.steady_until_s = now_s
        return "drain" if self._open and not self._given_up(now_s) else None

    def _given_up(self, now_s: float) -> bool:
        """Above what a server can answer, requests at a rate that are sent behind the window only lengthen its queue: they are sent
        for as long as the window was."""
        begin, end = self.steady_from_s or 0.0, self.steady_until_s or 0.0
        return self.at_once is None and now_s - end >= end - begin

    def ended(self, phase: Phase, *, took_s: float, ok: bool) -> float:
        """A request has ended after `took_s`; how long its slot waits before the next one. After a failure it waits as long as
        an answer would have taken: a server that refuses at once would be flooded, and the journal with it."""
        self._ended += 1
        self._open -= phase == "measured"
        if ok:
            insort(self._answers_s, took_s)
            return 0.0
        return max(0.0, (self.median_s or self._spread_s) - took_s)

    @property
    def median_s(self) -> float | None:
        """What an answer took in this block, or is expected to take."""
        known = self._answers_s
        return known[len(known) // 2] if known else self.answer_s

    def _built_up(self, now_s: float) -> bool:
        if self.answer_s is None and self._ended < (self.at_once or 1):
            return False
        return now_s >= max(self.answer_s or 0.0, self.starts_s[-1])

    def _enough(self, now_s: float) -> bool:
        lasted_s = now_s - (self.steady_from_s or 0.0)
        if lasted_s >= self._most_s:
            return self._sent > 0
        if self._sent < self.counted:
            return False
        if self.at_once is None and lasted_s >= self._enough_s > 0:
            return True
        return lasted_s >= ANSWERS_A_BLOCK * (self.median_s or 0.0)
