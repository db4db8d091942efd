"""Version 2 over version 1: what Kubernetes does not let change has another name when it has changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cdk8s_charts.manifests import fill, tags, with_tags
from tests.cdk8s_charts.immutable import changed_in_place
from tests.cdk8s_charts.objects import RENDERED, Object, committed, named
from tests.cdk8s_charts.variations import rendered, with_benchmark, with_cluster, with_serving
from tests.conftest import REFERENCE
from trnspec.core.findings import Misuse
from trnspec.experiment import Experiment

CHANGES: dict[str, Callable[[Experiment], Experiment]] = {
    "region": lambda e: with_cluster(e, region="us-west-2"),
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
def test_nothing_immutable_changes_under_the_same_name(reference: Experiment, change: str) -> None:
    first, second = committed(REFERENCE), rendered(CHANGES[change](reference))
    assert changed_in_place(first, second) == []
    names = [{(item["kind"], _name(item)) for item in found} for found in (first, second)]
    assert (names[0] != names[1]) == (change not in MUTABLE)


REPOSITORY = "111122223333.dkr.ecr.us-east-2.amazonaws.com/assets"
IMAGES = {
    "another tag": (f"{REPOSITORY}:{'0' * 64}", f"{REPOSITORY}:{'1' * 64}"),
    "a tag that no name could hold": (f"{REPOSITORY}:v1.2_A", f"{REPOSITORY}:v1.2_a{'a' * 100}"),
    "another digest": (f"{REPOSITORY}@sha256:{'0' * 64}", f"{REPOSITORY}@sha256:{'1' * 64}"),
    "a registry with a port": ("registry.example:5000/tools:1", "registry.example:5000/tools:2"),
}


def _applied(path: Path, image: str) -> list[Object]:
    values = {"AWS_ACCOUNT": "111122223333", "BENCHMARK_IMAGE": image, "LMEVAL_IMAGE": image}
    return fill(committed(path), with_tags(values))


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
@pytest.mark.parametrize("what", IMAGES)
def test_another_image_is_applied_over_the_first_without_a_refusal(path: Path, what: str) -> None:
    before, after = (_applied(path, image) for image in IMAGES[what])
    assert changed_in_place(before, after) == []
    first, second = named(before, "Job").keys(), named(after, "Job").keys()
    without = {name for name in first if name.startswith("arguments-")}
    assert first & second == without, "all others hold the image in their template"
    assert len(first) == len(second) > 0
    for name in first | second:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{,61}[a-z0-9])?", name)
    assert [_name(item) for item in before if item["kind"] != "Job"] == [
        _name(item) for item in after if item["kind"] != "Job"
    ]


def _name(item: Object) -> str:
    return str(item["metadata"]["name"])


def test_the_same_image_in_another_account_or_region_has_the_same_jobs() -> None:
    """The account and the region are unknown where names are filled in for a stack."""
    here, there = (
        with_tags({"BENCHMARK_IMAGE": f"{account}.dkr.ecr.{region}.amazonaws.com/x-{region}:0a1b"})
        for account, region in (("111122223333", "us-east-2"), ("444455556666", "ap-southeast-2"))
    )
    assert here["BENCHMARK_IMAGE_TAG"] == there["BENCHMARK_IMAGE_TAG"]


def test_an_image_that_no_name_can_tell_is_refused_in_a_job() -> None:
    with pytest.raises(Misuse, match="list LMEVAL_IMAGE_TAG as a placeholder"):
        tags({"image": "${LMEVAL_IMAGE}"})


def test_a_batch_number_moves_no_job(reference: Experiment) -> None:
    """Labels of a Job may change in place; what is compiled stays compiled."""
    large = with_serving(reference, devices=16)
    one, two = (named(rendered(with_cluster(large, max_nodes=count)), "Job") for count in (1, 2))
    assert one.keys() == two.keys()
