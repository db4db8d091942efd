from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from benchmark.measure.schedule import arm_order, measured_blocks, pairs, set_size, warmup_blocks
from benchmark.plan import Plan
from benchmark.plan_file import from_dict
from tests.benchmark.conftest import plan_content


def plan(**changes: Any) -> Plan:
    return from_dict(plan_content(**changes))


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
    assert [set_size(requests, 4) for requests in (4, 16, 32, 64, 640)] == [4, 4, 8, 16, 16]


def test_each_arm_gets_each_pair_once() -> None:
    made = plan(requests=10, concurrency=[2, 3])
    asked = Counter((b.arm, pair.id) for b in measured_blocks(made) for pair in b.pairs)
    assert set(asked.values()) == {1}
    assert len(asked) == 2 * 2 * 2 * 10


def test_prompts_are_used_in_turn_each_time_with_another_nonce() -> None:
    chosen = pairs(plan(requests=18), "chat", 2)
    assert set(Counter(pair.prompt.id for pair in chosen).values()) == {3}
    assert len({pair.nonce for pair in chosen}) == 18


def test_the_seed_alone_decides_the_nonces() -> None:
    made = plan()
    assert measured_blocks(made) == measured_blocks(plan())
    other = measured_blocks(replace(made, seed=2))
    nonces, others = ({p.nonce for b in of for p in b.pairs} for of in (measured_blocks(made), other))
    assert not nonces & others


def test_no_cell_repeats_a_nonce_of_another_concurrency() -> None:
    made = plan(concurrency=[1, 4])
    assert not {p.nonce for p in pairs(made, "chat", 1)} & {p.nonce for p in pairs(made, "chat", 4)}


def test_warm_up_goes_to_each_arm_over_all_classes_and_is_new_in_each_sitting() -> None:
    first, again = warmup_blocks(plan(warmup=4), 1), warmup_blocks(plan(warmup=4), 2)
    assert [block.arm for block in first] == ["steady", "spec"]
    assert {pair.class_ for pair in first[0].pairs} == {"chat", "raw"}
    assert not {p.nonce for p in first[0].pairs} & {p.nonce for p in again[0].pairs}
    assert warmup_blocks(plan(warmup=0), 1) == ()
