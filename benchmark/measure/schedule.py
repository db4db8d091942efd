"""Who is asked what, in which order: a pure function of the plan.

A pair is one prompt with one nonce, asked of each arm. A cell is cut into sets; in each an arm is loaded with a block, as
the cell says, while the other arms idle. From set to set the order of the arms is turned round: A B, B A, B A, A B, so that
what drifts with time falls on each arm alike. A round is one pass over all cells; a run with a held load repeats its
first cell at the end, in fewer sets, to show drift.

A load is held (`HeldLoad`): a block has no last pair, since its load is refilled until its requests have
ended. The requests that count come in the same order to each arm, so that they are pairs as far as both arms got.

Prompts with arrival times, and conversations, are replayed: all classes together, each prompt once in a round, in the
same order and at the same times to each arm. A replay is cut into parts as any open loop is; no conversation is cut.

Blocks are made as they are needed: a run of days takes no more memory than one of a minute.
"""

from __future__ import annotations

import hashlib
import math
import random
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, count, islice, product
from typing import TypeVar

from benchmark.cell_size import ANSWERS_A_BLOCK, SETS, SETS_A_START, set_size, sets_in_all
from benchmark.measure.records import REPEATED, BlockKey, Phase, RequestRecord
from benchmark.objectives import counted, planned
from benchmark.plan import MIXED, Load, Plan, PlannedArm, PlannedPrompt

_MAX_WAVES = 4
"""The most requests that one slot of a block of a replay sends one after another."""
_KEEPS_RATE = 16
"""Arrivals that keep the rate together, at least: of fewer, hardly any would come in bursts."""
_OPEN_LOOP_WARMUP = 4
"""Requests in flight in the first warm-up of a run whose cells have a rate instead."""
_MOST_WARMUP = 256
"""The most in flight in a warm-up for a rate: a rate that a server cannot answer would ask for more and more."""
_OVERLOADED = 3 * ANSWERS_A_BLOCK
"""Answers that a window takes at most at a rate, each as long as under a light load: at a rate that a server cannot answer, each answer
takes longer than the one before, and so does each block's median. A window of so many of those would never be over, or take longer from
block to block."""
STAGGER_S = 0.001
"""Between first requests, at least: opening many connections in one instant, a client would measure its own queue."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One prompt made unique."""

    id: str
    class_: str
    prompt: PlannedPrompt
    nonce: str
    gap_s: float | None = None
    """Open loop: how long after the pair before it, or after the block's start, it is sent; of a later turn, at least so
    long after its conversation began."""
    after: Pair | None = None
    """The turn before it, where it is a later turn of a conversation."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Requests to one arm."""

    arm: str
    class_: str
    load: Load
    phase: Phase
    pairs: tuple[Pair, ...] = ()
    """What is sent where the load is not held."""
    round: int = 1
    number: int | None = None
    """Which set of the cell it belongs to where its load is held, from 1."""
    start: int = 1
    """Which start of the servers it is to meet."""
    sitting: int = 1
    """The sitting in which it is carried out."""
    supply: Supply | None = None
    """What a held load is made of."""

    @property
    def key(self) -> BlockKey:
        """What its record is known by."""
        return self.arm, self.class_, self.load, self.round, self.number


@dataclass(frozen=True, kw_only=True)
class Supply:
    """Endless pairs of one block: those that count, in the same order for each arm, and those beside them."""

    plan: Plan
    arm: PlannedArm
    class_: str
    load: Load
    name: str
    """Which block it is; names of pairs begin with it."""
    arrivals: str
    """What its arrivals at a rate are drawn from: those of the repeated cell are the first cell's."""
    first: int
    """How many of the cell's requests that count are in the blocks before."""
    counted: int
    """How many of its own count, at least."""

    def measured(self) -> Iterator[Pair]:
        """Requests that count."""
        chance = random.Random(f"{self.plan.seed}/{self.class_}/{self.arrivals}")
        gaps_s = _gaps_s(self.load, max(self.counted, _KEEPS_RATE), chance)
        for index, prompt in enumerate(islice(_prompts(self.plan, self.class_), self.first, None)):
            yield self._pair(prompt, f"{index:04d}", next(gaps_s, None))

    def beside(self) -> Iterator[Pair]:
        """Requests that build the load up and keep it up afterwards."""
        chance = random.Random(f"{self.plan.seed}/{self.name}/beside/{self.arm.name}")
        prompts = [p for p in self.plan.prompts if self.class_ in (MIXED, p.class_)]
        for index in count():
            gap_s = chance.expovariate(self.load.rate_per_s) if self.load.rate_per_s else None
            yield self._pair(chance.choice(prompts), f"beside-{index:04d}", gap_s)

    def _pair(self, prompt: PlannedPrompt, index: str, gap_s: float | None) -> Pair:
        pair = _pair(f"{prompt.class_}/{self.name}.{index}", prompt, self.plan.seed)
        (own,) = _for_arm(self.plan, self.arm, (replace(pair, gap_s=gap_s),))
        return own


