"""Version 2 over version 1: what Kubernetes does not let change has another name when it has changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from cdk8s_charts.manifests import fill
from tests.cdk8s_charts.immutable import changed_in_place
from tests.cdk8s_charts.objects import RENDERED, Object, committed, named
from tests.cdk8s_charts.variations import rendered, with_benchmark, with_cluster, with_serving
from tests.conftest import REFERENCE
from trnspec.experiment import Experiment
from trnspec.operations.reviewed_jobs import of_step, under_its_hash

CHANGES: dict[str, Callable[[Experiment], Experiment]] = {
    "region": lambda e: with_cluster(e, region="us-west-2"),
    "devices": lambda e: with_serving(e, devices=4, tensor_parallel=16),
    "LNC": lambda e: with_serving(e, logical_nc_config=1),
    "allocation": lambda e: with_serving(e, allocation="device-plugin"),
    "security": lambda e: with_serving(e, pod_security="restricted"),
    "batch": lambda e: with_serving(e, max_num_seqs=8),
    "length": lambda e: with_serving(e, max_model_len=2048),
    "token": lambda e: replace(e, token_secret="hf-token"),
    "plan": lambda e: with_benchmark(e, requests=64),
    "prompts": lambda e: replace(e, prompts=e.prompts[:-1]),
    "key": lambda e: with_serving(e, api_key_secret="key"),
    "image": lambda e: replace(
        e, arms=tuple(replace(arm, runtime=replace(arm.runtime, image="x:1.2.3")) for arm in e.arms)
    ),
}


ONCE = ("fetch", "arguments", "compile")
"""Steps whose Jobs are created under the hash of what they are."""


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_immutable_changes_under_the_same_name(reference: Experiment, change: str) -> None:
    first, second = committed(REFERENCE), rendered(CHANGES[change](reference))
    assert changed_in_place(first, second) == []


REPOSITORY = "111122223333.dkr.ecr.us-east-2.amazonaws.com/assets"
IMAGES = {
    "another tag": (f"{REPOSITORY}:{'0' * 64}", f"{REPOSITORY}:{'1' * 64}"),
    "another digest": (f"{REPOSITORY}@sha256:{'0' * 64}", f"{REPOSITORY}@sha256:{'1' * 64}"),
}


def _created(objects: Iterable[Object], image: str) -> dict[str, Object]:
    """The Jobs that are done once, by the names under which they are created."""
    values = {"AWS_ACCOUNT": "111122223333", "BENCHMARK_IMAGE": image, "LMEVAL_IMAGE": image}
    jobs = fill((job for step in ONCE for job in of_step(objects, step)), values)
    return named(map(under_its_hash, jobs), "Job")


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
@pytest.mark.parametrize("what", IMAGES)
def test_a_job_of_another_image_has_another_name_that_says_that_it_makes_the_same(
    path: Path, what: str
) -> None:
    first, second = (_created(committed(path), image) for image in IMAGES[what])
    without = {name for name in first if name.startswith("arguments-")}
    assert first.keys() & second.keys() == without, "all others hold the image in their template"
    made = [{name.rpartition("-")[0] for name in jobs} for jobs in (first, second)]
    assert made[0] == made[1]
    assert len(made[0]) == len(first) == len(second) > 0
    for name in first | second:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{,61}[a-z0-9])?", name)


@pytest.mark.parametrize("change", CHANGES)
def test_two_jobs_of_one_name_are_the_same_job(reference: Experiment, change: str) -> None:
    first, second = (
        _created(found, f"{REPOSITORY}:1")
        for found in (committed(REFERENCE), rendered(CHANGES[change](reference)))
    )
    assert [name for name in first.keys() & second.keys() if first[name] != second[name]] == []
