"""The emulated H200 engine in simulated time, and what is true of it in steady state: the speed-up that a client with a held load
should find.

So many requests are kept under way for very long, each sent the moment after one ended, and prompts are drawn again each time.
The factor of a start lengthens every step alike, and with it every answer, so that the truth of a start is exact
from that of an engine with factor 1.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from lab.emulator.batches import AdmittedSequence, JoinedBatch, M
from lab.emulator.h200 import MID, H200StepTimes, Pauses, conditional

TRANSIT_S = 0.001
"""From the end of an answer to the arrival of the next request of a client on the same network (assumed): it misses the step that begins
meanwhile."""
SLOTS = 256
_SEED = 29
_PLAIN_STEPS, _DRAFTING_STEPS = 40_000, 200_000


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is asked. Answers differ in length from prompt to prompt: plain answers of one length would stay in the lockstep that
    they were started in for ever, and the truth would depend on it."""

    answer_tokens: int = 64
    """Mean; the shortest has `differ` less, the longest as many more."""
    differ: int = 16
    prompt_tokens: int = 32
    shares: tuple[float, ...] = MID
    """Share of steps in which draft 1, 2, ... is accepted."""

    def drawn_tokens(self, dice: random.Random) -> int:
        """Of the answers to one prompt."""
        return dice.randint(self.answer_tokens - self.differ, self.answer_tokens + self.differ)


@dataclass(eq=False, slots=True)
class Asked:
    """A request."""

    prompt_tokens: int
    yields: Sequence[int]
    arrival_s: float


@cache
def ones(count: int) -> tuple[int, ...]:
    """The steps of a plain answer."""
    return (1,) * count


def drawn_yields(dice: random.Random, rates: Sequence[float], tokens: int) -> Sequence[int]:
    """Tokens of each step of an answer with so many tokens after the first: the last step is cut where the answer ends."""
    if not rates:
        return ones(tokens)
    chance, found = dice.random, []
    while tokens > 0:
        got = 1
        for rate in rates:
            if chance() >= rate:
                break
            got += 1
        found.append(min(got, tokens))
        tokens -= got
    return found


class SummedPauses(Pauses):
    """Pauses, of which those of many steps are one difference."""

    def sums(self, first: int, count: int) -> list[float]:
        """Those of one step, of two, ... of `count` steps."""
        self._draw(first, count)
        at = first - self._first
        before = self._sums[at]
        return [one - before for one in self._sums[at + 1 : at + count + 1]]

    def begun_within(self, first: int, most: int, share: float) -> int:
        """Of at most `most` steps from `first` on, those that begin before `share` of a mean step has passed."""
        self._draw(first, most)
        at = first - self._first
        return min(bisect_left(self._sums, self._sums[at] + share, at) - at, most)


class LeapingBatch(JoinedBatch[M]):
    """A batch that leaps to the next step in which an answer ends."""

    def __init__(self, *, pauses: SummedPauses, **given: Any) -> None:
        super().__init__(pauses=pauses, **given)
        self._summed = pauses
        self.now_s = 0.0
        """When it begins, for those who leap."""
        self.ends_s: list[float] = []
        """Ends of the steps that were leapt over, the first of them step `ends_from`."""
        self.ends_from = 0

    def leap(self, until_s: float) -> list[AdmittedSequence[M]]:
        """Live on until a step ends in which answers end, and say which; nothing where that does not come before the
        first step that begins at `until_s` or later. Answers of a step end at `now_s`."""
        while self.now_s < until_s:
            self._admit(self.now_s)
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

    def _decoded_until(self, until_s: float) -> list[AdmittedSequence[M]]:
        """Decode steps, as many as are equal."""
        most = self._decoding[0].last - self.index + 1
        if self.waiting and len(self._decoding) < self._slots:
            most = min(most, self._every - self.index % self._every)
        lockstep = self.index >= self._lockstep_from
        if not lockstep:
            most = min(most, self._lockstep_from - self.index)
        each_s = self._times.step_s(len(self._decoding), lockstep=lockstep)
        if not math.isinf(until_s):
            most = self._summed.begun_within(self.index, most, (until_s - self.now_s) / each_s)
            most = max(most, 1)
        now_s = self.now_s
        self.ends_s += [now_s + each_s * one for one in self._summed.sums(self.index, most)]
        self.now_s = self.ends_s[-1]
        self.index += most
        return self._finished()


def engine(dice: random.Random, speculative_tokens: int, factor: float = 1.0) -> LeapingBatch[Asked]:
    """One start of a server."""
    times = H200StepTimes(speculative_tokens=speculative_tokens, factor=factor)
    return LeapingBatch(slots=SLOTS, times=times, pauses=SummedPauses(dice, speculative_tokens))


@cache
def mean_log_tpot(at_once: int, speculative_tokens: int, work: Workload = Workload()) -> float:
    """Of the requests in steady state, the mean logarithm of the seconds of a token after the first, with a factor of 1: to 0.001 or
    better, over as many steps as their pauses need for that."""
    steps = _DRAFTING_STEPS if speculative_tokens else _PLAIN_STEPS
    dice = random.Random(f"{_SEED}/{at_once}/{speculative_tokens}/{work}")
    server = engine(dice, speculative_tokens)
    answer_s = work.answer_tokens * 0.02
    total, count, settled = 0.0, 0, 10 * work.answer_tokens

    def ask(arrival_s: float) -> None:
        rates = conditional(work.shares, speculative_tokens, dice.gauss(0, 1)) if speculative_tokens else ()
        yields = drawn_yields(dice, rates, work.drawn_tokens(dice) - 1)
        server.submit(Asked(work.prompt_tokens, yields, arrival_s))

    for slot in range(at_once):
        ask(answer_s * slot / at_once)
    while server.index < steps:
        ended = server.leap(math.inf)
        for place in ended:
            if place.first > settled:
                total += math.log(span_s(server, place) / sum(place.member.yields))
                count += 1
            ask(server.now_s + TRANSIT_S)
        if len(server.ends_s) > 100_000:
            del server.ends_s[:50_000]
            server.ends_from += 50_000
    return total / count


def span_s(server: LeapingBatch[Asked], place: AdmittedSequence[Asked]) -> float:
    """From the first token of an answer to the last."""
    ends_s, begun = server.ends_s, server.ends_from
    return ends_s[place.last - begun] - ends_s[place.first - begun]


def log_speed_up(
    at_once: int,
    speculative_tokens: int,
    work: Workload = Workload(),
    *,
    plain_factor: float = 1.0,
    drafted_factor: float = 1.0,
) -> float:
    """The logarithm of the speed-up over plain decoding, per token, geometric mean over requests; of one start of both servers. With
    factors of 1 it is the mean over all starts, since the logarithm of a factor is 0 in the mean."""
    before, after = (mean_log_tpot(at_once, k, work) for k in (0, speculative_tokens))
    return before - after + math.log(plain_factor / drafted_factor)
