from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import pytest

from tests.benchmark.conftest import plan_content
from trnspec.benchmark.cell_size import ANSWERS_PER_BLOCK, SETS, SETS_REPEATED
from trnspec.benchmark.measure.records import REPEATED
from trnspec.benchmark.measure.schedule import (
    Block,
    Pair,
    arm_order,
    measured_blocks,
    set_size,
    warmup_blocks,
)
from trnspec.benchmark.plan import MIXED, Load, Plan, from_dict

BESIDE = 5
"""Requests that build a load up or keep it up, of each block that is looked at."""


def plan(names: str = "ab", *, same_address: bool = False, **changes: Any) -> Plan:
    arms = [{"name": name, "url": f"http://{'one' if same_address else name}:8000/v1"} for name in names]
    return from_dict(plan_content(**{"arms": arms, "baseline": names[0], **changes}))


def blocks_of(made: Plan, round_: int = 1, **place: int) -> list[Block]:
    return list(measured_blocks(made, round_, **place))


def counted(block: Block, more: int = 0) -> list[Pair]:
    """The requests of the block that count, and so many more of those that follow where the load has to be held longer."""
    return list(islice(block.measured(), block.counted + more))


def unmeasured(block: Block) -> list[Pair]:
    return list(islice(block.unmeasured(), BESIDE))


def sent_in(block: Block) -> list[Pair]:
    return [*counted(block), *unmeasured(block)]


def of_arm(blocks: list[Block], arm: str) -> list[Pair]:
    return [pair for block in blocks if block.arm == arm for pair in counted(block)]


def order(blocks: list[Block]) -> str:
    return "".join(block.arm for block in blocks)


@pytest.mark.parametrize("case", range(20))
def test_each_arm_is_asked_the_same_pairs_in_the_same_order_and_no_nonce_comes_again(case: int) -> None:
    chance = random.Random(case)
    names, same_address = "abcd"[: chance.randint(2, 4)], case % 3 == 0
    asked: dict[str, Any] = {"requests": chance.randint(1, 40)}
    closed, opened = {"concurrency": chance.sample(range(1, 4), 2)}, {"concurrency": [], "rate": [0.5, 20.0]}
    asked |= chance.choice((closed, opened)) | {"mixed": chance.random() < 0.3}
    made, again, other = (
        plan(names, same_address=same_address, seed=seed, **asked) for seed in (case, case, case + 100)
    )
    assert blocks_of(made) == blocks_of(again), "the seed decides"
    assert [counted(one) for one in blocks_of(made)] == [counted(one) for one in blocks_of(again)]
    runs = [blocks_of(made), blocks_of(other)]
    first = of_arm([*chain(*runs)], "a")
    everything: list[Pair] = []
    for arm in names:
        blocks = [block for block in chain(*runs) if block.arm == arm]
        chosen = of_arm(blocks, arm)
        assert len(chosen) >= 2 * 2 * 2 * made.requests, "of two runs, two loads, two classes"
        assert [(p.id, p.prompt.id, p.gap_s) for p in chosen] == [(p.id, p.prompt.id, p.gap_s) for p in first]
        used = Counter(pair.prompt.id for pair in chosen)
        assert max(used.values()) - min(used[one.id] for one in made.prompts) <= 4, "prompts take turns"
        sent = [*chain.from_iterable(map(sent_in, blocks))]
        assert len({pair.nonce for pair in sent}) == len(sent)
        of_one_run = [pair for block in runs[0] if block.arm == arm for pair in sent_in(block)]
        assert len({pair.id for pair in of_one_run}) == len(of_one_run)
        everything += sent
    if same_address:
        asked_for = {(pair.nonce, pair.prompt.id) for pair in everything}
        assert len(asked_for) == len(everything), "else they would be cached"


def test_two_arms_take_turns_in_abba_order_and_each_of_three_comes_first_and_last_equally_often() -> None:
    blocks = blocks_of(plan(requests=32, concurrency=[4]))
    for class_ in ("chat", "raw"):
        assert sorted(order([block for block in blocks if block.class_ == class_])) == list("aaaabbbb")
    assert order(blocks) == "abbabaab" + "baababba", "the second cell begins with the other arm"
    assert [block.number for block in blocks if block.arm == "a"] == [1, 2, 3, 4] * 2
    orders = [arm_order(["a", "b", "c"], index) for index in range(6)]
    for place in (0, -1):
        assert Counter(order[place] for order in orders) == Counter("aabbcc")


@pytest.mark.parametrize(("requests", "size"), [(1, 16), (64, 16), (65, 17), (640, 160)])
def test_a_cell_has_four_blocks_an_arm_each_with_at_least_four_waves(requests: int, size: int) -> None:
    made = plan(requests=requests, concurrency=[4])
    assert set_size(made, Load(concurrency=4)) == size
    own = [one for one in blocks_of(made) if (one.arm, one.class_) == ("a", "chat")]
    assert [len(counted(block)) for block in own] == [size] * SETS


def test_a_block_goes_on_with_the_prompts_after_those_before() -> None:
    made = plan(requests=5, concurrency=[1], prompts=plan_content()["prompts"][:6])
    prompts = [pair.prompt.id for pair in of_arm(blocks_of(made), "a")]
    assert len(prompts) == SETS * ANSWERS_PER_BLOCK
    for first in range(0, len(prompts) - 5, 6):
        assert len(set(prompts[first : first + 6])) == 6, "each prompt once before one comes again"


