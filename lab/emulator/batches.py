"""Continuous batches without a clock, step by step.

In a `SerialBatch`, a Trn2 node's, one prefill comes after the other, between decode steps. In a `JoinedBatch`, a GPU's, a step
decodes all running sequences and prefills, within a budget of tokens, the prompts that were admitted, several together and long
ones in chunks. Waiting sequences are admitted every few steps, so that they run in lockstep.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from lab.emulator.h200 import ADMITTED_EVERY, BUDGET_TOKENS, LOCKSTEP_AFTER, H200StepTimes, Pauses
from lab.emulator.timings import StepCosts


class Member(Protocol):
    """A request as a batch needs it."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def yields(self) -> Sequence[int]:
        """Tokens of each decode step of its answer; the prefill gives one token before them."""

    @property
    def arrival_s(self) -> float: ...


M = TypeVar("M", bound=Member)


@dataclass(eq=False, slots=True)
class AdmittedSequence(Generic[M]):
    member: M
    left: int
    """Tokens of its prompt that are not prefilled."""
    first: int = -1
    """Index of the step that ended its prefill."""
    last: int = -1
    """Index of the step that ends its answer."""

    def __lt__(self, other: AdmittedSequence[M]) -> bool:
        return self.last < other.last


@dataclass(frozen=True)
class DeviceStep(Generic[M]):
    """What the device does next."""

    duration_s: float
    not_before_s: float
    """When the latest sequence that was admitted arrived; 0 where none was, since a step follows the step before it at once."""
    chunks: Sequence[tuple[AdmittedSequence[M], int]] = ()
    """Tokens that are prefilled, by sequence."""


class SerialBatch(Generic[M]):
    """At most `slots` sequences run, the others wait in order of arrival.

    A free slot is filled before the next decode step, one prefill after the other (ctx_batch_size 1).
    """

    def __init__(self, *, slots: int, speculative_tokens: int, costs: StepCosts) -> None:
        self._slots = slots
        self._costs = costs
        self._speculative_tokens = speculative_tokens
        self._places: list[AdmittedSequence[M]] = []
        self.waiting: deque[M] = deque()
        self.index = 0
        """Index of the next decode step."""

    @property
    def running(self) -> list[M]:
        return [place.member for place in self._places]

    def submit(self, member: M) -> None:
        self.waiting.append(member)

    def drop(self, member: M) -> None:
        """Forget a sequence, wherever it is; its slot is free for the next step."""
        if member in self.waiting:
            self.waiting.remove(member)
        self._places = [place for place in self._places if place.member is not member]

    def next_step(self) -> DeviceStep[M] | None:
        """Begin the next step; None when there is nothing to do."""
        if self.waiting and len(self._places) < self._slots:
            member = self.waiting.popleft()
            self._places.append(AdmittedSequence(member, member.prompt_tokens, self.index - 1))
            chunk = (self._places[-1], member.prompt_tokens)
            return DeviceStep(self._costs.prefill_s, member.arrival_s, (chunk,))
        if self._places:
            return DeviceStep(self._costs.step_s(self._speculative_tokens, len(self._places)), 0.0)
        return None

    def complete(self, step: DeviceStep[M]) -> list[tuple[M, int]]:
        """End a step: tokens of every member that was not dropped meanwhile; finished ones leave their slot."""
        if step.chunks:
            begun = [place for place, _ in step.chunks if place in self._places]
            yielded = [(place.member, 1) for place in begun]
        else:
            yielded = [(one.member, one.member.yields[self.index - one.first - 1]) for one in self._places]
            self.index += 1
        self._places = [one for one in self._places if self.index - one.first <= len(one.member.yields)]
        return yielded


class JoinedBatch(Generic[M]):
    def __init__(
        self,
        *,
        slots: int,
        times: H200StepTimes,
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
        self._prefilling: list[AdmittedSequence[M]] = []
        self._decoding: list[AdmittedSequence[M]] = []
        """A heap: the answer that ends first comes first."""
        self.waiting: deque[M] = deque()
        self.index = 0
        """Index of the next step."""
        self._lockstep_from = LOCKSTEP_AFTER
        """The step from which on sequences run in lockstep, unless a prefill comes before it."""

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

    def next_step(self) -> DeviceStep[M] | None:
        """Begin the next step; None when there is nothing to do. Whoever waits has arrived."""
        arrived_s = self._admit(math.inf)
        if not (self._prefilling or self._decoding):
            return None
        chunks = self._chunks()
        return DeviceStep(self._duration_s(chunks), arrived_s, chunks)

    def complete(self, step: DeviceStep[M]) -> list[tuple[M, int]]:
        """End a step: members that were not dropped, each with its tokens."""
        index = self.index
        decoded = [
            (place.member, place.member.yields[index - place.first - 1])
            for place in self._decoding
            if place.first < index
        ]
        return [*decoded, *((place.member, 1) for place in self._ended(step.chunks)[0])]

    def _admit(self, now_s: float) -> float:
        """Fill free slots with those who arrived by `now_s`, and say when the latest of them did."""
        latest_s = 0.0
        if self.index % self._every and (self._prefilling or self._decoding):
            return latest_s
        free = self._slots - len(self._prefilling) - len(self._decoding)
        while free and self.waiting and self.waiting[0].arrival_s <= now_s:
            member = self.waiting.popleft()
            self._prefilling.append(AdmittedSequence(member, member.prompt_tokens))
            latest_s = max(latest_s, member.arrival_s)
            free -= 1
        return latest_s

    def _chunks(self) -> list[tuple[AdmittedSequence[M], int]]:
        budget, chunks = (
            self._budget - self._each * len(self._decoding),
            list[tuple[AdmittedSequence[M], int]](),
        )
        for place in self._prefilling:
            chunk = min(place.left, max(budget, 1 if not (chunks or self._decoding) else 0))
            if chunk <= 0:
                break
            chunks.append((place, chunk))
            budget -= chunk
        return chunks

    def _duration_s(self, chunks: Sequence[tuple[AdmittedSequence[M], int]]) -> float:
        prefilled = sum(chunk for _, chunk in chunks)
        lockstep = not chunks and self.index >= self._lockstep_from
        step_s = self._times.step_s(max(len(self._decoding), 1), prefilled, lockstep=lockstep)
        return step_s * self._pauses.sum(self.index)

    def _ended(
        self, chunks: Sequence[tuple[AdmittedSequence[M], int]]
    ) -> tuple[list[AdmittedSequence[M]], list[AdmittedSequence[M]]]:
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

    def _finished(self) -> list[AdmittedSequence[M]]:
        finished = []
        while self._decoding and self._decoding[0].last < self.index:
            finished.append(heapq.heappop(self._decoding))
        return finished