def _prompts(plan: Plan, class_: str) -> Iterator[PlannedPrompt]:
    """The prompts of a class again and again, each time in another order; of several classes one of each in turn."""

    def of(name: str) -> Iterator[PlannedPrompt]:
        prompts = [prompt for prompt in plan.prompts if prompt.class_ == name]
        for turn in count():
            yield from random.Random(f"{plan.seed}/{name}/{turn}").sample(prompts, len(prompts))

    yield from chain.from_iterable(zip(*map(of, plan.classes if class_ == MIXED else (class_,)), strict=True))


def _gaps_s(load: Load, size: int, chance: random.Random) -> Iterator[float]:
    """Times between arrivals at a rate: of a Poisson process in which each `size` requests, one after the other, take just the time
    that the rate expects of them. So chance makes bursts, but no block that is faster or slower than the rate."""
    while load.rate_per_s is not None:
        drawn = [chance.expovariate(1.0) for _ in range(size)]
        mean_s = size / load.rate_per_s / math.fsum(drawn)
        yield from (mean_s * gap for gap in drawn)


_Arm = TypeVar("_Arm")
Turn = tuple[Block, ...]
"""Blocks that run at the same time: one, unless the plan loads its arms simultaneously."""


def measured_turns(
    plan: Plan, round_: int = 1, before: int = 0, *, start: int = 1, again: int = 1
) -> Iterator[Turn]:
    """All measured blocks of a round under one start of the servers, in the order in which they run; of a search's cell, after
    so many cells `before`. `again` is the sitting, which names pairs that a set cut short had sent already."""
    each = sets_in_all(plan.starts) // plan.starts
    sets = range((start - 1) * each + 1, start * each + 1)
    cells = list(product(plan.loads, plan.loaded_with))
    if round_ == REPEATED:
        sets, cells = range(1, SETS_A_START + 1), cells[:1]
    for number, (load, class_) in enumerate(cells):
        block = partial(Block, class_=class_, load=load, phase="measured", round=round_)
        first = 0 if plan.replayed else (before + number) * SETS_A_START + sets[0] - 1
        if plan.replayed:
            talks = replay(plan, load, round_)
            parts = (tuple(chain.from_iterable(islice(talks, size))) for size in set_sizes(plan, load))
            turns = (
                [block(arm=arm.name, pairs=_for_arm(plan, arm, part)) for arm in plan.arms] for part in parts
            )
        else:
            turns = (
                [
                    block(arm=supply.arm.name, supply=supply, number=set_, start=start, sitting=again)
                    for supply in _supplies(plan, load, class_, round_, set_, again)
                ]
                for set_ in sets
            )
        for index, blocks in enumerate(turns, start=first):  # the order of the arms goes on from cell to cell
            ordered = arm_order(blocks, index)
            yield from [tuple(ordered)] if plan.simultaneous else [(block,) for block in ordered]


def _supplies(plan: Plan, load: Load, class_: str, round_: int, set_: int, again: int) -> Iterator[Supply]:
    """What each arm's block of a set is made of. Of the cell that is repeated it has the prompts that it had at first."""
    sizes = set_sizes(plan, load)
    pass_ = 1 if round_ == REPEATED else round_
    for arm in plan.arms:
        yield Supply(
            plan=plan,
            arm=arm,
            class_=class_,
            load=load,
            name=f"{load}/{round_}.{set_}" + (f".{again}" if again > 1 else ""),
            arrivals=f"{load}/{pass_}.{set_}",
            first=(pass_ - 1) * sum(sizes) + sum(sizes[: set_ - 1]),
            counted=sizes[set_ - 1],
        )


