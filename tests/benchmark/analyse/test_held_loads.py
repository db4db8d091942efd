"""Which requests of a held load count, what is said of one start and of drift."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tests.benchmark.records import WALL, answered, block, cautions, held, raw_run, summary_of
from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.analyse.request_table import CellKey
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import REPEATED, BlockRecord, RequestRecord
from trnspec.benchmark.plan import Load

PROMPTS, BLOCK_S = 8, 30.0


def blocks_in_turn(
    *, starts: int = 1, round_: int = 1, at_s: float = 0.0, gains: dict[tuple[int, int], float] | None = None
) -> Iterator[tuple[BlockRecord, list[RequestRecord]]]:
    """The blocks of a held cell, four or two of each start and arm, with a ramp and a drain; `gains`: by start and block, the factor
    by which the treatment is faster there, 1.08 unless said."""
    each = 4 if starts == 1 and round_ != REPEATED else 2
    for start, number, arm in product(range(1, starts + 1), range(1, each + 1), ("steady", "spec")):
        set_ = (start - 1) * each * (round_ != REPEATED) + number
        of_block = {"block": set_, "start": start, "round": round_}
        made = []
        for prompt in range(PROMPTS):
            step_s = 0.02 * (1 + 0.002 * prompt)
            if arm == "spec":
                step_s /= (gains or {}).get((start, number), 1.08)
            for phase, sent_s in (("ramp", 1.0), ("measured", 10.0), ("drain", 25.0)):
                step = step_s * (3 if phase != "measured" else 1)
                made.append(
                    answered(
                        arm, prompt, chunk_s=(0.1, 0.1 + step, 0.1 + 2 * step), phase=phase,
                        pair_id=f"{round_}/{set_}/{phase}/{prompt}", prompt_id=f"chat-{prompt}",
                        started_unix_s=WALL + at_s + sent_s + 0.5 * prompt, **of_block
                    )
                )  # fmt: skip
        window = {"steady_from_s": 10.0, "steady_until_s": 20.0}
        yield block(at_s, BLOCK_S, arm=arm, **of_block, **window), made
        at_s += BLOCK_S + 1


def run_of(**known: Any) -> RawRun:
    parts = list(blocks_in_turn(**known))
    prompts = [{"id": f"chat-{i}", "class": "chat", "prompt": f"p {i}"} for i in range(PROMPTS)]
    raw = held(raw_run(*(one for _, made in parts for one in made), prompts=prompts, requests=32))
    return replace(raw, blocks=tuple(record for record, _ in parts))


def headline(raw: RawRun) -> dict[str, Any]:
    return next(one for one in summary_of(raw)["comparisons"] if one["metric"] == "tpot_s")


def test_only_what_was_sent_in_a_block_that_ended_counts_and_of_a_set_sent_twice_the_last() -> None:
    first, place = run_of(), CellKey("chat", Load(concurrency=2))
    raw = replace(
        first,
        requests=tuple(replace(one, session=2) for one in first.requests),
        blocks=tuple(replace(one, session=2) for one in first.blocks),
    )
    cells = cells_of(raw)
    assert {one.phase for one in cells.of(raw.plan.arms[0], place).answers} == {"measured"}
    assert len(cells.of(raw.plan.arms[0], place)) == 4 * PROMPTS
    cut = [replace(one, pair_id=f"cut/{one.pair_id}") for one in first.requests if one.block == 2]
    earlier = [one for one in first.blocks if one.block == 2]
    for blocks in (raw.blocks, (*earlier, *raw.blocks)):
        again = cells_of(replace(raw, requests=(*cut, *raw.requests), blocks=blocks))
        for arm in raw.plan.arms:
            assert again.of(arm, place).answers == cells.of(arm, place).answers
            assert again.blocks_of(arm, place) == cells.blocks_of(arm, place)
    cut_short = replace(raw, blocks=raw.blocks[2:])
    assert {one.block for one in cells_of(cut_short).of(raw.plan.arms[0], place).answers} == {2, 3, 4}


def test_blocks_of_two_classes_have_the_same_numbers_and_windows_of_their_own() -> None:
    def later(one: Any, **more: Any) -> Any:
        return replace(one, class_="raw", started_unix_s=one.started_unix_s + 1000, **more)

    raw = run_of()
    other = [
        later(one, prompt_id=f"raw{one.prompt_id}", pair_id=f"raw/{one.pair_id}") for one in raw.requests
    ]
    prompts = [
        {"id": f"{c}-{i}", "class": c, "prompt": f"p {i}"} for c in ("chat", "raw") for i in range(PROMPTS)
    ]
    both = held(raw_run(*raw.requests, *other, prompts=prompts))
    cells = cells_of(replace(both, blocks=(*raw.blocks, *map(later, raw.blocks))))
    assert [len(own) for own in cells.requests.values()] == [4 * PROMPTS] * 4
    assert len({int(own.cluster_ids.queue[0]) for own in cells.requests.values()}) == 2
    assert len({tuple(own.cluster_ids.block) for own in cells.requests.values()}) == 1


def test_what_a_held_load_delivers_is_by_the_length_of_its_steady_windows() -> None:
    cell = next(one for one in summary_of(run_of())["cells"] if one["arm"] == "steady" and one["n"])
    assert cell["throughput"]["loaded_s"] == pytest.approx(4 * 10.0)
    assert cell["throughput"]["requests_per_s"] == pytest.approx(4 * PROMPTS / 40.0)


def test_blocks_that_disagree_and_starts_that_disagree_make_a_speed_up_unsure() -> None:
    sure = headline(run_of())
    assert (sure["verdict"], sure["one_start"]) == ("faster", True)
    blocks = headline(run_of(gains={(1, 1): 1.0, (1, 2): 1.16, (1, 3): 1.0, (1, 4): 1.16}))
    assert (blocks["verdict"], blocks["one_start"]) == ("cannot tell", False)
    assert blocks["ratio"] == pytest.approx(1.08, abs=0.01)
    starts = headline(run_of(starts=2))
    assert (starts["verdict"], starts["one_start"]) == ("faster", False), "the mean over two starts"
    apart = {(1, 1): 1.12, (1, 2): 1.12, (2, 1): 1.06, (2, 2): 1.06}
    assert headline(run_of(starts=2, gains=apart))["verdict"] == "cannot tell"


def test_the_mean_over_starts_counts_each_start_alike() -> None:
    raw = run_of(starts=2, gains={(1, 1): 1.2, (1, 2): 1.2, (2, 1): 1.0, (2, 2): 1.0})
    fewer = [one for one in raw.requests if not (one.start == 2 and one.block == 4)]
    assert headline(replace(raw, requests=tuple(fewer)))["ratio"] == pytest.approx(math.sqrt(1.2), rel=1e-3)


@pytest.mark.parametrize(("gain", "moved"), [(1.08, None), (1.2, "faster")])
def test_a_list_of_loads_says_how_far_its_first_cell_drifted(gain: float, moved: str | None) -> None:
    again = list(blocks_in_turn(round_=REPEATED, at_s=1000.0, gains={(1, 1): gain, (1, 2): gain}))
    raw = run_of()
    whole = replace(
        raw,
        requests=(*raw.requests, *(one for _, made in again for one in made)),
        blocks=(*raw.blocks, *(record for record, _ in again)),
    )
    assert headline(whole) == headline(raw)
    summary = summary_of(whole)
    drift = {one["arm"]: one for one in summary["course"]["drift"]}
    assert drift["steady"]["verdict"] == "same"
    assert drift["spec"]["ratio"] == pytest.approx(gain / 1.08, rel=1e-3)
    said_ = [one for one in cautions(summary) if "first cell was repeated" in one]
    assert len(said_) == bool(moved)


def test_the_interval_is_called_one_over_starts_once_several_are_recorded() -> None:
    raw = run_of(starts=2)
    first = replace(raw, requests=tuple(one for one in raw.requests if one.start == 1))
    said_ = [summary_of(one)["run"]["interval"] for one in (first, raw)]
    assert ["prompts and blocks" in said_[0], "prompts and starts" in said_[1]] == [True, True]
