"""Version 2 over version 1: what Kubernetes does not let change has another name when it has changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cdk8s_charts.manifest_file import ManifestFile
from cdk8s_charts.render import render
from experiment import Experiment
from tests.cdk8s_charts.variations import with_benchmark, with_serving

if TYPE_CHECKING:
    from collections.abc import Callable


def _immutable(item: dict[str, Any]) -> Any:
    """The part of an object that the API server refuses to change."""
    spec = item.get("spec", {})
    match item["kind"]:
        case "Job":
            return {key: value for key, value in spec.items() if key in ("template", "podFailurePolicy")}
        case "ResourceClaimTemplate" | "PersistentVolume" | "PersistentVolumeClaim":
            return spec
        case "ConfigMap":
            return item["data"] if item.get("immutable") else None
        case "PriorityClass":
            return (item["value"], item["preemptionPolicy"])
        case "Deployment" | "PodDisruptionBudget":
            return spec["selector"]
        case _:
            return None


def _by_identity(files: tuple[ManifestFile, ...]) -> dict[tuple[str, str], Any]:
    return {
        (item["kind"], item["metadata"]["name"]): _immutable(item) for file in files for item in file.objects
    }


CHANGES: dict[str, Callable[[Experiment], Experiment]] = {
    "region": lambda e: replace(e, cluster=replace(e.cluster, region="us-west-2")),
    "devices": lambda e: with_serving(e, devices=4, tensor_parallel=16),
    "LNC": lambda e: with_serving(e, logical_nc_config=1),
    "allocation": lambda e: with_serving(e, allocation="device-plugin"),
    "copies": lambda e: with_serving(e, artifact_source="scratch"),
    "security": lambda e: with_serving(e, pod_security="restricted"),
    "batch": lambda e: with_serving(e, max_num_seqs=8),
    "length": lambda e: with_serving(e, max_model_len=2048),
    "token": lambda e: replace(e, token_secret="hf-token"),
    "seed": lambda e: with_benchmark(e, seed=2),
    "prompts": lambda e: replace(e, prompts=e.prompts[:-1]),
    "key": lambda e: with_serving(e, api_key_secret="key"),
    "image": lambda e: replace(
        e, arms=tuple(replace(arm, runtime=replace(arm.runtime, image="x:1.2.3")) for arm in e.arms)
    ),
}


MUTABLE = ("key", "copies")
"""What stands in Deployments and CronJobs only, which may change in place."""


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_immutable_changes_under_the_same_name(
    reference: Experiment, files: tuple[ManifestFile, ...], change: str
) -> None:
    first, second = _by_identity(files), _by_identity(render(CHANGES[change](reference)))
    for identity in first.keys() & second.keys():
        assert first[identity] == second[identity], identity
    assert (first != second) == (change not in MUTABLE)


def test_a_batch_number_moves_no_job(reference: Experiment) -> None:
    """Labels of a Job may change in place; what is compiled stays compiled."""
    jobs = []
    for nodes in (1, 2):
        cluster = replace(reference.cluster, max_nodes=nodes)
        rendered = render(with_serving(replace(reference, cluster=cluster), devices=16))
        jobs.append({name for kind, name in _by_identity(rendered) if kind == "Job"})
    assert jobs[0] == jobs[1]
