"""Who is asked what, in which order: a pure function of the plan.

A pair is one prompt with one nonce, asked of each arm. A cell is cut into sets; in each an arm is loaded with a block, as
the cell says, while the other arms idle. From set to set the order of the arms is turned round: A B, B A, B A, A B, so that
what drifts with time falls on each arm alike. A round is one pass over all cells; a run with a held load repeats its
first cell at the end, in fewer sets, to show drift.

A load is held (`benchmark.measure.held`): a block has no last pair, since its load is refilled until its requests have
ended. The requests that count come in the same order to each arm, so that they are pairs as far as both arms got.

Prompts with arrival times, and conversations, are replayed: all classes together, each prompt once in a round, in the
same order and at the same times to each arm. A replay is cut into parts as any open loop is; no conversation is cut.

Blocks are made as they are needed: a run of days takes no more memory than one of a minute.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, chain, count, islice, product

from benchmark.cell_size import SETS, SETS_A_START, set_size, sets_in_all
from benchmark.measure.records import REPEATED, BlockKey, Phase, RequestRecord
from benchmark.objectives import counted, planned
from benchmark.plan import MIXED, Arm, Load, Plan, Prompt

_MAX_WAVES = 4
"""The most requests that one slot of a block of a replay sends one after another."""
_KEEPS_RATE = 16
"""Arrivals that keep the rate together, at least: of fewer, hardly any would come in bursts."""
_OPEN_LOOP_WARMUP = 4
"""Requests in flight in the first warm-up of a run whose cells have a rate instead."""
_MOST_WARMUP = 256
"""In flight in a warm-up for a rate: one that a server cannot answer would ask for more and more."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One prompt made unique."""

    id: str
    class_: str
    prompt: Prompt
    nonce: str
    gap_s: float | None = None
    """Open loop: how long after the pair before it, or after the block's start, it is sent; of a later turn, at least so
    long after its conversation began."""
    after: Pair | None = None
    """Of a later turn of a conversation, the turn before it."""


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
    """Of a held load, which set of the cell it belongs to, from 1."""
    start: int = 1
    """Which start of the servers it is to meet."""
    sitting: int = 1
    """In which sitting it is carried out."""
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
    arm: Arm
    class_: str
    load: Load
    name: str
    """Which block it is; names of pairs begin with it."""
    arrivals: str
    """What its arrivals at a rate are drawn from: those of the repeated cell are the first cell's."""
    first: int
    """Of the cell's requests that count, how many are in the blocks before."""
    counted: int
    """Of its own, at least."""

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

    def _pair(self, prompt: Prompt, index: str, gap_s: float | None) -> Pair:
        pair = _pair(f"{prompt.class_}/{self.name}.{index}", prompt, self.plan.seed)
        (own,) = _for_arm(self.plan, self.arm, (replace(pair, gap_s=gap_s),))
        return own


def _prompts(plan: Plan, class_: str) -> Iterator[Prompt]:
    """The prompts of a class again and again, each time in another order; of several classes one of each in turn."""
    names = plan.classes if class_ == MIXED else (class_,)
    yield from chain.from_iterable(zip(*(_of_class(plan, name) for name in names), strict=True))


def _of_class(plan: Plan, class_: str) -> Iterator[Prompt]:
    prompts = [prompt for prompt in plan.prompts if prompt.class_ == class_]
    for turn in count():
        yield from random.Random(f"{plan.seed}/{class_}/{turn}").sample(prompts, len(prompts))


def _gaps_s(load: Load, size: int, chance: random.Random) -> Iterator[float]:
    """Times between arrivals at a rate: of a Poisson process in which each `size` requests, one after the other, take just the time
    that the rate expects of them. So chance makes bursts, but no block that is faster or slower than the rate."""
    while load.rate_per_s is not None:
        drawn = [chance.expovariate(1.0) for _ in range(size)]
        mean_s = size / load.rate_per_s / math.fsum(drawn)
        yield from (mean_s * gap for gap in drawn)


Turn = tuple[Block, ...]
"""Blocks that run at the same time: one, unless the plan loads its arms simultaneously."""


def measured_turns(
    plan: Plan, round_: int = 1, before: int = 0, *, start: int = 1, again: int = 1
) -> Iterator[Turn]:
    """All measured blocks of a round under one start of the servers, in the order in which they run; of a search's cell, after
    so many cells `before`. `again` is the sitting, which names pairs that a set cut short had sent already."""
    if plan.replayed:
        yield from _replayed_turns(plan, round_)
        return
    cells = list(product(plan.loads, plan.loaded_with))
    for number, (load, class_) in enumerate(cells if round_ != REPEATED else cells[:1]):
        # The order of the arms goes on from one cell to the next.
        shift = (before + number) * SETS_A_START
        for set_ in sets_of(plan, round_, start):
            blocks = [
                held_block(
                    plan, plan.arm(name), class_, load, round_=round_, number=set_, start=start, again=again
                )
                for name in arm_order([arm.name for arm in plan.arms], shift + set_ - 1)
            ]
            yield from [tuple(blocks)] if plan.simultaneous else [(block,) for block in blocks]


