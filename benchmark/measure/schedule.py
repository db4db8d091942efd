"""Who is asked what, in which order: a pure function of the plan.

A pair is one prompt with one nonce, asked of each arm. Pairs come in sets; an arm is loaded with a whole
set, as the cell says, while the other arms idle. From set to set the order of the arms is turned round:
A B, B A, B A, A B, so that what drifts with time falls on each arm alike. A round is one pass over all cells.

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
from itertools import accumulate, chain, islice, product

from benchmark.measure.records import REPEATED, Phase, RequestRecord
from benchmark.plan import Arm, Load, Plan, Prompt

_SETS = 4
"""Sets a cell is cut into where it has the requests: the shortest order that cancels a linear and a
quadratic drift between two arms."""
_SEARCHED_SETS = 2
"""Those of a search's cell whose requests arrive at a rate: the fewest that turn the order round, and that show how much
depends on the times that were drawn."""
_MAX_WAVES = 4
"""The most requests that one slot of a block sends one after another."""
_OPEN_LOOP_WARMUP = 4
"""Requests in flight during the warm-up of a run whose cells have a rate instead, or are searched."""


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
    pairs: tuple[Pair, ...]
    round: int = 1


Turn = tuple[Block, ...]
"""Blocks that run at the same time: one, unless the plan loads its arms simultaneously."""


def pairs(plan: Plan, class_: str, load: Load, round_: int = 1) -> Iterator[Pair]:
    """The pairs of one cell in one round: the class's prompts in turn, each time with another nonce."""
    prompts = [prompt for prompt in plan.prompts if prompt.class_ == class_]
    # Drift is told from the same prompts, at the same times.
    chance = random.Random(f"{plan.seed}/{class_}/{load}/{1 if round_ == REPEATED else round_}")
    first = (round_ - 1) * plan.requests
    again = first if round_ == REPEATED else 0
    gaps_s = _gaps_s(plan, load, chance)
    for index in range(first, first + plan.requests):
        pair = _pair(f"{class_}/{load}/{index:04d}", prompts[(index - again) % len(prompts)], plan.seed)
        yield pair if load.rate_per_s is None else replace(pair, gap_s=next(gaps_s))


def _gaps_s(plan: Plan, load: Load, chance: random.Random) -> Iterator[float]:
    """Times between arrivals at a rate: of a Poisson process in which each set has just the requests that the rate expects of
    its time. So chance makes bursts, but no set that is faster or slower than the rate."""
    for size in set_sizes(plan, load) if load.rate_per_s else ():
        drawn = [chance.expovariate(1.0) for _ in range(size)]
        mean_s = size / (load.rate_per_s or 1.0) / math.fsum(drawn)
        yield from (mean_s * gap for gap in drawn)


def measured_turns(plan: Plan, round_: int = 1, before: int = 0) -> Iterator[Turn]:
    """All measured blocks of a round in the order in which they run; of a search's cell, after so many cells `before`."""
    arms = {arm.name: arm for arm in plan.arms}
    for load, (number, class_) in product(plan.loads, enumerate(plan.loaded_with)):
        asked = (
            replay(plan, load, round_)
            if plan.replayed
            else ([one] for one in pairs(plan, class_, load, round_))
        )
        sizes = set_sizes(plan, load)
        # The cells of a search have few sets: the order of the arms goes on from one class to the next.
        start = (before * len(plan.loaded_with) + number) * len(sizes) if plan.search else 0
        for index, size in enumerate(sizes, start=start):
            chosen = tuple(chain.from_iterable(islice(asked, size)))
            blocks = [
                Block(
                    arm=name,
                    class_=class_,
                    load=load,
                    phase="measured",
                    pairs=_for_arm(plan, arms[name], chosen),
                    round=round_,
                )
                for name in arm_order(list(arms), index)
            ]
            yield from [tuple(blocks)] if plan.simultaneous else [(block,) for block in blocks]


def replay(plan: Plan, load: Load, round_: int = 1) -> Iterator[list[Pair]]:
    """The conversations of one round in the order in which they begin; nearly all prompts are one by themselves."""
    chance, began_s = random.Random(f"{plan.seed}/{load}/{round_}"), 0.0
    gaps_s = _gaps_s(plan, load, chance)
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


def warmup_turns(plan: Plan, sitting: int) -> Iterator[Turn]:
    """`warmup` requests to each arm over all classes, with nonces of their own in each sitting."""
    first = [conversation[0] for conversation in plan.conversations]
    count = len(first)
    mixed = [first[i * count // plan.warmup % count] for i in range(plan.warmup)]
    chosen = tuple(_pair(f"warmup/{sitting}/{i:04d}", prompt, plan.seed) for i, prompt in enumerate(mixed))
    levels = [load.concurrency or _OPEN_LOOP_WARMUP for load in plan.loads]
    load = Load(concurrency=max(levels, default=_OPEN_LOOP_WARMUP))
    for arm in plan.arms if chosen else ():
        yield (Block(arm=arm.name, class_="warm-up", load=load, phase="warmup", pairs=chosen),)


def arm_order(arms: list[str], set_index: int) -> list[str]:
    """The order of the arms in one set: every second set reversed, every second pair of sets rotated."""
    turn = set_index // 2 % len(arms)
    order = arms[turn:] + arms[:turn]
    return order[::-1] if set_index % 2 else order


def set_sizes(plan: Plan, load: Load) -> list[int]:
    """Of each set of a cell, its pairs, or of a replay its conversations: whole waves of the concurrency, few enough that the
    arms take turns, the last one perhaps smaller.

    In an open loop a set is about a quarter of the cell's requests, since a queue needs time to build up, and of a search half
    of the cell.
    """
    units = [len(turns) for turns in plan.conversations] if plan.replayed else [1] * plan.requests
    if load.concurrency is not None:
        waves = len(units) // (_SETS * load.concurrency)
        size = load.concurrency * min(max(waves, 1), _MAX_WAVES)
        return [min(size, len(units) - first) for first in range(0, len(units), size)]
    share = (_SEARCHED_SETS if plan.search else _SETS) / sum(units)
    parts = Counter(int((end - n / 2) * share) for n, end in zip(units, accumulate(units), strict=True))
    return [parts[number] for number in sorted(parts)]


def blocks_in_round(plan: Plan) -> int:
    """How many blocks the turns of a round come to."""
    return len(plan.arms) * len(plan.loaded_with) * sum(len(set_sizes(plan, load)) for load in plan.loads)


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
