"""Version 2 over version 1: what would be refused is found by comparing two renders."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from tests.cdk8s_charts.committed import objects_of, pod_spec, the
from tests.cdk8s_charts.immutable import changed_in_place
from tests.conftest import REFERENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    Edit = Callable[[list[dict[str, Any]]], object]

JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "compile-x", "namespace": "qwen3-32b"},
    "spec": {
        "backoffLimit": 1,
        "template": {"metadata": {}, "spec": {"containers": [{"name": "x", "image": "a:1"}]}},
    },
}
REFUSED: dict[str, tuple[str, Edit]] = {
    "the image of a Job": (
        "spec.template",
        lambda o: pod_spec(the(o, "Job", "compile-x"))["containers"][0].update(image="a:2"),
    ),
    "what ends a Job at once": (
        "spec.podFailurePolicy",
        lambda o: the(o, "Job", "compile-")["spec"].update(podFailurePolicy={"rules": []}),
    ),
    "a Deployment's selector": (
        "spec.selector",
        lambda o: the(o, "Deployment")["spec"]["selector"]["matchLabels"].update(x="y"),
    ),
    "the count of a claim template": (
        "spec",
        lambda o: the(o, "ResourceClaimTemplate")["spec"]["spec"]["devices"]["requests"][0]["exactly"].update(
            count=4
        ),
    ),
    "the bucket of a volume": (
        "spec.csi",
        lambda o: the(o, "PersistentVolume")["spec"]["csi"]["volumeAttributes"].update(bucketName="x"),
    ),
    "the volume of a claim": (
        "spec.volumeName",
        lambda o: the(o, "PersistentVolumeClaim")["spec"].update(volumeName="x"),
    ),
    "the data of an immutable ConfigMap": (
        "data",
        lambda o: the(o, "ConfigMap")["data"].update({"plan.json": "{}"}),
    ),
}
ACCEPTED: dict[str, Edit] = {
    "nothing": lambda o: None,
    "the image of a Deployment": lambda o: pod_spec(the(o, "Deployment"))["containers"][0].update(
        image="a:2"
    ),
    "the retries of a Job": lambda o: the(o, "Job", "compile-x")["spec"].update(backoffLimit=2),
    "the image of a CronJob": lambda o: pod_spec(the(o, "CronJob"))["containers"][0].update(image="a:2"),
    "another name": lambda o: the(o, "ResourceClaimTemplate")["metadata"].update(name="new"),
    "a port of a Service": lambda o: the(o, "Service")["spec"]["ports"][0].update(port=80),
}


def _versions(edit: Edit) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    before, after = ([*objects_of(REFERENCE), copy.deepcopy(JOB)] for _ in range(2))
    edit(after)
    return before, after


@pytest.mark.parametrize("what", REFUSED)
def test_a_change_that_the_api_server_refuses_is_found(what: str) -> None:
    path, edit = REFUSED[what]
    assert [field for _, field in changed_in_place(*_versions(edit))] == [path]


@pytest.mark.parametrize("what", ACCEPTED)
def test_a_change_that_it_accepts_is_not(what: str) -> None:
    assert changed_in_place(*_versions(ACCEPTED[what])) == []
