"""A continuous batch in which prefills join decode steps, without a clock: the emulated server lives it step by step,
simulations leap to the next step in which an answer ends.

A step decodes all running sequences and prefills, within a budget of tokens, the prompts that were let in, several
together and long ones in chunks. Waiting sequences are let in every few steps, so that they run in lockstep.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from lab.emulator.h200 import ADMITTED_EVERY, BUDGET_TOKENS, LOCKSTEP_AFTER, Pauses, StepTimes


class Member(Protocol):
    """A request as the batch needs it."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def yields(self) -> Sequence[int]:
        """Tokens of each decode step of its answer; the prefill gives one token before them."""

    @property
    def arrival_s(self) -> float: ...


M = TypeVar("M", bound=Member)


@dataclass(eq=False, slots=True)
class Place(Generic[M]):
    """A sequence that was let in."""

    member: M
    left: int
    """Tokens of its prompt that are not prefilled."""
    first: int = -1
    """Index of the step that ended its prefill."""
    last: int = -1
    """Index of the step that ends its answer."""

    def __lt__(self, other: Place[M]) -> bool:
        return self.last < other.last


@dataclass(frozen=True, kw_only=True)
class JoinedStep(Generic[M]):
    """What the device does next."""

    chunks: Sequence[tuple[Place[M], int]]
    """Tokens that are prefilled, by sequence."""
    duration_s: float
    not_before_s: float
    """When the latest sequence that was let in arrived; 0 where none was."""