def set_sizes(plan: Plan, load: Load) -> list[int]:
    """How many requests of an arm count at least in each set of a cell, over all starts; the conversations of a replay's parts."""
    if plan.replayed:
        return _parts_of_replay(plan, load)
    classes = len(plan.classes) if plan.loaded_with == (MIXED,) else 1
    size = set_size(requests=plan.requests, classes=classes, starts=plan.starts, at_once=load.concurrency)
    return [size] * sets_in_all(plan.starts)


def fewest_prompts(plan: Plan) -> float:
    """For how many different prompts those count that an arm is asked at the lowest load (`benchmark.objectives`)."""
    each = list(Counter(prompt.class_ for prompt in plan.prompts).values())
    if plan.replayed:
        return counted(each)
    lowest = (
        plan.search.load(plan.search.low)
        if plan.search
        else min(plan.loads, key=lambda load: load.concurrency or 0)
    )
    return planned(
        each,
        requests=plan.cell(lowest).requests if plan.search else plan.requests,
        together=MIXED in plan.loaded_with,
        starts=plan.starts,
        at_once=lowest.concurrency,
        passes=plan.rounds,
    )


def _parts_of_replay(plan: Plan, load: Load) -> list[int]:
    """Whole waves of the concurrency, few enough that the arms take turns, the last one perhaps smaller; at recorded times, or
    at a rate, quarters of the requests, since a queue needs time to build up."""
    units = [len(turns) for turns in plan.conversations]
    if load.concurrency is not None:
        waves = len(units) // (SETS * load.concurrency)
        size = load.concurrency * min(max(waves, 1), _MAX_WAVES)
        return [min(size, len(units) - first) for first in range(0, len(units), size)]
    share = SETS / sum(units)
    parts = Counter(int((end - n / 2) * share) for n, end in zip(units, accumulate(units), strict=True))
    return [parts[number] for number in sorted(parts)]


def replay(plan: Plan, load: Load, round_: int = 1) -> Iterator[list[Pair]]:
    """The conversations of one round in the order in which they begin; nearly all prompts are one by themselves."""
    chance, began_s = random.Random(f"{plan.seed}/{load}/{round_}"), 0.0
    sizes = _parts_of_replay(plan, load) if load.rate_per_s else []
    gaps_s = chain.from_iterable(islice(_gaps_s(load, size, chance), size) for size in sizes)
    numbers = {
        prompt.id: number for number, prompt in enumerate(plan.prompts, start=(round_ - 1) * plan.requests)
    }
    for conversation in plan.conversations:
        turns: list[Pair] = []
        last_s, began_s = began_s, conversation[0].at_s or 0.0
        for prompt in conversation:
            pair = _pair(f"{prompt.class_}/{load}/{numbers[prompt.id]:04d}", prompt, plan.seed)
            if turns:
                gap_s = max(0.0, (prompt.at_s or 0.0) - began_s)
            else:
                gap_s = next(gaps_s) if load.rate_per_s else began_s - last_s
            turns.append(replace(pair, gap_s=gap_s, after=turns[-1] if turns else None))
        yield turns


def asked_as(plan: Plan, record: RequestRecord) -> Pair:
    """The pair of a record, with the nonce that the arm got."""
    if plan.replayed and record.phase == "measured":
        talks = replay(plan, record.load, record.round)
        asked = (pair for talk in talks for pair in _for_arm(plan, plan.arm(record.arm), tuple(talk)))
        return next(pair for pair in asked if pair.id == record.pair_id)
    prompt = next(prompt for prompt in plan.prompts if prompt.id == record.prompt_id)
    return Pair(id=record.pair_id, class_=record.class_, prompt=prompt, nonce=record.nonce)


