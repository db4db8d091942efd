"""Single steps: what the images say of their arguments, the rounds of a sweep, and what a run brings home beside its records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.image_probe import CANNOT_SAY, REFUSED
from cdk8s_charts.manifests import read
from cdk8s_charts.workloads.benchmark_pod import MAX_CONFIG_MAP_BYTES, plan_object
from cdk8s_charts.workloads.check_jobs import proof_name
from tests.conftest import ROOT
from tests.experiment.edits import put
from tests.operations.driver import Driver, driver_of
from trnspec.benchmark.analyse.attachments import EXPECTED, engines_in, quality_in
from trnspec.benchmark.plan import from_dict
from trnspec.experiment import load
from trnspec.experiment.compilation import artifact_key
from trnspec.experiment.naming import (
    BENCHMARK_NAME,
    LMEVAL_NAME,
    PLAN_FILE,
    artifact_path,
    compile_job,
    fetch_job,
    weights_path,
)
from trnspec.operations import reviewed_jobs as jobs
from trnspec.operations.cloud.aws import Aws, AwsError
from trnspec.operations.running import benchmark
from trnspec.operations.running.benchmark import provide_plan
from trnspec.operations.running.steps import remaining, run_to_end, steps
from trnspec.store.artifact import DIFFERENCES

EXPERIMENTS = sorted({*(ROOT / "experiments").glob("*.yaml")} - {*(ROOT / "experiments").glob("lab-*")})
REFUSAL = {"arm": "qwen-sd-vllm", "key": "--override-neuron-config", "why": "not KEY=VALUE"}


def three_windows(data: dict[str, Any]) -> None:
    """Three treatments of one node that holds two arms: two rounds more."""
    data["arms"][1]["speculation"]["num_speculative_tokens"] = [3, 5, 7]


@pytest.fixture
def swept(aws: Aws, variation: Callable[..., Path], tmp_path: Path) -> Driver:
    return driver_of(load(variation(three_windows)), aws, tmp_path)


def _says(driver: Driver, *lines: dict[str, str], code: int) -> None:
    """What the images answer, and with which exit code."""
    noise = "INFO 11-22 platform: no Neuron device"
    driver.world.failing = {"arguments-": "\n".join([noise, *map(json.dumps, lines)])}
    driver.world.exits = {"arguments-": code}


def test_a_refused_argument_is_one_line_with_arm_key_and_reason_and_no_node_starts(driver: Driver) -> None:
    _says(driver, REFUSAL, {**REFUSAL, "arm": "qwen-vllm"}, code=REFUSED)
    nodes: set[int] = set()
    driver.world.on_tick.append(lambda: nodes.add(driver.world.nodes))
    line = driver.line()
    assert "arm qwen-sd-vllm: " in line
    more = "refuses --override-neuron-config: not KEY=VALUE (1 more: ./trnspec kubectl experiments/qwen3-32b.yaml logs job/arguments-"
    assert (more in line, "\n" in line, nodes) == (True, False, {0})
    unverified = driver.take_run()
    unverified.verify = None
    run_to_end(unverified, keep_nodes=False)  # which asks no image
    assert any("no image is asked" in one for one in driver.said)
    driver.world.failing = {}
    driver.said.clear()
    driver.clock.time += timedelta(days=1)
    driver.run()
    said = "\n".join(driver.said)
    order = [said.index(step) for step in ("fetch weights", "accepts the server arguments", "start Trn2")]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ({"part": "config", "why": "no NeuronConfig"}, CANNOT_SAY, "asked here (config: no NeuronConfig)"),
        (REFUSAL, 137, "cannot be asked here"),  # what looks like a refusal, of a program that broke
        (None, 0, "Insufficient ephemeral-storage"),  # an image that is never pulled
    ],
)
def test_an_image_that_cannot_be_asked_costs_patience_and_a_warning(
    line: dict[str, str] | None, code: int, says: str, driver: Driver
) -> None:
    if line is None:
        driver.world.unplaced = {"arguments-": "0/2 nodes are available: 2 Insufficient ephemeral-storage"}
    else:
        _says(driver, line, code=code)
    begun = driver.clock.now()
    driver.run()
    (warning,) = (line for line in driver.said if "warning" in line)
    assert says in warning
    assert line or timedelta(minutes=5) < driver.clock.now() - begun < timedelta(minutes=10)


def test_a_run_waits_for_its_benchmark_as_long_as_the_job_may_take(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "BENCHMARK_S", 600)
    (job,) = jobs.of_step(driver.files[0].objects, "load")
    job["spec"]["activeDeadlineSeconds"] = 3600
    seen: list[datetime] = []

    def last_half_an_hour() -> None:
        for job in driver.jobs(BENCHMARK_NAME):
            seen.append(driver.clock.now())
            if seen[-1] - seen[0] < timedelta(minutes=30):
                driver.world.ticks[job["metadata"]["name"]] = 0

    driver.world.on_tick.append(last_half_an_hour)
    driver.run()
    assert seen[-1] - seen[0] > timedelta(minutes=30)


@pytest.mark.parametrize("whole", [True, False], ids=["all arms at once", "a later round"])
def test_a_large_plan_is_stored_with_the_arms_that_stand_before_the_job_fetches_it(
    aws: Aws, variation: Callable[..., Path], tmp_path: Path, whole: bool
) -> None:
    swept = load(variation(three_windows))
    long = replace(swept.prompts[0], messages=({"role": "user", "content": "x" * MAX_CONFIG_MAP_BYTES},))
    driver = driver_of(replace(swept, prompts=(long, *swept.prompts[1:])), aws, tmp_path)
    run = driver.take_run()
    arms = run.experiment.arms if whole else run.experiment.rounds[1]
    store, (key, content) = f"s3://{run.bucket('results')}/", plan_object(run.experiment) or ("", b"")
    fetching = {"name": "plan", "args": ["get", f"{store}{key}", "--sha256", "0a", "--to", "/plan"]}
    pod = {"initContainers": [fetching], "containers": []}
    job = {"kind": "Job", "spec": {"template": {"spec": pod}}}
    provide_plan(run, job, arms)
    _, address, _, digest, *_ = fetching["args"]
    stored = driver.world.stored("results")[address.removeprefix(store)]
    assert [arm["name"] for arm in json.loads(stored)["arms"]] == [arm.name for arm in arms]
    assert (stored == content) is whole
    assert whole or hashlib.sha256(stored).hexdigest() == digest


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_model_and_every_arm_has_its_job_in_the_reviewed_manifests(path: Path) -> None:
    experiment = load(path)
    found = [item for file in read(experiment, ROOT / "manifests") for item in file.objects]
    by_step = {
        step: {job["metadata"]["name"]: json.dumps(job) for job in jobs.of_step(found, step)}
        for step in ("fetch", "arguments", "verify", "compile", "load", "quality")
    }
    for weights in experiment.weights:
        assert f'/{weights_path(weights)}"' in by_step["fetch"][fetch_job(weights)]
    for arm in experiment.arms:
        assert f'"--key", "{artifact_key(arm)}"' in by_step["compile"][compile_job(arm)]
    assert len(by_step["arguments"]) == len({arm.runtime.name for arm in experiment.arms})
    assert [*by_step["load"], *by_step["quality"]] == [
        BENCHMARK_NAME,
        *([LMEVAL_NAME] if experiment.benchmark.lm_eval else []),
    ]
    assert {proof_name(experiment, arm) for arm in experiment.arms} == by_step["verify"].keys()
    jobs_found = [item for item in found if item["kind"] == "Job"]
    assert sum(map(len, by_step.values())) == len(jobs_found), "each belongs to a step"
    created = [jobs.under_its_hash(job)["metadata"]["name"] for job in jobs_found]
    assert all(len(name) <= 63 for name in created)


@pytest.mark.slow
def test_every_arm_of_a_sweep_is_asked_once_and_compared_once_with_the_baseline(swept: Driver) -> None:
    swept.run()
    asked = [key.split("/")[2] for key in swept.world.stored("results") if "samples" in key]
    assert sorted(asked) == sorted(arm.name for arm in swept.world.experiment.arms)
    for number, treatment in enumerate(swept.world.experiment.arms[1:], start=1):
        arms = dict.fromkeys(["qwen-vllm", treatment.name], "qwen-vllm")
        folder = swept.out / f"round-{number}"
        quality = quality_in(folder, arms)
        assert quality
        assert quality.questions
        assert [one.treatment for one in quality.comparisons] == [treatment.name]
        assert quality.questions.revision == "0" * 40
        (difference,) = engines_in(folder, arms)[treatment.name].undeclared
        assert (difference.path, difference.baseline, difference.this) == (
            "neuron_config.async_mode",
            False,
            True,
        )
    key = f"{artifact_path(swept.world.experiment.arms[1])}/{DIFFERENCES}"
    stored = json.loads(swept.world.stored("artifacts")[key])
    assert stored["baseline"].endswith(f"/{artifact_path(swept.world.experiment.baseline)}")
    for change, kept in (({"baseline": "s3://x/other"}, False), ({"differences": []}, True)):
        found = {**stored, **change}
        swept.world.store("artifacts", key, found)
        swept.clock.time += timedelta(days=1)
        swept.run()
        again = json.loads(swept.world.stored("artifacts")[key])
        assert (again == found) is kept
        assert again["baseline"] == stored["baseline"]


@pytest.mark.slow
def test_each_size_of_the_batch_has_its_round_its_plan_its_artifacts_and_a_baseline_of_its_own(
    aws: Aws, variation: Callable[..., Path], tmp_path: Path
) -> None:
    sizes = driver_of(load(variation(put("serving.max_num_seqs", [4, 8]))), aws, tmp_path)
    sizes.run()
    out, keys = sizes.out, {arm.name: artifact_key(arm) for arm in sizes.world.experiment.arms}
    each = [out / "round-1", out / "round-2"]
    assert sizes.reports == [*each, *each, out], "each before its questions, and all at the end"
    assert (out / EXPECTED).read_text() == (out / "round-1" / EXPECTED).read_text()
    assert len(set(keys.values())) == 4 == len(sizes.artifacts())
    plans = {one["metadata"]["name"]: one["data"] for one in sizes.world.api.of("configmaps")}
    for job, size in zip(sizes.jobs(BENCHMARK_NAME), ("", "-b8"), strict=True):
        (volume,) = job["spec"]["template"]["spec"]["volumes"]
        plan = from_dict(json.loads(plans[volume["configMap"]["name"]][PLAN_FILE]))
        own, drafting = f"qwen-vllm{size}", f"qwen-sd-vllm{size}"
        assert plan.baselines == {own: own, drafting: own}
        compared = json.loads((out / "engines" / f"{drafting}.json").read_text())
        assert compared["baseline"].endswith(keys[own])
        assert not (out / "engines" / f"{own}.json").exists()


def test_answers_follow_each_benchmark_and_only_what_can_vanish_is_made_sure_of_again(swept: Driver) -> None:
    experiment = swept.world.experiment
    names = [step.name for step in steps(experiment)]
    rounds = [f"{name}-{number}" for number in (1, 2, 3) for name in ("arms", "benchmark", "quality")]
    assert [name for name in names if name[-1].isdigit()] == rounds

    def left(*done: str) -> list[str]:
        return [step.name for step in remaining(steps(experiment), done)]

    assert left("weights", "arguments", "nodes", "verify") == ["nodes", *names[4:]]
    for step in ("benchmark-1", "quality-2"):
        at = names.index(step)
        assert left(*names[:at]) == ["nodes", f"arms-{step[-1]}", *names[at:]]
    assert left(*names[:-1]) == ["report"], "nodes are not started again to make a report"
    silent = replace(experiment, benchmark=experiment.benchmark.model_copy(update={"lm_eval": None}))
    assert not [step for step in steps(silent) if step.name.startswith("quality")]


def test_a_comparison_that_may_not_be_written_does_not_end_the_run(swept: Driver) -> None:
    put = swept.aws.client("s3").put_object

    def refused(**parameters: object) -> object:
        if str(parameters["Key"]).endswith(DIFFERENCES):
            raise AwsError("s3:PutObject: not yours", "AccessDenied")
        return put(**parameters)

    swept.aws.client("s3").__dict__["put_object"] = refused
    swept.run()
    assert any("its engine is not compared with the baseline's" in line for line in swept.said)
    assert not list(swept.out.rglob("engines/*"))
