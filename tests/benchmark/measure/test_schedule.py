from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmark.measure.records import REPEATED
from benchmark.measure.schedule import (
    Block,
    arm_order,
    blocks_in_round,
    measured_turns,
    pairs,
    set_sizes,
    warmup_turns,
)
from benchmark.plan import Load, Plan, from_dict
from tests.benchmark.conftest import plan_content


def plan(**changes: Any) -> Plan:
    content = plan_content(**changes)
    if "arms" not in changes:
        content["arms"][1]["url"] = "http://127.0.0.1:10/v1"
    return from_dict(content)


def measured_blocks(made: Plan, round_: int = 1) -> list[Block]:
    return [block for turn in measured_turns(made, round_) for block in turn]


FOUR = Load(concurrency=4)


def test_two_arms_take_turns_in_abba_order() -> None:
    blocks = measured_blocks(plan(requests=32, concurrency=[4]))
    for class_ in ("chat", "raw"):
        order = [block.arm for block in blocks if block.class_ == class_]
        assert order == ["steady", "spec", "spec", "steady", "spec", "steady", "steady", "spec"]


def test_each_of_three_arms_comes_first_and_last_equally_often() -> None:
    orders = [arm_order(["a", "b", "c"], index) for index in range(6)]
    assert (
        Counter(order[0] for order in orders) == Counter(order[-1] for order in orders) == Counter("aabbcc")
    )


def test_a_block_is_whole_waves_of_the_concurrency() -> None:
    assert [set_sizes(plan(requests=requests), FOUR)[0] for requests in (4, 16, 32, 64, 640)] == [
        4,
        4,
        8,
        16,
        16,
    ]


def test_each_arm_gets_each_pair_once() -> None:
    made = plan(requests=10, concurrency=[2, 3])
    asked = Counter((b.arm, pair.id) for b in measured_blocks(made) for pair in b.pairs)
    assert set(asked.values()) == {1}
    assert len(asked) == 2 * 2 * 2 * 10


def test_prompts_are_used_in_turn_each_time_with_another_nonce() -> None:
    chosen = list(pairs(plan(requests=18), "chat", FOUR))
    assert set(Counter(pair.prompt.id for pair in chosen).values()) == {3}
    assert len({pair.nonce for pair in chosen}) == 18


def test_the_seed_alone_decides_the_nonces_and_no_cell_repeats_one() -> None:
    made = plan(concurrency=[1, 4])
    assert measured_blocks(made) == measured_blocks(plan(concurrency=[1, 4]))
    blocks = [*measured_blocks(made), *measured_blocks(made.model_copy(update={"seed": 2}))]
    nonces = {pair.nonce for block in blocks if block.arm == "spec" for pair in block.pairs}
    assert len(nonces) == 2 * 2 * 2 * 6, "of two seeds, two levels, two classes"


def test_warm_up_goes_to_each_arm_over_all_classes_and_is_new_in_each_sitting() -> None:
    first, again = (list(warmup_turns(plan(warmup=4), sitting)) for sitting in (1, 2))
    assert [block.arm for (block,) in first] == ["steady", "spec"]
    assert {pair.class_ for (block,) in first for pair in block.pairs} == {"chat", "raw"}
    assert not {p.nonce for (b,) in first for p in b.pairs} & {p.nonce for (b,) in again for p in b.pairs}
    assert list(warmup_turns(plan(warmup=0), 1)) == []


def test_a_second_round_goes_on_with_the_prompts_and_repeats_no_nonce() -> None:
    made = plan(requests=4)
    first, second = (list(pairs(made, "chat", FOUR, round_)) for round_ in (1, 2))
    assert [pair.prompt.id for pair in second] == ["chat-4", "chat-5", "chat-0", "chat-1"]
    assert not {pair.nonce for pair in first} & {pair.nonce for pair in second}
    assert not {pair.id for pair in first} & {pair.id for pair in second}


