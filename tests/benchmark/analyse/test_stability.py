"""What happened while a run was on: against runs whose truth is known, and in sentences."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import count, product
from typing import Any

import pytest

from benchmark.analyse.stability import stability
from benchmark.analyse.summary import summarise
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from tests.benchmark.records import WALL, answered, block, counted, raw_run

PROMPTS, SETS = 6, 4
BLOCK_S = 30.0
FALSE_ALARMS = 0.05
MOVED = ("slower", "faster")


def simulated(
    seed: int,
    *,
    slower_by: float = 0.0,
    rounds: int = 2,
    spread: float = 0.05,
    shared: float = 0.03,
    alike: float = 0.0,
) -> RawRun:
    """Two arms, two classes, blocks of six prompts in turns. Over the whole run `spec` becomes slower by that share. Prompts
    differ, requests have noise with heavy tails, and those of a block share some of it, of which `alike` is the
    correlation with the block before."""
    dice, clock, number = random.Random(seed), count(), count()
    level = {
        (arm, c, p): dice.gauss(0, 0.3) for arm in ("steady", "spec") for c in "ab" for p in range(PROMPTS)
    }
    total = rounds * 2 * SETS * 2
    requests, blocks, block_noise = [], [], dice.gauss(0, shared)
    for round_, class_, turn in product(range(rounds), "ab", range(SETS)):
        for arm in ("steady", "spec") if turn % 2 else ("spec", "steady"):
            begun = next(clock)
            at_s = begun * BLOCK_S
            moved = math.log1p(slower_by) * begun / total if arm == "spec" else 0.0
            block_noise = alike * block_noise + math.sqrt(1 - alike**2) * dice.gauss(0, shared)
            place: dict[str, Any] = {"class_": class_, "round": round_ + 1}
            blocks.append(block(at_s, BLOCK_S - 0.1, arm=arm, **place))
            for prompt in range(PROMPTS):
                noise = dice.gauss(0, spread) * (8 if dice.random() < 0.05 else 1) + block_noise
                tpot_s = 0.02 * math.exp(level[arm, class_, prompt] + noise + moved)
                place |= {"prompt_id": f"{class_}-{prompt}", "started_unix_s": WALL + at_s + prompt}
                times = (0.1, 0.1 + tpot_s, 0.1 + 2 * tpot_s)
                requests.append(answered(arm, next(number), chunk_s=times, **place))
    prompts = [{"id": f"{c}-{p}", "class": c, "prompt": f"{c} {p}"} for c in "ab" for p in range(PROMPTS)]
    raw = raw_run(*requests, prompts=prompts, rounds=rounds, requests=PROMPTS * SETS)
    return replace(raw, blocks=tuple(blocks))


def trends(runs: int, **known: Any) -> list[dict[str, dict[str, Any]]]:
    """Each arm's, of so many simulated runs."""
    found = [stability(simulated(seed, **known))["trends"] for seed in range(runs)]
    return [{row["arm"]: row for row in of_run} for of_run in found]


@pytest.mark.parametrize(
    "known",
    [{"rounds": 3}, {"rounds": 3, "spread": 0.3}, {"rounds": 6, "shared": 0.15}, {"rounds": 3, "shared": 0.05, "alike": 0.3}],
    ids=["three passes", "noisy requests", "noisy blocks", "neighbours alike"]
)  # fmt: skip
def test_runs_without_drift_alarm_in_at_most_five_of_a_hundred(known: dict[str, Any]) -> None:
    found = trends(60, **known)
    assert all(len(one) == 2 for one in found)
    wrong = sum(any(arm["verdict"] in MOVED for arm in one.values()) for one in found)
    assert wrong / len(found) <= FALSE_ALARMS


@pytest.mark.parametrize(("rounds", "slower_by"), [(3, 0.4), (6, 0.3)])
def test_an_arm_that_becomes_slower_is_found_and_its_neighbour_is_not(rounds: int, slower_by: float) -> None:
    found = trends(30, rounds=rounds, slower_by=slower_by)
    assert sum(one["spec"]["verdict"] == "slower" for one in found) >= 0.9 * len(found)
    assert sum(one["steady"]["verdict"] in MOVED for one in found) <= FALSE_ALARMS * len(found)
    truth = (1 + slower_by) ** (-2 / 3)  # from the middle of the first third to that of the last
    assert sum(one["spec"]["ci_low"] <= truth <= one["spec"]["ci_high"] for one in found) >= 0.9 * len(found)


