"""The benchmark, its other harness and the quality check, as they are rendered."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from benchmark.__main__ import parser
from cdk8s_charts import llmperf, lmeval
from cdk8s_charts.manifest_file import ManifestFile
from cdk8s_charts.placeholders import names_in
from cdk8s_charts.plan import LARGEST_CONFIG_MAP, plan_object, plan_text
from cdk8s_charts.render import render
from experiment import Experiment
from experiment.arms import Llmperf, LmEval
from experiment.checks.benchmark import MOST_AT_ONCE
from images.lmeval import questions
from tests.cdk8s_charts.conftest import containers, of_kind, pods
from tests.cdk8s_charts.variations import with_benchmark, with_serving
from tests.conftest import ROOT

Case = tuple[Experiment, tuple[ManifestFile, ...]]
LLMPERF = Llmperf(text="classes", mean_input_tokens=64, stddev_input_tokens=5)


def _body(job: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return body


def test_runs_are_made_by_somebody_one_at_a_time_and_end(files: tuple[ManifestFile, ...]) -> None:
    jobs = of_kind(files, "CronJob")
    assert {name for name in jobs if not name.startswith("verify-")} == {"qwen-llmperf", "qwen-lmeval"}
    for name, job in jobs.items():
        assert job["spec"]["suspend"] is True
        assert job["spec"]["concurrencyPolicy"] == "Forbid"
        assert 0 < job["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"] <= 48 * 3600
        role = "neuron" if name.startswith("verify-") else "system"
        assert _body(job)["nodeSelector"] == {"speculation.trn2/role": role}


def test_the_api_server_lets_one_pod_measure_at_a_time(case: Case) -> None:
    """`Forbid` binds the Jobs that the schedule makes; these are made by people."""
    (quota,) = of_kind(case[1], "ResourceQuota").values()
    assert quota["spec"]["hard"] == {"pods": "1"}
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    (name,) = scope["values"]
    assert name in of_kind(case[1], "PriorityClass")
    counted = {owner for owner, pod in pods(case[1]).items() if pod["priorityClassName"] == name}
    assert counted == {
        owner for owner in pods(case[1]) if owner in ("CronJob/qwen-llmperf", "CronJob/qwen-lmeval")
    }


def test_a_lost_pods_run_goes_on_in_the_next(reference: Experiment) -> None:
    body = _body(llmperf.cron_job(reference, plan_name="plan"))
    assert [entry["name"] for entry in containers(body)] == ["restore", "keep", "follow", "run", "publish"]
    restore, keep = body["initContainers"][:2]
    assert restore["args"][1] == keep["args"][keep["args"].index("--to") + 1]
    assert restore["args"][1].endswith("/runs/unfinished/$(JOB_UID)")
    assert keep["restartPolicy"] == "Always"
    for entry in (restore, keep):
        path = entry["env"][0]["valueFrom"]["fieldRef"]["fieldPath"]
        assert path == "metadata.labels['batch.kubernetes.io/controller-uid']"


def test_a_plan_that_is_too_large_comes_from_s3_by_its_hash(reference: Experiment) -> None:
    long = replace(reference.prompts[0], messages=(("user", "x" * LARGEST_CONFIG_MAP),))
    experiment = replace(reference, prompts=(long, *reference.prompts[1:]))
    assert plan_object(reference) is None
    large = plan_object(experiment)
    assert large is not None
    key, content = large
    assert content.decode() == plan_text(experiment)
    assert key == f"plans/{hashlib.sha256(content).hexdigest()}.json"
    files = render(experiment)
    assert not any("plan" in name for name in of_kind(files, "ConfigMap"))
    (get,) = (e for e in containers(_body(of_kind(files, "CronJob")["qwen-llmperf"])) if e["name"] == "plan")
    assert get["args"][:4] == [
        "get",
        "s3://qwen3-32b-results-${AWS_ACCOUNT}-us-east-2/" + key,
        "--sha256",
        hashlib.sha256(content).hexdigest(),
    ]


def test_a_key_reaches_every_client_from_its_secret(reference: Experiment) -> None:
    experiment = with_serving(reference, api_key_secret="key")
    native = _body(llmperf.cron_job(experiment, plan_name="plan"))
    other = with_benchmark(experiment, llmperf=LLMPERF)
    for body, variable in (
        (native, "BENCHMARK_API_KEY"),
        (_body(llmperf.cron_job(other, plan_name="plan")), "BENCHMARK_API_KEY"),
        (_body(lmeval.cron_job(experiment)), "OPENAI_API_KEY"),
    ):
        text = json.dumps(body)
        assert f'{{"name": "{variable}", "valueFrom": {{"secretKeyRef": {{"name": "key"' in text


def test_llmperf_takes_the_place_of_the_client_and_the_rest_of_the_pod_stays(reference: Experiment) -> None:
    other = with_benchmark(reference, llmperf=LLMPERF)
    native, body = (_body(llmperf.cron_job(one, plan_name="plan")) for one in (reference, other))
    assert [entry["name"] for entry in containers(body)] == [entry["name"] for entry in containers(native)]
    for one, two in zip(containers(native), containers(body), strict=True):
        assert (one == two) == (one["name"] != "run")
    (run,) = (entry for entry in containers(body) if entry["name"] == "run")
    assert run["image"] == "${LLMPERF_IMAGE}"
    assert [*run["command"], *run["args"]] == [
        *("python", "-m", "benchmark", "llmperf", "--plan", "/plan/plan.json", "--out", "/results"),
        *("--text", "classes", "--mean-input-tokens", "64"),
        *("--stddev-input-tokens", "5", "--stddev-output-tokens", "0"),
    ]


def test_the_arguments_of_llmperf_are_those_that_the_benchmark_takes(reference: Experiment) -> None:
    body = _body(llmperf.cron_job(with_benchmark(reference, llmperf=LLMPERF), plan_name="plan"))
    (run,) = (entry for entry in containers(body) if entry["name"] == "run")
    options = parser().parse_args(run["args"])
    assert (options.verb, options.text, options.mean_input_tokens) == ("llmperf", "classes", 64)
    assert (options.stddev_input_tokens, options.stddev_output_tokens) == (5, 0)


def test_llmperf_writes_to_its_volumes_alone_and_has_memory_for_each_request(reference: Experiment) -> None:
    several = with_benchmark(reference, llmperf=LLMPERF, concurrency=(1, 32))
    body = _body(llmperf.cron_job(several, plan_name="plan"))
    (run,) = (entry for entry in containers(body) if entry["name"] == "run")
    assert run["securityContext"]["readOnlyRootFilesystem"]
    writable = {entry["mountPath"] for entry in run["volumeMounts"] if not entry.get("readOnly")}
    assert writable == {"/results", "/dev/shm", "/tmp"}
    assert {entry["name"] for entry in run["volumeMounts"]} <= {entry["name"] for entry in body["volumes"]}
    assert run["resources"]["limits"]["memory"] == "3072Mi"  # 1976 MiB were measured at 32


def test_a_run_of_llmperf_is_given_the_time_that_its_starts_take(reference: Experiment) -> None:
    native, other = (
        llmperf.cron_job(one, plan_name="plan")["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"]
        for one in (reference, with_benchmark(reference, llmperf=LLMPERF))
    )
    cells = len(reference.classes) * len(reference.served_arms)
    assert other == native + cells * 120


def test_sonnets_are_one_class(reference: Experiment) -> None:
    experiment = with_benchmark(reference, llmperf=Llmperf(mean_input_tokens=300))
    assert experiment.classes == ("sonnets",)
    assert len(with_benchmark(reference, llmperf=LLMPERF).classes) == 5


@pytest.mark.parametrize("version", ["1.35", "1.36"])
@pytest.mark.parametrize("most", [4, MOST_AT_ONCE])
def test_a_render_with_llmperf_passes_every_check_and_is_strictly_valid(
    reference: Experiment, version: str, most: int
) -> None:
    """`render` itself refuses what a check between objects finds, or what no node takes."""
    cluster = replace(reference.cluster, kubernetes=version)
    experiment = with_benchmark(replace(reference, cluster=cluster), llmperf=LLMPERF, concurrency=(most,))
    files = render(experiment)
    job = of_kind(files, "CronJob")["qwen-llmperf"]
    kubernetes_validate.validate(job, version, strict=True)
    assert names_in(job) == {"AWS_ACCOUNT", "BENCHMARK_IMAGE", "LLMPERF_IMAGE"}


@pytest.mark.parametrize(
    ("endpoint", "path"), [("chat", "/v1/chat/completions"), ("completions", "/v1/completions")]
)
def test_quality_is_asked_of_every_arm_alike(reference: Experiment, endpoint: str, path: str) -> None:
    experiment = with_benchmark(reference, endpoint=endpoint, lm_eval=LmEval(limit=50))
    told = [lmeval.arguments(experiment, arm) for arm in experiment.arms]
    for arm, words in zip(experiment.arms, told, strict=True):
        model = json.loads(words[words.index("--model_args") + 1])
        assert model["base_url"].endswith(path)
        assert arm.name in model["base_url"]
        generation = json.loads(words[words.index("--gen_kwargs") + 1])
        assert generation["temperature"] == 0
        assert ("chat_template_kwargs" in generation) == (endpoint == "chat")
        assert words[words.index("--limit") + 1] == "50"
    one, two = (
        [word.replace(arm.name, "ARM") for word in words]
        for arm, words in zip(experiment.arms, told, strict=True)
    )
    assert one == two


def test_the_questions_lie_where_lm_eval_looks_and_may_write(reference: Experiment, tmp_path: Path) -> None:
    pod = _body(lmeval.cron_job(with_benchmark(reference, lm_eval=LmEval(limit=50))))
    check = pod["initContainers"][0]
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


def test_every_arm_that_is_loaded_is_asked_in_whatever_batch_it_stands(case: Case) -> None:
    experiment, _ = case
    body = _body(lmeval.cron_job(with_benchmark(experiment, lm_eval=LmEval(limit=50))))
    assert [entry["name"] for entry in body["initContainers"]] == [
        f"check-{arm.name}" for arm in experiment.served_arms
    ]


def test_worked_examples_are_given_where_they_fit(reference: Experiment) -> None:
    for length, shots in ((1024, "0"), (4096, "5")):
        experiment = with_serving(with_benchmark(reference, lm_eval=LmEval(limit=50)), max_model_len=length)
        words = lmeval.arguments(experiment, experiment.arms[0])
        assert words[words.index("--num_fewshot") + 1] == shots
