"""The benchmark and the quality check, as they are rendered."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.plan import from_dict
from cdk8s_charts.render import render
from cdk8s_charts.workloads import quality_pod
from cdk8s_charts.workloads.benchmark_pod import LARGEST_CONFIG_MAP, plan_object, plan_text
from experiment import Experiment
from experiment.model import Benchmark, LmEval
from images.lmeval import questions
from tests.cdk8s_charts.conftest import Case, objects_in
from tests.cdk8s_charts.objects import Pod, named, pods_of, the
from tests.cdk8s_charts.variations import with_benchmark, with_serving
from tests.conftest import ROOT


def _quality(experiment: Experiment) -> Pod:
    return Pod(quality_pod.cron_job(with_benchmark(experiment, lm_eval=LmEval(limit=50))))


def test_the_api_server_lets_one_pod_measure_at_a_time(case: Case) -> None:
    """`Forbid` binds the Jobs that the schedule makes; these are made by people."""
    (quota,) = named(case[1], "ResourceQuota").values()
    assert quota["spec"]["hard"] == {"pods": "1"}
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    (name,) = scope["values"]
    assert name in named(case[1], "PriorityClass")
    counted = {pod.name for pod in pods_of(case[1]) if pod.spec["priorityClassName"] == name}
    assert counted == {"qwen-llmperf", "qwen-lmeval"} & named(case[1], "CronJob").keys()


def test_a_plan_that_is_too_large_comes_from_s3_by_its_hash(reference: Experiment) -> None:
    long = replace(reference.prompts[0], messages=(("user", "x" * LARGEST_CONFIG_MAP),))
    experiment = replace(reference, prompts=(long, *reference.prompts[1:]))
    assert plan_object(reference) is None
    large = plan_object(experiment)
    assert large is not None
    key, content = large
    digest = hashlib.sha256(content).hexdigest()
    assert content.decode() == plan_text(experiment)
    assert key == f"plans/{digest}.json"
    objects = objects_in(render(experiment))
    assert not any("plan" in name for name in named(objects, "ConfigMap"))
    get = Pod(the(objects, "CronJob", "qwen-llmperf")).container("plan")
    address = "s3://qwen3-32b-results-${AWS_ACCOUNT}-us-east-2/" + key
    assert get["args"][:4] == ["get", address, "--sha256", digest]


SEARCH: dict[str, Any] = {
    "search": [1, 64],
    "objective": {"tpot_s": 0.03},
    "budget": {"cells": 8, "usd": 5.0},
}


def _benchmarked(experiment: Experiment, **settings: Any) -> Experiment:
    """With a benchmark as a file has it, these keys alone set."""
    given = experiment.benchmark.model_dump(exclude_unset=True)
    given.pop("concurrency")
    return replace(experiment, benchmark=Benchmark.model_validate({**given, **settings}))


def test_a_searched_load_reaches_the_plan_and_every_part_of_it(reference: Experiment) -> None:
    experiment = _benchmarked(reference, load=SEARCH)
    found = from_dict(json.loads(plan_text(experiment)))
    assert found.search
    assert found.search.to_dict(exclude_unset=True) == {
        "low": 1,
        "high": 64,
        "by": "concurrency",
        "cells": 8,
        "usd": 5.0,
    }
    assert found.slo == {"tpot_s": 0.03}
    assert not found.loads
    again = found.with_arms([arm.name for arm in experiment.served_arms][:2])
    assert from_dict(json.loads(json.dumps(again.to_dict(exclude_unset=True)))).search == found.search
    by_rate = _benchmarked(reference, load={"search_rate": [0.5, 8.0]})
    search = from_dict(json.loads(plan_text(by_rate))).search
    assert search
    assert (search.by, search.low, search.high, search.cells) == ("rate", 0.5, 8.0, 12)


def test_passes_and_a_duration_reach_the_plan(reference: Experiment) -> None:
    assert from_dict(json.loads(plan_text(_benchmarked(reference, rounds=3)))).rounds == 3
    long = from_dict(json.loads(plan_text(_benchmarked(reference, concurrency=[1, 4], duration="90m"))))
    assert (long.duration_s, long.rounds, long.concurrency) == (5400, 1, (1, 4))


@pytest.mark.parametrize(
    ("settings", "least_s"),
    [
        ({"load": {"search": [1, 64]}}, 2 * 5 * 13 * 600 * 0.2),
        ({"duration": "24h"}, 24 * 3600 + 3600),
        ({"rounds": 50}, 50 * 2 * 5 * 8 * 600 * 0.2),
    ],
    ids=["search", "duration", "passes"],
)
def test_the_deadline_of_the_job_is_beyond_what_the_benchmark_may_take(
    reference: Experiment, settings: dict[str, Any], least_s: float
) -> None:
    assert len(reference.served_arms) == 2
    assert len(reference.classes) == 5
    objects = objects_in(render(_benchmarked(reference, **settings)))
    job = the(objects, "CronJob", "qwen-llmperf")["spec"]["jobTemplate"]["spec"]
    assert least_s < job["activeDeadlineSeconds"] < 40 * 24 * 3600


def test_a_key_reaches_every_client_from_its_secret(reference: Experiment) -> None:
    experiment = with_serving(with_benchmark(reference, lm_eval=LmEval(limit=50)), api_key_secret="key")
    clients = named(objects_in(render(experiment)), "CronJob")
    for name, variable in (("qwen-llmperf", "BENCHMARK_API_KEY"), ("qwen-lmeval", "OPENAI_API_KEY")):
        text = json.dumps(clients[name])
        assert f'{{"name": "{variable}", "valueFrom": {{"secretKeyRef": {{"name": "key"' in text


@pytest.mark.parametrize(
    ("endpoint", "path"), [("chat", "/v1/chat/completions"), ("completions", "/v1/completions")]
)
def test_quality_is_asked_of_every_arm_alike(reference: Experiment, endpoint: str, path: str) -> None:
    experiment = with_benchmark(reference, endpoint=endpoint, lm_eval=LmEval(limit=50))
    told = {arm.name: quality_pod.arguments(experiment, arm) for arm in experiment.arms}
    for name, words in told.items():
        model = json.loads(words[words.index("--model_args") + 1])
        assert model["base_url"].endswith(path)
        assert name in model["base_url"]
        generation = json.loads(words[words.index("--gen_kwargs") + 1])
        assert generation["temperature"] == 0
        assert ("chat_template_kwargs" in generation) == (endpoint == "chat")
        assert words[words.index("--limit") + 1] == "50"
    one, two = ([word.replace(name, "ARM") for word in words] for name, words in told.items())
    assert one == two


def test_worked_examples_are_given_where_they_fit(reference: Experiment) -> None:
    for length, shots in ((1024, "0"), (4096, "5")):
        experiment = with_serving(with_benchmark(reference, lm_eval=LmEval(limit=50)), max_model_len=length)
        words = quality_pod.arguments(experiment, experiment.arms[0])
        assert words[words.index("--num_fewshot") + 1] == shots


def test_the_questions_lie_where_lm_eval_looks_and_may_write(reference: Experiment, tmp_path: Path) -> None:
    (check, *_) = _quality(reference).containers
    image, bin_folder = tmp_path / "questions" / "datasets", tmp_path / "bin"
    for folder in (image / "openai___gsm8k", bin_folder, tmp_path / "results"):
        folder.mkdir(parents=True)
    (image.parent / "questions.json").write_text(questions.record())
    (bin_folder / "lm_eval").write_text('#!/bin/sh\nls "$HF_DATASETS_CACHE"; echo "$@"\n')
    (bin_folder / "lm_eval").chmod(0o755)
    script = check["command"][2].replace("/opt/questions", str(tmp_path / "questions"))
    script = script.replace("/tmp/datasets", str(tmp_path / "datasets"))
    script = script.replace("/results/", f"{tmp_path}/results/")
    (cache,) = (entry["value"] for entry in check["env"] if entry["name"] == "HF_DATASETS_CACHE")
    assert cache == "/tmp/datasets"
    environment = {"PATH": f"{bin_folder}:/usr/bin:/bin", "HF_DATASETS_CACHE": str(tmp_path / "datasets")}
    for _arm in reference.arms:  # one after the other in the same volume
        said = subprocess.run(
            [*check["command"][:2], script, check["command"][3], *check["args"][:2]],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        assert said.split() == ["openai___gsm8k", *check["args"][:2]]
    kept = json.loads((tmp_path / "results" / "questions.json").read_text())
    assert kept["revision"] == questions.REVISION
    dockerfile = (ROOT / "images" / "lmeval" / "Dockerfile").read_text()
    assert "HF_HOME=/opt/questions" in dockerfile
    assert "RUN python questions.py /opt/questions" in dockerfile


def test_questions_that_are_not_those_of_the_pinned_commit_end_the_build(tmp_path: Path) -> None:
    file = tmp_path / "test-00000-of-00001.parquet"
    file.write_bytes(b"other questions")
    digest = hashlib.sha256(b"other questions").hexdigest()
    questions.refuse_other(file, digest)
    with pytest.raises(SystemExit, match=f"test-00000-of-00001.parquet has sha256 {digest}, not 0000"):
        questions.refuse_other(file, "0000")
