"""What a run brings home beside its records: how engines differ, and every arm's answers, in whatever round it stood."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from benchmark.analyse.beside import beside
from experiment import Experiment, load
from experiment.naming import artifact_path
from operations.cloud.aws import Aws, AwsError
from operations.running.context import StepError
from operations.running.measuring import restrict
from operations.running.steps import remaining, steps
from store.artifact import DIFFERENCES
from tests.operations.driver import Driver, driver_of


def three_windows(data: dict[str, list[dict[str, dict[str, object]]]]) -> None:
    """Three treatments of one node that holds two arms: two rounds more."""
    data["arms"][1]["speculation"]["num_speculative_tokens"] = [3, 5, 7]


@pytest.fixture
def swept(aws: Aws, variation: Callable[..., Path], tmp_path: Path) -> Driver:
    return driver_of(load(variation(three_windows)), aws, tmp_path)


def test_every_arm_of_a_sweep_is_asked_once_and_compared_with_the_baseline(swept: Driver) -> None:
    swept.run()
    asked = [key.split("/")[2] for key in swept.world.stored("results") if "samples" in key]
    assert sorted(asked) == sorted(arm.name for arm in swept.world.experiment.arms)
    for number, treatment in enumerate(swept.world.experiment.arms[1:], start=1):
        found = beside(
            swept.out / f"round-{number}", arms=["qwen-vllm", treatment.name], baseline="qwen-vllm"
        )
        assert [one["treatment"] for one in found["quality"]["comparisons"]] == [treatment.name]
        assert found["quality"]["questions"]["revision"] == "0" * 40
        assert found["engines"][treatment.name]["undeclared"] == [
            {"path": "neuron_config.async_mode", "baseline": False, "this": True}
        ]


def test_answers_follow_the_benchmark_of_their_round(swept: Driver) -> None:
    names = [step.name for step in steps(swept.world.experiment)]
    for number in (1, 2, 3):
        where = names.index(f"benchmark-{number}")
        assert names[where - 1 : where + 2] == [f"arms-{number}", f"benchmark-{number}", f"quality-{number}"]
    done = tuple(names[: names.index("quality-2")])
    left = [step.name for step in remaining(steps(swept.world.experiment), done)]
    assert left[:3] == ["nodes", "arms-2", "quality-2"]


def test_without_questions_nobody_is_asked(experiment: Experiment) -> None:
    silent = replace(experiment, benchmark=experiment.benchmark.model_copy(update={"lm_eval": None}))
    assert not [step for step in steps(silent) if step.name.startswith("quality")]


def test_a_check_that_does_not_know_an_arm_is_one_line(experiment: Experiment) -> None:
    pod = {"initContainers": [{"name": "check-qwen-vllm"}]}
    with pytest.raises(StepError, match=r"has no container check-qwen-sd-vllm; run make manifests"):
        restrict(experiment, pod, experiment.arms)


def test_a_comparison_with_another_baseline_is_made_anew_and_a_fitting_one_kept(swept: Driver) -> None:
    swept.run()
    treated = swept.world.experiment.arms[1]
    key = f"{artifact_path(treated)}/{DIFFERENCES}"
    stored = json.loads(swept.world.stored("artifacts")[key])
    assert stored["baseline"].endswith(f"/{artifact_path(swept.world.experiment.baseline)}")
    for found, kept in (
        ({**stored, "baseline": "s3://x/other"}, False),
        ({**stored, "differences": []}, True),
    ):
        swept.world.store("artifacts", key, found)
        swept.clock.time += timedelta(days=1)
        swept.run()
        again = json.loads(swept.world.stored("artifacts")[key])
        assert (again == found) is kept
        assert again["baseline"] == stored["baseline"]


def test_a_comparison_that_may_not_be_written_does_not_end_the_run(
    swept: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = swept.aws.client("s3").put_object

    def refused(**parameters: object) -> object:
        if str(parameters["Key"]).endswith(DIFFERENCES):
            raise AwsError("s3:PutObject: not yours", "AccessDenied")
        return put(**parameters)

    swept.aws.client("s3").__dict__["put_object"] = refused
    swept.run()
    assert any("its engine is not compared with the baseline's" in line for line in swept.said)
    assert not list(swept.out.rglob("engines/*"))
