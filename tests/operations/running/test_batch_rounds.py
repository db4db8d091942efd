"""A run of two sizes of the batch on one node: what is compiled, loaded and compared in each round."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmark.analyse.expectation import FILE_NAME
from benchmark.plan import from_dict
from experiment import load
from experiment.compilation import artifact_key
from experiment.naming import BENCHMARK_NAME, PLAN_FILE
from operations.cloud.aws import Aws
from tests.experiment.edits import put
from tests.operations.driver import Driver, driver_of

SIZES = ("", "-b8")


@pytest.fixture
def two_sizes(aws: Aws, variation: Callable[..., Path], tmp_path: Path) -> Driver:
    return driver_of(load(variation(put("serving.max_num_seqs", [4, 8]))), aws, tmp_path)


def test_each_size_is_loaded_in_a_round_of_its_own_and_all_rounds_have_a_report(two_sizes: Driver) -> None:
    two_sizes.run()
    out = two_sizes.out
    assert two_sizes.reports == [out / "round-1", out / "round-2", out]
    assert (out / FILE_NAME).read_text() == (out / "round-1" / FILE_NAME).read_text()
    plans = {one["metadata"]["name"]: one["data"] for one in two_sizes.world.api.of("configmaps")}
    for job, size in zip(two_sizes.jobs(BENCHMARK_NAME), SIZES, strict=True):
        (volume,) = job["spec"]["template"]["spec"]["volumes"]
        plan = from_dict(json.loads(plans[volume["configMap"]["name"]][PLAN_FILE]))
        own = f"qwen-vllm{size}"
        assert plan.baselines == {own: own, f"qwen-sd-vllm{size}": own}


def test_every_arm_is_compiled_and_its_engine_is_compared_with_its_own_baseline(two_sizes: Driver) -> None:
    two_sizes.run()
    arms = {arm.name: artifact_key(arm) for arm in two_sizes.world.experiment.arms}
    assert len(set(arms.values())) == 4 == len(two_sizes.artifacts())
    for size in SIZES:
        compared = json.loads((two_sizes.out / "engines" / f"qwen-sd-vllm{size}.json").read_text())
        assert compared["baseline"].endswith(arms[f"qwen-vllm{size}"])
    assert not (two_sizes.out / "engines" / "qwen-vllm-b8.json").exists()
