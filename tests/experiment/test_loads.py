"""The loads of the file: what they cost before anything is measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from cdk8s_charts.workloads.benchmark_pod import plan
from tests.experiment.edits import Variation, both, put
from trnspec.benchmark.cell_size import block_s
from trnspec.benchmark.measure.records import REPEATED
from trnspec.benchmark.measure.schedule import measured_blocks
from trnspec.experiment import Experiment, load
from trnspec.experiment.cost import RunPart, loading_s, run_parts
from trnspec.experiment.description import as_text
from trnspec.experiment.model import Benchmark


def loaded_s(experiment: Experiment, **settings: Any) -> float:
    """With answers of one second, of both arms and all classes."""
    found = replace(experiment, benchmark=Benchmark.model_validate({"requests": 32, **settings}))
    return loading_s(found, experiment.arms, answer_s=1.0)


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
        block_s(answer_s=1.0, counted=block.counted, in_flight=block.load.concurrency or 0)
        for block in blocks
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
        return next(part for part in run_parts(experiment) if part.step == "benchmark")

    text = as_text(load(variation(both(put("benchmark.concurrency", [1, 8]), put("benchmark.requests", 40)))))
    assert "concurrency 1, 8, at least 40 requests per class " in " ".join(text.split())
    assert "above serving.max_num_seqs = 4 requests wait for a place in the batch" in text
    assert max(map(len, text.partition("\nnext: ")[0].splitlines())) <= 100
    assert part(load(variation(both()))).assumption.startswith(
        "2 arms, 16 requests or more of each class at each load, at most"
    )
    three = part(load(variation(put("serving.max_num_seqs", [4, 8, 16]))))
    assert three.hours == pytest.approx(3 * part(load(variation(both()))).hours)