def test_drift_is_reported_once_over_hours_of_loading_and_of_prompts_that_were_asked_twice() -> None:
    raw = simulated(1, rounds=8, slower_by=0.3)
    summary = summarise(raw)
    assert {one["arm"]: one["verdict"] for one in summary["course"]["trends"]}["spec"] == "slower"
    (said,) = (one for one in summary["run"]["warnings"] if "drift" in one)
    assert "spec was 0." in said
    assert "in the last third as in the first" in said
    assert not any("counters" in one or "nothing was measured" in one for one in summary["run"]["warnings"])
    renamed = [replace(one, prompt_id=one.pair_id) for one in raw.requests]
    assert stability(replace(raw, requests=tuple(renamed)))["trends"] == []
    few = [one for one in raw.blocks if one.started_unix_s < WALL + 4 * BLOCK_S]
    assert stability(replace(raw, blocks=tuple(few)))["trends"] == [], (
        "one block says nothing about what blocks do"
    )

    def later(one: Any) -> Any:
        after_half = one.started_unix_s >= WALL + 64 * BLOCK_S
        return replace(one, started_unix_s=one.started_unix_s + 36_000 * after_half)

    gap = replace(raw, requests=tuple(map(later, raw.requests)), blocks=tuple(map(later, raw.blocks)))
    found = stability(gap)
    for one, other in zip(found["trends"], summary["course"]["trends"], strict=True):
        assert (one["ratio"], one["hours"]) == pytest.approx((other["ratio"], other["hours"]))
    assert [round(one["seconds"]) for one in found["gaps"]] == [36_000]


def test_another_start_of_the_servers_is_neither_drift_nor_a_restart() -> None:
    """The second start is 30 % slower and counts from 0 again, because the run asked for it."""
    first = simulated(1, rounds=3)
    tokens = [{"tokens": 10.0 * n} for n in range(2 * len(first.blocks))]
    blocks = [
        replace(one, counters_before=tokens[2 * n], counters_after=tokens[2 * n + 1])
        for n, one in enumerate(first.blocks)
    ]
    later_s = len(blocks) * BLOCK_S

    def slowed(one: RequestRecord) -> RequestRecord:
        times = tuple(one.chunk_s[0] + 1.3 * (at - one.chunk_s[0]) for at in one.chunk_s)
        return replace(one, chunk_s=times, e2e_s=times[-1])

    both = replace(
        first,
        requests=(*first.requests, *(moved_on(slowed(one), later_s) for one in first.requests)),
        blocks=(*blocks, *(moved_on(one, later_s) for one in blocks)),
    )
    found = stability(both)
    assert [one["verdict"] in MOVED for one in found["trends"]] == [False, False]
    assert found["restarts"] == []
    alone = {one["arm"]: one["hours"] for one in stability(first)["trends"]}
    assert {one["arm"]: one["hours"] for one in found["trends"]} == pytest.approx(alone)


def moved_on(one: Any, later_s: float) -> Any:
    """The same under a second start."""
    return replace(one, started_unix_s=one.started_unix_s + later_s, start=2)


def test_a_server_that_counts_from_0_again_has_restarted() -> None:
    raw = raw_run(answered())
    growing = [{"tokens": 10.0 * n, "drafts": n} for n in range(8)]
    first, second, third = (
        replace(counted(growing[n], growing[n + 1]), started_unix_s=WALL + 30 * n) for n in range(0, 6, 2)
    )
    silent = replace(second, counters_before=None, counters_after=None)
    between = replace(third, counters_before={"tokens": 0.0}, counters_after={"tokens": 5.0})
    inside = replace(second, counters_after={"tokens": 3.0, "drafts": 1.0})
    for blocks, restarts in (
        ((first, second, third), []),
        ((first, silent, third), []),
        ((first, second, between), [("spec", "2026-09-21T14:15:01Z", "2026-09-21T14:16:00Z")]),
        ((first, inside), [("spec", "2026-09-21T14:15:00Z", "2026-09-21T14:15:01Z")]),
    ):
        found = stability(replace(raw, blocks=blocks))["restarts"]
        assert [(one["arm"], one["after"], one["before"]) for one in found] == restarts


def test_time_without_a_request_is_a_gap_and_a_long_request_is_none() -> None:
    def at(second: float) -> RequestRecord:
        return answered(pair=int(second), started_unix_s=WALL + second)

    raw = raw_run(at(0), at(50), at(200), at(9000))
    again = replace(raw.sessions[0], session=2, started_unix_s=WALL + 8990)
    resumed = replace(raw, sessions=(*raw.sessions, again))
    found = stability(resumed)["gaps"]
    assert [(round(one["seconds"]), one["resumed"]) for one in found] == [(150, False), (8800, True)]
    (said,) = (one for one in summarise(resumed)["run"]["warnings"] if "nothing was measured" in one)
    assert said.startswith("nothing was measured for 2.5 hours in 2 gaps, the longest from ")
    assert said.endswith("; after 1 of them the run was resumed")
    busy = replace(raw_run(at(0), at(200)), blocks=(block(0.0, 190.0),))
    assert stability(busy)["gaps"] == []
    assert stability(raw_run())["gaps"] == []
