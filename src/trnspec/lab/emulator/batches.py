"""Continuous batches without a clock, step by step.

As on a Trn2 node, one prefill comes after the other, between decode steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from trnspec.lab.emulator.timings import StepCosts


class Member(Protocol):
    """A request as a batch needs it."""

    @property
    def yields(self) -> Sequence[int]:
        """Tokens of each decode step of its answer; the prefill gives one token before them."""

    @property
    def arrival_s(self) -> float: ...


M = TypeVar("M", bound=Member)


@dataclass(eq=False, slots=True)
class AdmittedSequence(Generic[M]):
    member: M
    first: int
    """Index of the decode step before its first one."""


@dataclass(frozen=True)
class DeviceStep(Generic[M]):
    """What the device does next."""

    duration_s: float
    not_before_s: float = 0.0
    """When the sequence that was admitted arrived; 0 where none was, since a step follows the step before it at once."""
    admitted: AdmittedSequence[M] | None = None
    """The sequence whose prompt is prefilled; None in a decode step."""


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
            self._places.append(AdmittedSequence(member, self.index - 1))
            return DeviceStep(self._costs.prefill_s, member.arrival_s, self._places[-1])
        if self._places:
            return DeviceStep(self._costs.step_s(self._speculative_tokens, len(self._places)))
        return None

    def complete(self, step: DeviceStep[M]) -> list[tuple[M, int]]:
        """End a step: tokens of every member that was not dropped meanwhile; finished ones leave their slot."""
        if step.admitted:
            yielded = [(step.admitted.member, 1)] if step.admitted in self._places else []
        else:
            yielded = [(one.member, one.member.yields[self.index - one.first - 1]) for one in self._places]
            self.index += 1
        self._places = [one for one in self._places if self.index - one.first <= len(one.member.yields)]
        return yielded
