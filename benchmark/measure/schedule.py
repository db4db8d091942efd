"""Who is asked what, in which order: a pure function of the plan.

A pair is one prompt with one nonce, asked of each arm. Pairs come in sets; an arm is loaded with a whole
set, closed-loop at the cell's concurrency, while the other arms idle. From set to set the order of the arms
is turned round: A B, B A, B A, A B, so that what drifts with time falls on each arm alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from benchmark.measure.records import Phase
from benchmark.plan import Plan, Prompt

_SETS = 4
"""Sets a cell is cut into where it has the requests: the shortest order that cancels a linear and a
quadratic drift between two arms."""
_MAX_WAVES = 4
"""The most requests that one slot of a block sends one after another."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One prompt made unique."""

    id: str
    class_: str
    prompt: Prompt
    nonce: str


@dataclass(frozen=True, kw_only=True)
class Block:
    """Requests to one arm, `concurrency` at a time."""

    arm: str
    class_: str
    concurrency: int
    phase: Phase
    pairs: tuple[Pair, ...]


def pairs(plan: Plan, class_: str, concurrency: int) -> tuple[Pair, ...]:
    """The pairs of one cell: the class's prompts in turn, each time with another nonce."""
    prompts = [prompt for prompt in plan.prompts if prompt.class_ == class_]
    chosen = [prompts[i % len(prompts)] for i in range(plan.requests)]
    return tuple(
        _pair(f"{class_}/c{concurrency}/{i:04d}", prompt, plan.seed) for i, prompt in enumerate(chosen)
    )


def measured_blocks(plan: Plan) -> tuple[Block, ...]:
    """All measured blocks in the order in which they run."""
    return tuple(
        Block(arm=arm, class_=class_, concurrency=concurrency, phase="measured", pairs=chosen)
        for concurrency in plan.concurrency
        for class_ in plan.classes
        for index, chosen in enumerate(_sets(pairs(plan, class_, concurrency), concurrency))
        for arm in arm_order([arm.name for arm in plan.arms], index)
    )


def warmup_blocks(plan: Plan, sitting: int) -> tuple[Block, ...]:
    """`warmup` requests to each arm over all classes, with nonces of their own in each sitting."""
    count = len(plan.prompts)
    mixed = [plan.prompts[i * count // plan.warmup % count] for i in range(plan.warmup)]
    chosen = tuple(_pair(f"warmup/{sitting}/{i:04d}", prompt, plan.seed) for i, prompt in enumerate(mixed))
    concurrency = max(plan.concurrency)
    return tuple(
        Block(arm=arm.name, class_="warm-up", concurrency=concurrency, phase="warmup", pairs=chosen)
        for arm in plan.arms
        if chosen
    )


def arm_order(arms: list[str], set_index: int) -> list[str]:
    """The order of the arms in one set: every second set reversed, every second pair of sets rotated."""
    turn = set_index // 2 % len(arms)
    order = arms[turn:] + arms[:turn]
    return order[::-1] if set_index % 2 else order


def set_size(requests: int, concurrency: int) -> int:
    """Pairs in a set: whole waves of `concurrency`, few enough that the arms take turns."""
    waves = requests // (_SETS * concurrency)
    return concurrency * min(max(waves, 1), _MAX_WAVES)


def _sets(of_cell: tuple[Pair, ...], concurrency: int) -> Iterator[tuple[Pair, ...]]:
    size = set_size(len(of_cell), concurrency)
    for start in range(0, len(of_cell), size):
        yield of_cell[start : start + size]


def _pair(id_: str, prompt: Prompt, seed: int) -> Pair:
    nonce = hashlib.sha256(f"{seed}/{id_}/{prompt.id}".encode()).hexdigest()[:6]
    return Pair(id=id_, class_=prompt.class_, prompt=prompt, nonce=nonce)
