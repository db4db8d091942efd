from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cdk8s_charts.manifest_file import ManifestFile
from cdk8s_charts.placeholders import PLACEHOLDERS, fill, with_tags
from cdk8s_charts.render import render
from experiment import Experiment
from operations.delivery.smoke import KINDS, findings

Objects = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def files(reference: Experiment) -> tuple[ManifestFile, ...]:
    return render(reference)


@pytest.fixture
def cluster(files: tuple[ManifestFile, ...]) -> Objects:
    """What stands after a deployment."""
    values = dict.fromkeys(PLACEHOLDERS, "x") | with_tags({"BENCHMARK_IMAGE": "example.org/tools:1"})
    items = (item for file in files for item in fill(file.objects, values))
    return {(item["kind"], item["metadata"]["name"]): item for item in items}


def found(files: tuple[ManifestFile, ...], cluster: Mapping[tuple[str, str], Any]) -> list[str]:
    return list(findings(files, lambda kind, name: cluster.get((kind, name))))


def test_what_stands_as_reviewed_is_fine(files: tuple[ManifestFile, ...], cluster: Objects) -> None:
    assert found(files, cluster) == []


def test_every_object_that_may_be_seen_is_asked_for(files: tuple[ManifestFile, ...]) -> None:
    missing = found(files, {})
    expected = [item for file in files for item in file.objects if item["kind"] in KINDS]
    assert len(missing) == len(expected) > 5
    assert all("is not in the cluster; deploy the workloads stack" in line for line in missing)


def test_another_image_than_the_reviewed_one_is_named(
    files: tuple[ManifestFile, ...], cluster: Objects
) -> None:
    pod = cluster["Deployment", "qwen-vllm"]["spec"]["template"]["spec"]
    pod["containers"][0]["image"] = "example.org/other:1"
    (line,) = found(files, cluster)
    assert line.startswith(
        "Deployment qwen-vllm: container vllm has example.org/other:1, reviewed was public.ecr.aws/"
    )


def test_jobs_of_an_earlier_image_do_not_count_as_those_of_this_one(
    files: tuple[ManifestFile, ...], cluster: Objects
) -> None:
    pod = cluster["CronJob", "qwen-llmperf"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    pod["containers"][0]["image"] = "example.org/tools:2"
    lines = found(files, cluster)
    jobs = [item for file in files for item in file.objects if item["kind"] == "Job"]
    of_the_image = [job for job in jobs if "${BENCHMARK_IMAGE_TAG}" in job["metadata"]["name"]]
    assert len(lines) == len(of_the_image) > 0
    assert all(line.startswith("Job ") and "is not in the cluster" in line for line in lines)


def test_replicas_that_do_not_answer_and_jobs_that_failed_are_named(
    files: tuple[ManifestFile, ...], cluster: Objects
) -> None:
    cluster["Deployment", "qwen-vllm"]["spec"]["replicas"] = 1
    job = next((item for (kind, _), item in cluster.items() if kind == "Job"), None)
    assert job is not None
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "message": "backoff"}]}
    lines = found(files, cluster)
    assert "Deployment qwen-vllm: 0 of 1 replicas answer; read scripts/status" in lines
    assert any(line.startswith(f"Job {job['metadata']['name']}: failed (backoff)") for line in lines)
