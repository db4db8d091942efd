"""Rounds of arms, and the plans of rounds in which not all stand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cdk8s_charts.manifests import read
from experiment import load
from experiment.placement import batches, place, rounds
from operations.options import experiment_of
from operations.running import job_control
from tests.conftest import REFERENCE, ROOT

EXPERIMENTS = [
    path for path in sorted((ROOT / "experiments").glob("*.yaml")) if not path.name.startswith("lab-")
]


def test_arms_that_fit_at_once_are_one_round() -> None:
    experiment = load(REFERENCE)
    assert rounds(experiment) == (experiment.served_arms,)


def test_every_later_round_has_the_baseline_in_it(variation: Callable[..., Path]) -> None:
    def sweep(data: dict[str, list[dict[str, dict[str, object]]]]) -> None:
        data["arms"][1]["speculation"]["num_speculative_tokens"] = [3, 5, 7]

    experiment = load(variation(sweep))
    assert batches(experiment) == rounds(experiment)
    assert [where.batch for where in place(experiment) if where.arm == "qwen-vllm"] == [0, 1, 2]
    found = [[arm.name for arm in arms] for arms in rounds(experiment)]
    assert len(found) == 3
    assert all(names[0] == "qwen-vllm" for names in found)
    assert sorted({name for names in found for name in names}) == sorted(arm.name for arm in experiment.arms)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_model_and_every_arm_has_its_job_in_the_reviewed_manifests(path: Path) -> None:
    experiment = experiment_of(path, verb="run")
    found = [item for file in read(experiment, ROOT / "manifests") for item in file.objects]
    for weights in experiment.weights:
        assert job_control.fetching(found, weights)["spec"]["suspend"]
    compiled = {job_control.compiling(found, arm)["metadata"]["name"] for arm in experiment.served_arms}
    assert len(compiled) == len(
        {json.dumps(job_control.compiling(found, arm)) for arm in experiment.served_arms}
    )
    assert len(job_control.of_step(found, "batch")) == len(experiment.batch_arms)
    asking = job_control.of_step(found, "arguments")
    assert len(asking) == len({arm.runtime.name for arm in experiment.served_arms})