def test_arrivals_at_a_rate_come_by_chance_and_alike_for_each_arm_in_four_blocks() -> None:
    made = plan(rate=[5.0], requests=400)
    gaps = [pair.gap_s or 0.0 for pair in pairs(made, "chat", Load(rate_per_s=5.0))]
    assert len(set(gaps)) == 400
    sets = [sum(gaps[first : first + 100]) for first in range(0, 400, 100)]
    assert sets == pytest.approx([20.0] * 4), "no set is faster or slower than the rate"
    of_arm = {
        arm: [pair.gap_s for block in measured_blocks(made) if block.arm == arm for pair in block.pairs]
        for arm in ("steady", "spec")
    }
    assert of_arm["steady"] == of_arm["spec"]
    lengths = [len(block.pairs) for block in measured_blocks(made) if block.class_ == "chat"]
    assert lengths == [100] * 8, "four blocks for each arm, so that a queue can build up"


def test_cells_of_a_search_take_a_quarter_and_begin_with_another_arm_each_time() -> None:
    made = plan(concurrency=[], requests=48, search={"low": 1, "high": 64})
    assert [made.cell(Load(concurrency=level)).requests for level in (1, 5, 12, 64)] == [12, 10, 12, 64]
    cell = made.cell(Load(concurrency=12))
    arms = [[turn[0].arm for turn in measured_turns(cell, 1, before)][:2] for before in range(4)]
    assert [order[0] for order in arms] == ["steady", "spec", "steady", "spec"]
    wave = [block for turn in measured_turns(made.cell(Load(concurrency=64))) for block in turn]
    assert [block.arm for block in wave] == ["steady", "spec", "spec", "steady"], (
        "turned round for each class"
    )
    by_rate = plan(concurrency=[], requests=48, search={"low": 1, "high": 64, "by": "rate"})
    blocks = [block for turn in measured_turns(by_rate.cell(Load(rate_per_s=2.0))) for block in turn]
    assert [(block.arm, len(block.pairs)) for block in blocks[:4]] == [
        ("steady", 6),
        ("spec", 6),
        ("spec", 6),
        ("steady", 6),
    ]


def test_the_repeated_cell_of_a_search_asks_the_same_prompts_anew() -> None:
    cell = plan(requests=4, search={"low": 1, "high": 4}, concurrency=[]).cell(Load(concurrency=2))
    first, again = (list(pairs(cell, "chat", Load(concurrency=2), round_)) for round_ in (1, REPEATED))
    assert [pair.prompt.id for pair in first] == [pair.prompt.id for pair in again]
    assert not {pair.nonce for pair in first} & {pair.nonce for pair in again}
    by_rate, rate = (
        plan(requests=4, search={"low": 1, "high": 4, "by": "rate"}, concurrency=[]),
        Load(rate_per_s=2.0),
    )
    gaps_s = [
        [one.gap_s for one in pairs(by_rate.cell(rate), "chat", rate, round_)] for round_ in (1, REPEATED)
    ]
    assert gaps_s[0] == gaps_s[1], "at the same times"


def test_the_number_of_blocks_is_known_before_they_are_made() -> None:
    uneven = {"requests": 10, "concurrency": [2, 3]}
    for changes in (uneven, {"requests": 9, "rate": [1.0]}, {"simultaneous": True}):
        made = plan(**changes)
        assert blocks_in_round(made) == len(measured_blocks(made))


def test_arms_on_one_server_have_nonces_of_their_own() -> None:
    arms = [{"name": name, "url": "http://one:8000/v1"} for name in ("a", "b")]
    made = plan(arms=arms, baseline="a")
    nonces = {arm: {p.nonce for b in measured_blocks(made) if b.arm == arm for p in b.pairs} for arm in "ab"}
    assert not nonces["a"] & nonces["b"]
    assert len(nonces["a"]) == len(nonces["b"]) == 12