def held_block(
    plan: Plan, arm: Arm, class_: str, load: Load, *, round_: int, number: int, start: int, again: int = 1
) -> Block:
    """A block of a held load. Of the cell that is repeated it has the prompts that it had at first."""
    sizes = set_sizes(plan, load)
    pass_ = 1 if round_ == REPEATED else round_
    supply = Supply(
        plan=plan,
        arm=arm,
        class_=class_,
        load=load,
        name=f"{load}/{round_}.{number}" + (f".{again}" if again > 1 else ""),
        arrivals=f"{load}/{pass_}.{number}",
        first=(pass_ - 1) * sum(sizes) + sum(sizes[: number - 1]),
        counted=sizes[number - 1],
    )
    return Block(
        arm=arm.name,
        class_=class_,
        load=load,
        phase="measured",
        round=round_,
        number=number,
        start=start,
        sitting=again,
        supply=supply,
    )


def sets_of(plan: Plan, round_: int, start: int) -> range:
    """The numbers of the sets of a cell under one start of the servers."""
    each = sets_in_all(plan.starts) // plan.starts
    if round_ == REPEATED:
        return range(1, SETS_A_START + 1)
    return range((start - 1) * each + 1, start * each + 1)


def set_sizes(plan: Plan, load: Load) -> list[int]:
    """Of each set of a cell, over all starts, how many requests of an arm count at least; of a replay, its conversations."""
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


def _replayed_turns(plan: Plan, round_: int) -> Iterator[Turn]:
    for load, class_ in product(plan.loads, plan.loaded_with):
        asked = replay(plan, load, round_)
        for index, size in enumerate(set_sizes(plan, load)):
            chosen = tuple(chain.from_iterable(islice(asked, size)))
            blocks = [
                Block(
                    arm=name,
                    class_=class_,
                    load=load,
                    phase="measured",
                    pairs=_for_arm(plan, plan.arm(name), chosen),
                    round=round_,
                )
                for name in arm_order([arm.name for arm in plan.arms], index)
            ]
            yield from [tuple(blocks)] if plan.simultaneous else [(block,) for block in blocks]


def replay(plan: Plan, load: Load, round_: int = 1) -> Iterator[list[Pair]]:
    """The conversations of one round in the order in which they begin; nearly all prompts are one by themselves."""
    chance, began_s = random.Random(f"{plan.seed}/{load}/{round_}"), 0.0
    sizes = _parts_of_replay(plan, load) if load.rate_per_s else []
    gaps_s = chain.from_iterable(islice(_gaps_s(load, size, chance), size) for size in sizes)
    numbers = {one.id: number for number, one in enumerate(plan.prompts, start=(round_ - 1) * plan.requests)}
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
        load = Load(concurrency=record.concurrency, rate_per_s=record.rate_per_s)
        arm = plan.arm(record.arm)
        asked = chain.from_iterable(
            _for_arm(plan, arm, tuple(one)) for one in replay(plan, load, record.round)
        )
        return next(pair for pair in asked if pair.id == record.pair_id)
    prompt = next(one for one in plan.prompts if one.id == record.prompt_id)
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


def arm_order(arms: list[str], set_index: int) -> list[str]:
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
    found: dict[str, list[Pair]] = {}
    for pair in chosen:
        thread = found.pop(pair.after.id, []) if pair.after else []
        found[pair.id] = [*thread, pair]
    return list(found.values())


def _for_arm(plan: Plan, arm: Arm, chosen: tuple[Pair, ...]) -> tuple[Pair, ...]:
    """The pairs as one arm is asked them, with the same nonces as the others.

    But not where its server answers for an arm before it, as in a comparison of A with A: they would be cached there.
    """
    if next(one for one in plan.arms if one.url == arm.url) is arm:
        return chosen
    found: dict[str, Pair] = {}
    for p in chosen:
        own = _nonce(plan.seed, f"{arm.name}/{p.id}", p.prompt)
        found[p.id] = replace(p, nonce=own, after=found[p.after.id] if p.after else None)
    return tuple(found.values())


def _pair(id_: str, prompt: Prompt, seed: int) -> Pair:
    return Pair(id=id_, class_=prompt.class_, prompt=prompt, nonce=_nonce(seed, id_, prompt))


def _nonce(seed: int, id_: str, prompt: Prompt) -> str:
    return hashlib.sha256(f"{seed}/{id_}/{prompt.id}".encode()).hexdigest()[:6]
