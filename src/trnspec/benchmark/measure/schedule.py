"""The schedule of a run: which requests are sent to which arm, in which order. It depends only on the plan.

A pair is one prompt with one nonce, sent to each arm. A cell is divided into sets. In each set every arm is loaded with one
block, while the other arms idle. The order of the arms alternates from set to set: A B, B A, B A, A B, so drift affects all arms
equally. A run repeats its first cell at the end, in fewer sets, to show drift.

A load is held constant (`SteadyLoad`): a block has no fixed last pair, because requests are added until those that count have
ended. The requests that count have the same order for each arm, so they form pairs as far as both arms got.

Blocks are generated when they are needed, so the memory does not depend on the duration of a run.
"""

from __future__ import annotations

import hashlib
import math
import random
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count, islice, product
from typing import Any

from trnspec.benchmark import cell_size
from trnspec.benchmark.cell_size import ANSWERS_PER_BLOCK, SETS, SETS_REPEATED
from trnspec.benchmark.measure.records import REPEATED, BlockKey, Phase
from trnspec.benchmark.plan import MIXED, Load, Plan, PlannedPrompt

_MIN_ARRIVALS = 16
"""The minimum number of arrivals that together match the rate. With fewer there would be almost no bursts."""
_OPEN_LOOP_WARMUP = 4
"""Requests in flight in the first warm-up of a run at a rate."""
_MAX_WARMUP = 256
"""The maximum in flight in a warm-up for a rate. Without it, a rate above the capacity of a server would need more and more."""
_MAX_WINDOW_ANSWERS = 3 * ANSWERS_PER_BLOCK
"""The maximum length of a window at a rate, in answers under a light load. At a rate above the capacity of a server each answer takes
longer than the one before. So a window measured in these answers would never end, or become longer from block to block."""
STAGGER_S = 0.001
"""The minimum time between first requests. If a client opened many connections at once, it would measure its own queue."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One prompt with a nonce, which makes it unique."""

    id: str
    prompt: PlannedPrompt
    nonce: str
    gap_s: float | None = None
    """Open loop: seconds after the pair before it, or after the start of the block, at which it is sent."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Requests to one arm: the pairs of a warm-up; or, without end, pairs that count and pairs of ramp and drain."""

    plan: Plan
    arm: str
    class_: str
    load: Load
    phase: Phase
    pairs: tuple[Pair, ...] = ()
    """The requests of a warm-up."""
    round: int = 1
    number: int | None = None
    """The number of its set in the cell, from 1; None for a warm-up."""
    session: int = 1
    """The session in which it runs. A set that is measured again has other nonces."""
    counted: int = 0
    """The minimum number of requests that count, equal for all sets of the cell; 0 for a warm-up."""

    @property
    def key(self) -> BlockKey:
        """The key of its record."""
        return self.arm, self.class_, self.load, self.round, self.number

    @property
    def _name(self) -> str:
        """The beginning of the names of its pairs."""
        again = f".{self.session}" if self.session > 1 else ""
        return f"{self.load}/{self.round}.{self.number}{again}"

    def measured(self) -> Iterator[Pair]:
        """The requests that count, in the same order for each arm. A repeated cell has the prompts and arrivals of the first time."""
        chance = random.Random(f"{self.plan.seed}/{self.class_}/{self.load}/1.{self.number}")
        gaps_s = _gaps_s(self.load, max(self.counted, _MIN_ARRIVALS), chance)
        first = ((self.number or 1) - 1) * self.counted
        for index, prompt in enumerate(islice(_prompts(self.plan, self.class_), first, None)):
            yield self._pair(prompt, f"{index:04d}", next(gaps_s, None))

    def unmeasured(self) -> Iterator[Pair]:
        """The requests of ramp and drain."""
        chance = random.Random(f"{self.plan.seed}/{self._name}/beside/{self.arm}")
        prompts = [p for p in self.plan.prompts if self.class_ in (MIXED, p.class_name)]
        for index in count():
            gap_s = chance.expovariate(self.load.rate_per_s) if self.load.rate_per_s else None
            yield self._pair(chance.choice(prompts), f"beside-{index:04d}", gap_s)

    def _pair(self, prompt: PlannedPrompt, index: str, gap_s: float | None) -> Pair:
        """A pair with the nonce that the other arms have. An arm that shares the server of an arm before it (A/A) has another, because the
        prompt would be cached there."""
        id_, url = f"{prompt.class_name}/{self._name}.{index}", self.plan.arm(self.arm).url
        first = next(arm.name for arm in self.plan.arms if arm.url == url)
        own = id_ if first == self.arm else f"{self.arm}/{id_}"
        return Pair(id=id_, prompt=prompt, nonce=_nonce(self.plan.seed, own, prompt), gap_s=gap_s)


