"""Loads that are searched or listed: what the file may say, and what it costs before anything is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from benchmark.cell_size import block_s
from benchmark.measure.records import REPEATED
from benchmark.measure.schedule import measured_blocks
from cdk8s_charts.workloads.benchmark_pod import plan
from experiment import Arm, Experiment, load
from experiment.arms import digest
from experiment.cost import RunPart, loading_s, run_price
from experiment.description import as_text
from experiment.expected import concurrent_sequences
from experiment.measurement import Benchmark
from tests.conftest import NODE_USD
from tests.experiment.edits import BY_RATE, SEARCHED, Variation, both, put


def test_a_searched_load_is_known_by_its_range_and_makes_another_experiment(
    variation: Variation, reference: Experiment
) -> None:
    searched = load(variation(SEARCHED))
    assert (searched.benchmark.known_concurrency, searched.benchmark.most_at_once) == ((), 64)
    assert searched.benchmark.limits == {"tpot_s": {"p90": 0.03}, "ttft_s": {"p90": 1.0}}
    rates = load(variation(BY_RATE))
    assert rates.benchmark.most_at_once is None
    for found in (searched, rates):
        assert concurrent_sequences(found, found.baseline) == 4, "the batch takes no more"
    assert len({digest(one) for one in (reference, searched, rates)}) == 3


def loaded_s(
    experiment: Experiment, *, arms: Sequence[Arm] = (), worst: bool = False, **settings: Any
) -> float:
    """With answers of one second, of both arms and all classes."""
    benchmark = Benchmark.model_validate({"requests": 32, **settings})
    found = replace(experiment, benchmark=benchmark)
    return loading_s(found, arms or experiment.arms, answer_s=1.0, worst=worst)


def test_what_a_search_may_take_is_its_cells_and_half_the_first_once_more(
    reference: Experiment, variation: Variation
) -> None:
    blocks = 2 * 4  # of both arms

    def cell(at_once: int, counted: int, answer_s: float = 1.0) -> float:
        return blocks * block_s(answer_s=answer_s, counted=counted, in_flight=at_once)

    # 8 requests of each of 5 classes in 4 sets: 10 a set count, and at 4 at once 4 answers of each place.
    one, two, four = cell(1, 10), cell(2, 10), cell(4, 20)
    few = {"search": [1, 4], "budget": {"cells": 3}}
    assert loaded_s(reference, load=few) == pytest.approx(one * 1.5 + two + four)
    # 64 at once wait for a batch of 4: an answer takes 16 times as long, and four of them are measured.
    ends = {"search": [1, 64], "budget": {"cells": 2}}
    assert loaded_s(reference, load=ends) == pytest.approx(one * 1.5 + cell(64, 260, 16.0))
    minute = {"search": [1, 4], "budget": {"minutes": 1.0}}
    assert loaded_s(reference, load=minute) == pytest.approx(60 + one * 1.5), (
        "a cell is begun, the first repeated"
    )
    half_a_node = {"search": [1, 4], "budget": {"usd": NODE_USD / 60}}
    assert loaded_s(reference, load=half_a_node) == pytest.approx(60 + one * 1.5)
    assert loaded_s(reference, load=few, cell_minutes=1.0) == pytest.approx(60 * 1.5 + 60 + 60)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("settings", [{}, {"concurrency": [1, 4]}, {"requests": 8}])
def test_the_minutes_that_are_paid_for_are_those_of_the_blocks_that_the_client_plans(
    reference: Experiment, settings: dict[str, Any], mixed: bool
) -> None:
    asked = Benchmark.model_validate({"concurrency": [4], "requests": 32, "mixed": mixed, **settings})
    experiment = replace(reference, benchmark=asked)
    planned = plan(experiment)
    blocks = [*measured_blocks(planned), *measured_blocks(planned, REPEATED)]
    taken = math.fsum(
        block_s(answer_s=1.0, counted=block.supply.counted, in_flight=block.load.concurrency or 0)
        for block in blocks
        if block.supply
    )
    assert loading_s(experiment, experiment.arms, answer_s=1.0) == pytest.approx(taken)


def test_all_arms_are_loaded_and_what_the_batch_does_not_hold_waits(reference: Experiment) -> None:
    block = block_s(answer_s=1.0, counted=16, in_flight=4)
    once, again = 2 * 4 * block * len(reference.classes), 2 * 2 * block
    assert loaded_s(reference, concurrency=[4]) == once + again
    waiting, place = loaded_s(reference, concurrency=[64]), block_s(answer_s=16, counted=256, in_flight=64)
    assert waiting == pytest.approx((once + again) / block * place), "what the batch does not hold waits"


def test_check_and_price_say_what_a_run_may_take_and_which_loads_are_a_queue(variation: Variation) -> None:
    def part(experiment: Experiment) -> RunPart:
        return next(part for part in run_price(experiment).parts if part.step == "benchmark")

    budget = put("benchmark.load.budget", {"cells": 8, "minutes": 30, "usd": 5})
    text = as_text(load(variation(both(SEARCHED, budget))))
    assert "1 to 64 requests at once, 8 a class or more\n" in text
    assert "0.5 to 8 requests a second, 8 a class or more\n" in as_text(load(variation(BY_RATE)))
    assert "a search of at most 8 cells, 30 minutes of loading, $5, then its first cell once more" in text
    assert "above serving.max_num_seqs = 4 requests wait for a place in the batch" in text
    needs = "objective TTFT p90 1 s, TPOT p90 0.03 s needs 29 different prompts per load, all within the limit; the smallest load has 40"
    assert needs in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100
    one = part(load(variation(SEARCHED)))
    assert needs in one.assumption
    two = part(load(variation(both(SEARCHED, put("serving.max_num_seqs", [4, 8])))))
    assert one.assumption.startswith("2 arms, a search of at most 12 cells")
    assert two.assumption.startswith("4 arms in 2 rounds, in each a search of at most 12 cells")
    three = part(load(variation(put("serving.max_num_seqs", [4, 8, 16]))))
    assert three.hours == pytest.approx(3 * part(load(variation(both()))).hours)