class JoinedBatch(Generic[M]):
    """At most `slots` sequences run, the others wait in order of arrival."""

    def __init__(
        self,
        *,
        slots: int,
        times: StepTimes,
        pauses: Pauses,
        budget_tokens: int = BUDGET_TOKENS,
        admitted_every: int = ADMITTED_EVERY,
    ) -> None:
        self._slots = slots
        self._times = times
        self._pauses = pauses
        self._budget = budget_tokens
        self._every = admitted_every
        self._each = 1 + times.speculative_tokens
        """Tokens of the budget that a decoding sequence takes."""
        self._prefilling: list[Place[M]] = []
        self._decoding: list[Place[M]] = []
        """A heap: the answer that ends first comes first."""
        self.waiting: deque[M] = deque()
        self.index = 0
        """Of the next step."""
        self._lockstep_from = LOCKSTEP_AFTER
        """The step from which on sequences run in lockstep, unless a prefill comes before it."""
        self.now_s = 0.0
        """When it begins, for those who leap."""
        self.ends_s: list[float] = []
        """Ends of the steps that were leapt over, the first of them step `ends_from`."""
        self.ends_from = 0

    @property
    def running(self) -> list[M]:
        return [place.member for place in (*self._prefilling, *self._decoding)]

    def submit(self, member: M) -> None:
        self.waiting.append(member)

    def drop(self, member: M) -> None:
        """Forget a sequence, wherever it is; its slot is free for the next step."""
        if member in self.waiting:
            self.waiting.remove(member)
        self._prefilling = [place for place in self._prefilling if place.member is not member]
        kept = [place for place in self._decoding if place.member is not member]
        if len(kept) < len(self._decoding):
            heapq.heapify(kept)
            self._decoding = kept

    def next_step(self) -> JoinedStep[M] | None:
        """Begin the next step; None when there is nothing to do. Whoever waits has arrived."""
        arrived_s = self._let_in(math.inf)
        if not (self._prefilling or self._decoding):
            return None
        chunks = self._chunks()
        return JoinedStep(chunks=chunks, duration_s=self._duration_s(chunks), not_before_s=arrived_s)

    def complete(self, step: JoinedStep[M]) -> list[tuple[M, int]]:
        """End a step: members that were not dropped, each with its tokens."""
        index = self.index
        decoded = [
            (place.member, place.member.yields[index - place.first - 1])
            for place in self._decoding
            if place.first < index
        ]
        return [*decoded, *((place.member, 1) for place in self._ended(step.chunks)[0])]

    def leap(self, until_s: float) -> list[Place[M]]:
        """Live on until a step ends in which answers end, and say which; nothing where that does not come before the
        first step that begins at `until_s` or later. Answers of a step end at `now_s`."""
        while self.now_s < until_s:
            self._let_in(self.now_s)
            if not (self._prefilling or self._decoding):
                if not self.waiting:
                    return []
                self.now_s = max(self.now_s, min(self.waiting[0].arrival_s, until_s))
                continue
            if self._prefilling:
                chunks = self._chunks()
                self.now_s += self._duration_s(chunks)
                self.ends_s.append(self.now_s)
                finished = self._ended(chunks)[1]
            else:
                finished = self._decoded_until(until_s)
            if finished:
                return finished
        return []

    def forget(self) -> None:
        """Clear the list of step ends."""
        self.ends_s, self.ends_from = [], self.index

    def _decoded_until(self, until_s: float) -> list[Place[M]]:
        """Decode steps, as many as are equal."""
        most = self._decoding[0].last - self.index + 1
        if self.waiting and len(self._decoding) < self._slots:
            most = min(most, self._every - self.index % self._every)
        lockstep = self.index >= self._lockstep_from
        if not lockstep:
            most = min(most, self._lockstep_from - self.index)
        each_s = self._times.step_s(len(self._decoding), lockstep=lockstep)
        if not math.isinf(until_s):
            most = self._pauses.begun_within(self.index, most, (until_s - self.now_s) / each_s)
            most = max(most, 1)
        now_s = self.now_s
        self.ends_s += [now_s + each_s * one for one in self._pauses.sums(self.index, most)]
        self.now_s = self.ends_s[-1]
        self.index += most
        return self._finished()

    def _let_in(self, now_s: float) -> float:
        """Fill free slots with those who arrived by `now_s`, and say when the latest of them did."""
        latest_s = 0.0
        if self.index % self._every and (self._prefilling or self._decoding):
            return latest_s
        free = self._slots - len(self._prefilling) - len(self._decoding)
        while free and self.waiting and self.waiting[0].arrival_s <= now_s:
            member = self.waiting.popleft()
            self._prefilling.append(Place(member, member.prompt_tokens))
            latest_s = max(latest_s, member.arrival_s)
            free -= 1
        return latest_s

    def _chunks(self) -> list[tuple[Place[M], int]]:
        budget, chunks = self._budget - self._each * len(self._decoding), list[tuple[Place[M], int]]()
        for place in self._prefilling:
            chunk = min(place.left, max(budget, 1 if not (chunks or self._decoding) else 0))
            if chunk <= 0:
                break
            chunks.append((place, chunk))
            budget -= chunk
        return chunks

    def _duration_s(self, chunks: Sequence[tuple[Place[M], int]]) -> float:
        prefilled = sum(chunk for _, chunk in chunks)
        lockstep = not chunks and self.index >= self._lockstep_from
        step_s = self._times.step_s(max(len(self._decoding), 1), prefilled, lockstep=lockstep)
        return step_s * self._pauses.sum(self.index)

    def _ended(self, chunks: Sequence[tuple[Place[M], int]]) -> tuple[list[Place[M]], list[Place[M]]]:
        """The step is over: whose prefill it ended, and whose answer."""
        begun, alive = [], {id(place) for place in self._prefilling}
        for place, chunk in chunks:
            place.left -= chunk
            if place.left == 0 and id(place) in alive:
                place.first = self.index
                place.last = self.index + len(place.member.yields)
                begun.append(place)
                heapq.heappush(self._decoding, place)
        if begun:
            self._prefilling = [place for place in self._prefilling if place.left]
        self.index += 1
        if chunks:
            self._lockstep_from = self.index + LOCKSTEP_AFTER
        return begun, self._finished()

    def _finished(self) -> list[Place[M]]:
        finished = []
        while self._decoding and self._decoding[0].last < self.index:
            finished.append(heapq.heappop(self._decoding))
        return finished