def _prompts(plan: Plan, class_: str) -> Iterator[PlannedPrompt]:
    """The prompts of a class repeatedly, each time in another order; of several classes one of each in turn."""

    def of(name: str) -> Iterator[PlannedPrompt]:
        prompts = [prompt for prompt in plan.prompts if prompt.class_name == name]
        for turn in count():
            yield from random.Random(f"{plan.seed}/{name}/{turn}").sample(prompts, len(prompts))

    yield from chain.from_iterable(zip(*map(of, plan.classes if class_ == MIXED else (class_,)), strict=True))


def _gaps_s(load: Load, size: int, chance: random.Random) -> Iterator[float]:
    """Times between arrivals at a rate: a Poisson process, scaled so that each `size` successive requests take exactly the time that the
    rate implies. So there are random bursts, but no block is faster or slower than the rate."""
    while load.rate_per_s is not None:
        drawn = [chance.expovariate(1.0) for _ in range(size)]
        mean_s = size / load.rate_per_s / math.fsum(drawn)
        yield from (mean_s * gap for gap in drawn)


def measured_blocks(plan: Plan, round_: int = 1, *, again: int = 1) -> Iterator[Block]:
    """All measured blocks of a round, in their order. `again` is the number of the session, so that a repeated set gets other
    nonces."""
    sets, cells = SETS, list(product(plan.loads, plan.loaded_with))
    if round_ == REPEATED:
        sets, cells = SETS_REPEATED, cells[:1]
    names = [arm.name for arm in plan.arms]
    for (cell, (load, class_)), set_ in product(enumerate(cells), range(sets)):
        for arm in arm_order(names, 2 * cell + set_):  # the next cell begins with another arm
            yield Block(
                plan=plan,
                arm=arm,
                class_=class_,
                load=load,
                phase="measured",
                round=round_,
                number=set_ + 1,
                session=again,
                counted=set_size(plan, load),
            )


def set_size(plan: Plan, load: Load) -> int:
    """The minimum number of requests of an arm that count in a set of a cell."""
    classes = len(plan.classes) if plan.loaded_with == (MIXED,) else 1
    return cell_size.set_size(requests=plan.requests, classes=classes, concurrency=load.concurrency)


