"""The benchmark, its plan and the quality check, as they are rendered."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.workloads import benchmark_pod
from cdk8s_charts.workloads.benchmark_pod import (
    MAX_CONFIG_MAP_BYTES,
    benchmark_objects,
    plan,
    plan_object,
    plan_text,
)
from images.lmeval import questions
from tests.cdk8s_charts.objects import Case, Pod, named, the
from tests.cdk8s_charts.variations import rendered, with_benchmark, with_serving
from tests.conftest import NODE_USD, ROOT
from trnspec.benchmark.plan import from_dict
from trnspec.core.findings import Misuse
from trnspec.experiment import Experiment
from trnspec.experiment.catalogue.runtimes import RUNTIMES
from trnspec.experiment.model import Benchmark


def test_the_plan_has_every_prompt_and_the_urls_windows_and_prices_of_the_services(case: Case) -> None:
    experiment, objects = case
    maps = named(objects, "ConfigMap").values()
    told = from_dict(json.loads(*(one["data"]["plan.json"] for one in maps if "plan.json" in one["data"])))
    assert told == plan(experiment)
    assert [prompt.id for prompt in told.prompts] == [prompt.id for prompt in experiment.prompts]
    services = named(objects, "Service")
    for arm, planned in zip(experiment.arms, told.arms, strict=True):
        (port,) = services[arm.name]["spec"]["ports"]
        assert planned.url == f"http://{arm.name}.{experiment.name}.svc.cluster.local:{port['port']}/v1"
        assert planned.max_tokens_per_step == arm.tokens_per_step
        if experiment.name == "qwen3-32b":
            assert planned.usd_per_hour == NODE_USD / 2


def _benchmarked(experiment: Experiment, **settings: Any) -> Experiment:
    """With a benchmark as a file has it, these keys alone set."""
    given = experiment.benchmark.model_dump(exclude_unset=True)
    given.pop("concurrency")
    return replace(experiment, benchmark=Benchmark.model_validate({**given, **settings}))


@pytest.mark.parametrize(
    ("settings", "planned"),
    [
        ({"slo": {"tpot_s": 0.05}}, {"slo": {"tpot_s": 0.05}}),
        ({"concurrency": [1, 4], "cell_minutes": 9.0}, {"cell_minutes": 9.0, "concurrency": [1, 4]}),
    ],
)
def test_what_the_file_says_of_the_load_reaches_the_plan(
    reference: Experiment, settings: dict[str, Any], planned: dict[str, Any]
) -> None:
    experiment = _benchmarked(reference, **settings)
    told = json.loads(plan_text(experiment))
    assert from_dict(told) == plan(experiment)
    assert planned.items() <= told.items()


def test_texts_and_what_speculation_changes_beside_reach_the_plan(reference: Experiment) -> None:
    prompts = tuple(replace(prompt, prompt="x", messages=None) for prompt in reference.prompts)
    native = RUNTIMES["native-vllm-0.29"]
    plain, drafting = (replace(arm, runtime=native) for arm in reference.arms)
    assert drafting.speculation is not None
    dflash = replace(drafting, speculation=replace(drafting.speculation, mode="dflash"))
    told = json.loads(plan_text(replace(reference, arms=(plain, dflash), prompts=prompts)))
    assert "also_changes" not in told["arms"][0]
    assert tuple(told["arms"][1]["also_changes"]) == native.modes["dflash"].also_changes != ()
    assert {prompt.prompt for prompt in from_dict(told).prompts} == {"x"}


def test_a_plan_that_the_benchmark_would_refuse_is_not_rendered(reference: Experiment) -> None:
    with pytest.raises(Misuse, match=r"^concurrency = 5000: .* equal to 4096; the benchmark would not take"):
        plan(with_benchmark(reference, concurrency=[4, 5000]))


def test_a_plan_that_is_too_large_comes_from_s3_by_its_hash(reference: Experiment) -> None:
    long = replace(reference.prompts[0], messages=({"role": "user", "content": "x" * MAX_CONFIG_MAP_BYTES},))
    experiment = replace(reference, prompts=(long, *reference.prompts[1:]))
    assert plan_object(reference) is None
    large = plan_object(experiment)
    assert large is not None
    key, content = large
    digest = hashlib.sha256(content).hexdigest()
    assert content.decode() == plan_text(experiment)
    assert key == f"plans/{digest}.json"
    objects = rendered(experiment)
    assert not any("plan" in name for name in named(objects, "ConfigMap"))
    get = Pod(the(objects, "Job", "qwen-llmperf")).container("plan")
    address = "s3://qwen3-32b-results-${AWS_ACCOUNT}-us-east-2/" + key
    assert get["args"][:4] == ["get", address, "--sha256", digest]


def test_the_deadline_of_the_job_is_beyond_what_the_benchmark_may_take(reference: Experiment) -> None:
    """Two arms and five classes."""
    job = Pod(the(benchmark_objects(_benchmarked(reference, concurrency=[1, 2])), "Job")).job
    assert 2 * 2 * 4 * 5 * 600 * 0.2 < job["activeDeadlineSeconds"] < 40 * 24 * 3600


def test_a_key_reaches_every_client_from_its_secret(reference: Experiment) -> None:
    experiment = with_serving(with_benchmark(reference, lm_eval=50), api_key_secret="key")
    clients = named(rendered(experiment), "Job")
    for name, variable in (("qwen-llmperf", "BENCHMARK_API_KEY"), ("qwen-lmeval", "OPENAI_API_KEY")):
        text = json.dumps(clients[name])
        assert f'{{"name": "{variable}", "valueFrom": {{"secretKeyRef": {{"name": "key"' in text


@pytest.mark.parametrize(
    ("endpoint", "path", "length", "shots"),
    [("chat", "/v1/chat/completions", 1024, "0"), ("completions", "/v1/completions", 4096, "5")],
)
def test_quality_is_asked_of_every_arm_alike_with_worked_examples_where_they_fit(
    reference: Experiment, endpoint: str, path: str, length: int, shots: str
) -> None:
    asking = with_benchmark(reference, endpoint=endpoint, lm_eval=50)
    experiment = with_serving(asking, max_model_len=length)
    told = {arm.name: benchmark_pod.lm_eval_arguments(experiment, arm) for arm in experiment.arms}
    for name, words in told.items():
        model = json.loads(words[words.index("--model_args") + 1])
        assert model["base_url"].endswith(path)
        assert name in model["base_url"]
        generation = json.loads(words[words.index("--gen_kwargs") + 1])
        assert generation["temperature"] == 0
        assert ("chat_template_kwargs" in generation) == (endpoint == "chat")
        assert words[words.index("--limit") + 1] == "50"
        assert words[words.index("--num_fewshot") + 1] == shots
    one, two = ([word.replace(name, "ARM") for word in words] for name, words in told.items())
    assert one == two


def test_the_questions_lie_where_lm_eval_looks_and_may_write(reference: Experiment, tmp_path: Path) -> None:
    asking = with_benchmark(reference, lm_eval=50)
    (_, check, _) = Pod(benchmark_pod.quality_job(asking)).containers
    (tmp_path / "questions" / "datasets" / "openai___gsm8k").mkdir(parents=True)
    (tmp_path / "questions" / "questions.json").write_text(questions.record())
    (tmp_path / "results").mkdir()
    (tmp_path / "lm_eval").write_text('#!/bin/sh\nls "$HF_DATASETS_CACHE"; echo "$@"\n')
    (tmp_path / "lm_eval").chmod(0o755)
    shell, flag, script, name = check["command"]
    for folder in ("/opt/questions", "/tmp/datasets", "/results/"):
        script = script.replace(folder, f"{tmp_path}/{folder.strip('/').rpartition('/')[2]}/")
    (cache,) = (entry["value"] for entry in check["env"] if entry["name"] == "HF_DATASETS_CACHE")
    assert cache == "/tmp/datasets"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HF_DATASETS_CACHE": str(tmp_path / "datasets")}
    for _arm in reference.arms:  # a container that failed starts again in the same volume
        command = [shell, flag, script, name, *check["args"][:2]]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        assert done.stdout.split() == ["openai___gsm8k", *check["args"][:2]]
    kept = json.loads((tmp_path / "results" / "questions.json").read_text())
    assert kept["revision"] == questions.REVISION
    dockerfile = (ROOT / "images" / "lmeval" / "Dockerfile").read_text()
    assert "HF_HOME=/opt/questions" in dockerfile
    assert "RUN python questions.py /opt/questions" in dockerfile


def test_all_arms_are_asked_side_by_side_each_with_its_own_questions_and_stored_to_the_end(
    reference: Experiment,
) -> None:
    pod = Pod(benchmark_pod.quality_job(with_benchmark(reference, lm_eval=50)))
    (keep,) = pod.spec["initContainers"]
    assert (keep["restartPolicy"], keep["args"][:2]) == ("Always", ["keep", "/results"])
    checks = pod.spec["containers"]
    assert [check["name"] for check in checks] == [f"check-{arm.name}" for arm in reference.arms]
    own = [mount["name"] for one in checks for mount in one["volumeMounts"] if mount["mountPath"] == "/tmp"]
    assert len(own) == len(set(own)) == len(checks)


def test_what_is_measured_is_stored_before_the_baseline_is_asked_again(case: Case) -> None:
    _, objects = case
    *_, run, store, repeat, publish = Pod(the(objects, "Job", "qwen-llmperf")).containers
    assert [one["name"] for one in (run, store, repeat, publish)] == ["run", "store", "repeat", "publish"]
    assert run["args"] == [*repeat["args"], "--no-repeats"]
    assert store["args"] == publish["args"]
    assert "--upload" in store["args"]
    assert run["volumeMounts"] == repeat["volumeMounts"]


def test_questions_that_are_not_those_of_the_pinned_commit_end_the_build(tmp_path: Path) -> None:
    file = tmp_path / "test-00000-of-00001.parquet"
    file.write_bytes(b"other questions")
    digest = hashlib.sha256(b"other questions").hexdigest()
    questions.refuse_other(file, digest)
    with pytest.raises(SystemExit, match=f"test-00000-of-00001.parquet has sha256 {digest}, not 0000"):
        questions.refuse_other(file, "0000")