def test_what_a_block_has_beyond_its_size_is_in_no_other_block() -> None:
    first, other, *rest = blocks_of(plan(concurrency=[2]))
    more = [one.id for one in counted(first, more=7)]
    assert more[: len(counted(other))] == [one.id for one in counted(other)], "paired as far as both got"
    assert not {one.id for block in rest for one in counted(block)} & set(more)


def test_classes_that_share_a_cell_are_asked_in_turn_and_have_equal_shares_of_each_block() -> None:
    prompts = [
        {"id": f"{name}-{i}", "class": name, "prompt": f"{i}"} for name in ("x", "y", "z") for i in range(2)
    ]
    made = plan(prompts=prompts, mixed=True, requests=7, concurrency=[2, 5])
    blocks = blocks_of(made)
    assert {block.class_ for block in blocks} == {MIXED}
    assert order(blocks[: 2 * SETS]) == "abbabaab"
    for load, pairs in ((2, 28 // SETS), (5, ANSWERS_PER_BLOCK * 5)):
        for block in (one for one in blocks if one.load.concurrency == load):
            shares = Counter(pair.prompt.class_name for pair in counted(block))
            assert set(shares) == {"x", "y", "z"}
            assert len(set(shares.values())) == 1
            assert shares.total() >= pairs
    assert plan(prompts=prompts, mixed=True).requests * 3 <= SETS * set_size(made, Load(concurrency=2))
    alone = plan(prompts=prompts[:2], mixed=True)
    assert {block.class_ for block in blocks_of(alone)} == {"x"}, "one class is not a mix"


def test_warm_up_goes_to_each_arm_over_all_classes_and_is_new_in_each_sitting() -> None:
    first, again = (list(warmup_blocks(plan(warmup=4), session)) for session in (1, 2))
    assert [block.arm for block in first] == ["a", "b"]
    assert {pair.prompt.class_name for block in first for pair in block.pairs} == {"chat", "raw"}
    nonces = [{pair.nonce for block in blocks for pair in block.pairs} for blocks in (first, again)]
    assert len(nonces[0] | nonces[1]) == sum(map(len, nonces))
    assert list(warmup_blocks(plan(warmup=0), 1)) == []


@pytest.mark.parametrize(
    ("changes", "requests", "concurrency"),
    [
        ({"concurrency": [2, 32, 8], "warmup": 1}, 32, 32),
        ({"concurrency": [2], "warmup": 9}, 9, 2),
        ({"concurrency": [], "rate": [3.0], "warmup": 8}, 8, 4),
    ],
    ids=str,
)
def test_the_warm_up_has_the_largest_load(changes: dict[str, Any], requests: int, concurrency: int) -> None:
    for block in warmup_blocks(plan(**changes), 1):
        assert (len(block.pairs), block.load.concurrency) == (requests, concurrency)


def test_arrivals_at_a_rate_come_by_chance_in_four_blocks_none_faster_than_the_rate() -> None:
    blocks = blocks_of(plan(rate=[5.0], concurrency=[], requests=400))
    assert [len(counted(block)) for block in blocks] == [100] * SETS * 2 * 2, "so that a queue can build up"
    for block in blocks:
        gaps_s = [pair.gap_s or 0.0 for pair in counted(block)]
        assert len(set(gaps_s)) == 100
        assert sum(gaps_s) == pytest.approx(20.0)
        assert all(pair.gap_s for pair in (*counted(block, more=9), *unmeasured(block))), "also beside them"


def same_but_nonces(blocks: list[Block], others: list[Block], sent: Callable[[Block], list[Pair]]) -> None:
    for one, other in zip(blocks, others, strict=True):
        if sent is counted:
            asked = [[(pair.prompt.id, pair.gap_s) for pair in counted(block)] for block in (one, other)]
            assert asked[0] == asked[1]
        assert not {pair.nonce for pair in sent(one)} & {pair.nonce for pair in sent(other)}
        assert not {pair.id for pair in sent(one)} & {pair.id for pair in sent(other)}


@pytest.mark.parametrize("load", [Load(concurrency=2), Load(rate_per_s=2.0)], ids=str)
def test_the_repeated_first_cell_asks_the_same_anew_at_the_same_times(load: Load) -> None:
    five = plan_content()["prompts"][:5]  # the repeated round would begin with another
    if load.rate_per_s:
        cell = plan(requests=4, concurrency=[], rate=[load.rate_per_s, 9.0], prompts=five)
    else:
        cell = plan(requests=4, concurrency=[load.concurrency, 9], prompts=five)
    first, again = (blocks_of(cell, round_) for round_ in (1, REPEATED))
    assert order(again) == order(first)[: 2 * SETS_REPEATED] == "abba"
    assert {block.load for block in again} == {load}, "the first cell alone"
    same_but_nonces(first[: len(again)], again, counted)


def test_a_set_that_was_cut_short_asks_the_same_prompts_with_other_nonces() -> None:
    first, again = (blocks_of(plan(concurrency=[2]), again=session) for session in (1, 2))
    assert [one.key for one in first] == [one.key for one in again]
    same_but_nonces(first, again, counted)
    same_but_nonces(first, again, unmeasured)