def warmup_blocks(plan: Plan, session: int, *, concurrency: int | None = None) -> Iterator[Block]:
    """Unmeasured requests to each arm over all classes, with nonces of their own in each session: `warmup` of them,
    and at least as many as the largest load has in flight, or `concurrency`."""
    largest = max(load.concurrency or _OPEN_LOOP_WARMUP for load in plan.loads)
    load = Load(concurrency=concurrency or largest)
    number = max(plan.warmup, load.concurrency or 0) if plan.warmup else 0
    asked = len(plan.prompts)
    mixed = [plan.prompts[index * asked // number % asked] for index in range(number)]
    name = f"warmup/{session}" + (f"/{concurrency}" if concurrency else "")
    ids = [f"{name}/{index:04d}" for index in range(number)]
    chosen = tuple(
        Pair(id=id_, prompt=prompt, nonce=_nonce(plan.seed, id_, prompt))
        for id_, prompt in zip(ids, mixed, strict=True)
    )
    about: dict[str, Any] = {"load": load, "phase": "warmup", "pairs": chosen, "session": session}
    for arm in plan.arms if chosen else ():
        yield Block(plan=plan, arm=arm.name, class_="warm-up", **about)


def more_warmup(plan: Plan, concurrency: int, answer_s: float) -> int | None:
    """The requests in flight for another warm-up: as many as the highest rate of the plan has in flight if an answer takes `answer_s`
    (Little's law). None if the last warm-up, with `concurrency`, was enough."""
    highest = max(load.rate_per_s or 0.0 for load in plan.loads)
    needed = min(math.ceil(highest * answer_s), _MAX_WARMUP)
    return needed if needed > concurrency else None


def arm_order(arms: list[str], set_index: int) -> list[str]:
    """The order of the arms in a set: reversed in every second set, rotated after every second set."""
    turn = set_index // 2 % len(arms)
    order = arms[turn:] + arms[:turn]
    return order[::-1] if set_index % 2 else order


def requests_about(plan: Plan) -> int:
    """The approximate number of requests of a run, including ramp, drain and warm-up."""
    blocks = [*measured_blocks(plan), *measured_blocks(plan, REPEATED)]
    sent = sum(block.counted + 3 * (block.load.concurrency or 0) for block in blocks)
    return sent + sum(len(block.pairs) for block in warmup_blocks(plan, 1))


def _nonce(seed: int, id_: str, prompt: PlannedPrompt) -> str:
    return hashlib.sha256(f"{seed}/{id_}/{prompt.id}".encode()).hexdigest()[:6]


class SteadyLoad:
    """A load that is held constant during measurement: which requests a block sends, and which of them count.

    With a concurrency, the next request is sent as soon as one has ended. The first requests start spread over the time of one
    answer, so that they do not run in lockstep. The requests that are sent in the steady window count. It opens when all have
    started and the time of one answer has passed. It closes when enough requests were sent and it is at least ANSWERS_PER_BLOCK
    median answers long. Sending continues until the last request that counts has ended, so each of them had the whole load.
    Requests before the window are called `ramp`, those after it `drain`; both are recorded, but not in any result.

    Because requests count by the time of sending, and every answer is awaited, long and short answers are equally likely to
    count. For requests at a rate the same rules hold; they are sent when they are due, without a limit on requests in flight.

    This class has no clock and does no input or output: the client drives it, and so does a simulation. All times are seconds
    since the start of the block.
    """

    def __init__(
        self,
        *,
        concurrency: int | None,
        counted: int,
        answer_s: float | None,
        light_s: float | None = None,
        max_s: float | None = None,
    ) -> None:
        """`concurrency` is the number of requests in flight, None at a rate. `counted` is the minimum number of requests that count, unless
        the window reaches `max_s`. `answer_s` is the expected time of an answer; if None, the ramp ends when as many requests have
        ended as are in flight. `light_s` is the time of an answer under a light load."""
        self.concurrency, self.counted, self.answer_s = concurrency, counted, answer_s
        slots = concurrency or 1
        self._spread_s = max(answer_s or 0.0, slots * STAGGER_S)
        self.starts_s = [slot * self._spread_s / slots for slot in range(slots)]
        """The time of the first request of each slot, spread over one answer."""
        self._max_s = math.inf if max_s is None else max_s
        self._sent = self._open = self._ended = 0
        self._answers_s: list[float] = []
        self._enough_s = _MAX_WINDOW_ANSWERS * (light_s or 0.0)
        self.steady_from_s: float | None = None
        self.steady_until_s: float | None = None

    def send(self, now_s: float) -> Phase | None:
        """The phase of the request to send now; None if the block sends no more requests."""
        if self.steady_from_s is None:
            if not self._built_up(now_s):
                return "ramp"
            self.steady_from_s = now_s
            self._enough_s = self._enough_s or _MAX_WINDOW_ANSWERS * (self.median_s or 0.0)
        if self.steady_until_s is None:
            if not self._enough(now_s):
                self._sent += 1
                self._open += 1
                return "measured"
            self.steady_until_s = now_s
        return "drain" if self._open and not self._given_up(now_s) else None

    def _given_up(self, now_s: float) -> bool:
        """Whether to stop the drain. At a rate above the capacity of a server, requests after the window only lengthen its queue, so they are
        sent no longer than the window was."""
        begin, end = self.steady_from_s or 0.0, self.steady_until_s or 0.0
        return self.concurrency is None and now_s - end >= end - begin

    def ended(self, phase: Phase, *, took_s: float, ok: bool) -> float:
        """Record that a request has ended after `took_s`; returns the seconds that its slot waits before the next one. After a failure it
        waits for the time of an answer. Otherwise a server that refuses at once, and the journal, would be flooded."""
        self._ended += 1
        self._open -= phase == "measured"
        if ok:
            insort(self._answers_s, took_s)
            return 0.0
        return max(0.0, (self.median_s or self._spread_s) - took_s)

    @property
    def median_s(self) -> float | None:
        """The median time of an answer in this block, or the expected one."""
        known = self._answers_s
        return known[len(known) // 2] if known else self.answer_s

    def _built_up(self, now_s: float) -> bool:
        if self.answer_s is None and self._ended < (self.concurrency or 1):
            return False
        return now_s >= max(self.answer_s or 0.0, self.starts_s[-1])

    def _enough(self, now_s: float) -> bool:
        lasted_s = now_s - (self.steady_from_s or 0.0)
        if lasted_s >= self._max_s:
            return self._sent > 0
        if self._sent < self.counted:
            return False
        if self.concurrency is None and lasted_s >= self._enough_s > 0:
            return True
        return lasted_s >= ANSWERS_PER_BLOCK * (self.median_s or 0.0)