def warmup_turns(plan: Plan, sitting: int, *, start: int = 1, at_once: int | None = None) -> Iterator[Turn]:
    """Unmeasured requests to each arm over all classes, with nonces of their own in each sitting and start: `warmup` of them,
    and at least as many as the largest load has in flight, or `at_once`."""
    first = [conversation[0] for conversation in plan.conversations]
    load = Load(concurrency=at_once or _most_at_once(plan))
    number = max(plan.warmup, load.concurrency or 0) if plan.held and plan.warmup else plan.warmup
    mixed = [first[index * len(first) // number % len(first)] for index in range(number)]
    name = f"warmup/{sitting}" + (f".{start}" if start > 1 else "") + (f"/{at_once}" if at_once else "")
    chosen = tuple(_pair(f"{name}/{index:04d}", prompt, plan.seed) for index, prompt in enumerate(mixed))
    for arm in plan.arms if chosen else ():
        yield (Block(arm=arm.name, class_="warm-up", load=load, phase="warmup", pairs=chosen, start=start),)


def _most_at_once(plan: Plan) -> int:
    if plan.search and plan.search.by == "concurrency":
        return int(plan.search.high)
    return max((load.concurrency or _OPEN_LOOP_WARMUP for load in plan.loads), default=_OPEN_LOOP_WARMUP)


def more_warmup(plan: Plan, at_once: int, answer_s: float) -> int | None:
    """With how many in flight servers are warmed up once more, because the plan's highest rate keeps that many under way where an
    answer takes `answer_s` (Little's law); None where the warm-up before, with `at_once`, was enough."""
    rates = [load.rate_per_s or 0.0 for load in plan.loads]
    if plan.search and plan.search.by == "rate":
        rates.append(plan.search.high)
    needed = min(math.ceil(max(rates, default=0.0) * answer_s), _MOST_WARMUP)
    return needed if plan.held and needed > at_once else None


def arm_order(arms: list[_Arm], set_index: int) -> list[_Arm]:
    """The order of the arms in one set: every second set reversed, every second pair of sets rotated."""
    turn = set_index // 2 % len(arms)
    order = arms[turn:] + arms[:turn]
    return order[::-1] if set_index % 2 else order


def requests_about(plan: Plan) -> int:
    """About how many requests a run of listed loads sends: those that count, those that build a load up and keep it up after
    them, the warm-up."""
    turns = list(measured_turns(plan))
    blocks = [block for turn in turns for block in turn] * plan.starts * plan.rounds
    blocks += chain.from_iterable(measured_turns(plan, REPEATED, start=plan.starts)) if plan.held else ()
    sent = sum(block.supply.counted + 3 * (block.load.concurrency or 0) for block in blocks if block.supply)
    return sent + sum(len(block.pairs) for block in chain(blocks, *warmup_turns(plan, 1)))


def threads(chosen: Iterable[Pair]) -> list[list[Pair]]:
    """Pairs that follow each other, by conversation; a turn whose turn before is not among them is the first."""
    by_last: dict[str, list[Pair]] = {}
    for pair in chosen:
        thread = by_last.pop(pair.after.id, []) if pair.after else []
        by_last[pair.id] = [*thread, pair]
    return list(by_last.values())


def _for_arm(plan: Plan, arm: PlannedArm, chosen: tuple[Pair, ...]) -> tuple[Pair, ...]:
    """The pairs as one arm is asked them, with the same nonces as the others.

    But not where its server answers for an arm before it, as in a comparison of A with A: they would be cached there.
    """
    if next(other for other in plan.arms if other.url == arm.url) is arm:
        return chosen
    by_id: dict[str, Pair] = {}
    for p in chosen:
        own = _nonce(plan.seed, f"{arm.name}/{p.id}", p.prompt)
        by_id[p.id] = replace(p, nonce=own, after=by_id[p.after.id] if p.after else None)
    return tuple(by_id.values())


def _pair(id_: str, prompt: PlannedPrompt, seed: int) -> Pair:
    return Pair(id=id_, class_=prompt.class_, prompt=prompt, nonce=_nonce(seed, id_, prompt))


def _nonce(seed: int, id_: str, prompt: PlannedPrompt) -> str:
    return hashlib.sha256(f"{seed}/{id_}/{prompt.id}".encode()).hexdigest()[:6]


class HeldLoad:
    """A load that is held while it is measured: which requests one block sends, and which of them count.

    So many requests are kept in flight by sending the next one as soon as one has ended. The first ones start one after the
    other over the length of one answer, so that they do not run in lockstep. Requests count that are sent in the steady window:
    it opens when all have started and one answer's time has passed, and closes when enough were sent and the window is at least
    ANSWERS_A_BLOCK times as long as a median answer. Sending goes on until the last one that counts has ended, so that each of
    them met the whole load. What is sent before the window is called `ramp`, what is sent after it `drain`: both are recorded,
    neither is in a figure.

    Counting by the time of sending, and waiting for each answer, gives long answers and short ones the same chance. Requests at
    a rate are counted alike; they arrive when they are due, however many are in flight.

    It has no clock and does no input or output: the client drives it, and so does a simulation. All times are seconds since the
    block began.
    """

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
        self._spread_s = max(answer_s or 0.0, slots * STAGGER_S)
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
