from __future__ import annotations

import random
from collections import Counter
from itertools import chain
from typing import Any

import pytest

from benchmark.measure.records import REPEATED
from benchmark.measure.schedule import Block, arm_order, blocks_in_round, measured_turns, pairs, warmup_turns
from benchmark.plan import Load, Plan, from_dict
from tests.benchmark.conftest import plan_content


def plan(names: str = "ab", *, same_address: bool = False, **changes: Any) -> Plan:
    arms = [{"name": name, "url": f"http://{'one' if same_address else name}:8000/v1"} for name in names]
    return from_dict(plan_content(**{"arms": arms, "baseline": names[0], **changes}))


def measured_blocks(made: Plan, round_: int = 1) -> list[Block]:
    return list(chain.from_iterable(measured_turns(made, round_)))


@pytest.mark.parametrize("case", range(20))
def test_each_arm_is_asked_the_same_pairs_once_and_no_nonce_comes_again(case: int) -> None:
    chance = random.Random(case)
    names, same_address = "abcd"[: chance.randint(2, 4)], case % 3 == 0
    asked: dict[str, Any] = {"requests": chance.randint(1, 40), "simultaneous": chance.random() < 0.3}
    closed, opened = {"concurrency": chance.sample(range(1, 9), 2)}, {"concurrency": [], "rate": [0.5, 20.0]}
    asked |= chance.choice((closed, opened))
    made, again, other = (
        plan(names, same_address=same_address, seed=seed, **asked) for seed in (case, case, case + 100)
    )
    assert measured_blocks(made) == measured_blocks(again), "the seed decides"
    rounds = [measured_blocks(made, 1), measured_blocks(made, 2), measured_blocks(other)]
    assert [len(blocks) for blocks in rounds] == [blocks_in_round(made)] * 3
    of_arm = {
        arm: [pair for block in chain(*rounds) if block.arm == arm for pair in block.pairs] for arm in names
    }
    for chosen in of_arm.values():
        assert len(chosen) == 3 * 2 * 2 * made.requests, "of three rounds, two loads, two classes"
        assert len({pair.nonce for pair in chosen}) == len(chosen)
        assert [(p.id, p.gap_s) for p in chosen] == [(p.id, p.gap_s) for p in of_arm["a"]]
        used = Counter(pair.prompt.id for pair in chosen)
        assert max(used.values()) - min(used[one.id] for one in made.prompts) <= 4, "prompts take turns"
    nonces = {pair.nonce for chosen in of_arm.values() for pair in chosen}
    assert len(nonces) == len(of_arm["a"]) * (len(names) if same_address else 1), "else they would be cached"


def test_two_arms_take_turns_in_abba_order_and_each_of_three_comes_first_and_last_equally_often() -> None:
    blocks = measured_blocks(plan(requests=32, concurrency=[4]))
    for class_ in ("chat", "raw"):
        assert "".join(block.arm for block in blocks if block.class_ == class_) == "abbabaab"
    orders = [arm_order(["a", "b", "c"], index) for index in range(6)]
    for place in (0, -1):
        assert Counter(order[place] for order in orders) == Counter("aabbcc")


@pytest.mark.parametrize(("requests", "size"), [(4, 4), (16, 4), (32, 8), (64, 16), (640, 16)])
def test_a_block_is_whole_waves_of_the_concurrency(requests: int, size: int) -> None:
    assert {len(block.pairs) for block in measured_blocks(plan(requests=requests, concurrency=[4]))} == {size}


def test_a_second_round_goes_on_with_the_prompts_of_the_first() -> None:
    second = pairs(plan(requests=4), "chat", Load(concurrency=4), 2)
    assert [pair.prompt.id for pair in second] == ["chat-4", "chat-5", "chat-0", "chat-1"]


def test_warm_up_goes_to_each_arm_over_all_classes_and_is_new_in_each_sitting() -> None:
    first, again = (list(warmup_turns(plan(warmup=4), sitting)) for sitting in (1, 2))
    assert [block.arm for (block,) in first] == ["a", "b"]
    assert {pair.class_ for (block,) in first for pair in block.pairs} == {"chat", "raw"}
    assert not {p.nonce for (b,) in first for p in b.pairs} & {p.nonce for (b,) in again for p in b.pairs}
    assert list(warmup_turns(plan(warmup=0), 1)) == []


def test_arrivals_at_a_rate_come_by_chance_in_four_blocks_none_faster_than_the_rate() -> None:
    blocks = [one for one in measured_blocks(plan(rate=[5.0], requests=400)) if one.load.rate_per_s]
    assert [len(block.pairs) for block in blocks] == [100] * 4 * 2 * 2, "so that a queue can build up"
    for block in blocks:
        gaps_s = [pair.gap_s or 0.0 for pair in block.pairs]
        assert len(set(gaps_s)) == 100
        assert sum(gaps_s) == pytest.approx(20.0)


def test_cells_of_a_search_take_a_quarter_and_begin_with_another_arm_each_time() -> None:
    made = plan(concurrency=[], requests=48, search={"low": 1, "high": 64})
    assert [made.cell(Load(concurrency=level)).requests for level in (1, 5, 12, 64)] == [12, 10, 12, 64]
    cell = made.cell(Load(concurrency=12))
    assert [next(measured_turns(cell, 1, before))[0].arm for before in range(4)] == ["a", "b", "a", "b"]
    wave = measured_blocks(made.cell(Load(concurrency=64)))
    assert "".join(block.arm for block in wave) == "abba", "turned round for each class"
    by_rate = plan(concurrency=[], requests=48, search={"low": 1, "high": 64, "by": "rate"})
    halves = measured_blocks(by_rate.cell(Load(rate_per_s=2.0)))[:4]
    assert [(block.arm, len(block.pairs)) for block in halves] == [("a", 6), ("b", 6), ("b", 6), ("a", 6)]


@pytest.mark.parametrize("load", [Load(concurrency=2), Load(rate_per_s=2.0)], ids=str)
def test_the_repeated_cell_of_a_search_asks_the_same_prompts_anew_at_the_same_times(load: Load) -> None:
    search = {"low": 1, "high": 4, "by": "rate" if load.rate_per_s else "concurrency"}
    five = plan_content()["prompts"][:5]  # the repeated round would begin with another
    cell = plan(requests=4, search=search, concurrency=[], prompts=five).cell(load)
    first, again = (list(pairs(cell, "chat", load, round_)) for round_ in (1, REPEATED))
    assert [(p.prompt.id, p.gap_s) for p in first] == [(p.prompt.id, p.gap_s) for p in again]
    assert not {pair.nonce for pair in first} & {pair.nonce for pair in again}
