"""The real scheduler and allocator against the placement check: the same pods on the same devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cdk8s_charts.render import render
from cdk8s_charts.scheduling import verdicts
from cdk8s_charts.scheduling.nodes import nodes
from experiment import load
from tests.apiserver.control_plane import wait_until
from tests.apiserver.fake_nodes import register, remove, report
from tests.apiserver.objects import filled, make_namespace
from tests.cdk8s_charts.committed import pod_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cdk8s_charts.scheduling.nodes import Node
    from experiment import Experiment
    from tests.apiserver.control_plane import ControlPlane
    from tests.apiserver.kubectl import Kubectl

NAME = "scheduling-test"


@pytest.fixture
def rendered(variation: Callable[..., Path]) -> tuple[Experiment, list[dict[str, Any]]]:
    """The reference experiment under a name of its own."""
    experiment = load(variation(lambda data: data.update(name=NAME)))
    return experiment, filled([item for file in render(experiment) for item in file.objects])


@pytest.fixture
def cluster(
    scheduling: ControlPlane, rendered: tuple[Experiment, list[dict[str, Any]]]
) -> Iterator[tuple[Kubectl, tuple[Node, ...]]]:
    """One fake Trn2 node and the fake system nodes; gone afterwards with everything that was applied."""
    kubectl, fakes = scheduling.kubectl, nodes(rendered[0], neuron_nodes=1)
    register(kubectl, fakes)
    yield kubectl, fakes
    for item in rendered[1]:
        scope = ["-n", NAME] if "namespace" in item["metadata"] else []
        kubectl.run(
            "delete", item["kind"], item["metadata"]["name"], *scope, "--ignore-not-found", "--wait=false"
        )
    kubectl.run("delete", "pods", "--all", "-n", NAME, "--force", "--grace-period=0", "--wait=false")
    remove(kubectl, fakes)


def _apply_and_raise(kubectl: Kubectl, objects: list[dict[str, Any]], arms: set[str]) -> None:
    make_namespace(kubectl, objects)
    errors = [line for line in kubectl.apply(objects) if not line.startswith("Warning")]
    assert errors == []
    for arm in sorted(arms):
        assert kubectl.run("scale", "deployment", arm, "-n", NAME, "--replicas=1").returncode == 0


def _pods(kubectl: Kubectl, arms: set[str]) -> list[dict[str, Any]]:
    items = kubectl.get("pods", "-n", NAME)["items"]
    return [pod for pod in items if pod["metadata"]["labels"].get("app.kubernetes.io/name") in arms]


def _allocated(kubectl: Kubectl) -> list[tuple[str, ...]]:
    """Devices of every claim of the namespace, in the order of their numbers."""
    found = []
    for claim in kubectl.get("resourceclaims", "-n", NAME)["items"]:
        results = ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", [])
        found.append(tuple(sorted((entry["device"] for entry in results), key=_number)))
    return sorted(found, key=lambda names: [_number(name) for name in names])


def _number(device: str) -> int:
    return int(device.rpartition("-")[2])


def test_the_reference_arms_get_the_devices_that_the_check_predicts(
    cluster: tuple[Kubectl, tuple[Node, ...]], rendered: tuple[Experiment, list[dict[str, Any]]]
) -> None:
    (kubectl, fakes), (experiment, objects) = cluster, rendered
    arms = {arm.name for arm in experiment.arms}
    predicted, problems = verdicts(experiment, objects)
    assert problems == []
    _apply_and_raise(kubectl, objects, arms)

    def bound() -> bool:
        for node in fakes:
            report(kubectl, node)
        pods = _pods(kubectl, arms)
        return len(pods) == len(arms) and all(pod["spec"].get("nodeName") for pod in pods)

    wait_until(bound, "every arm has a node")
    wanted = [verdict.placement for verdict in predicted if verdict.batch == 0]
    assert {pod["spec"]["nodeName"] for pod in _pods(kubectl, arms)} == {place.node for place in wanted}
    held = [names for names in _allocated(kubectl) if names]
    assert held == sorted(
        (place.devices for place in wanted), key=lambda names: [_number(name) for name in names]
    )


def test_a_misspelt_attribute_leaves_the_pod_pending_as_the_check_says(
    cluster: tuple[Kubectl, tuple[Node, ...]], rendered: tuple[Experiment, list[dict[str, Any]]]
) -> None:
    (kubectl, fakes), (experiment, objects) = cluster, rendered
    template = next(item for item in objects if item["kind"] == "ResourceClaimTemplate")
    template["metadata"]["name"] = "misspelt"
    template["spec"]["spec"]["devices"]["constraints"][0]["matchAttribute"] = "resource.aws.com/devicegroup_8"
    for item in objects:
        if item["kind"] in ("Deployment", "Job") and "resourceClaims" in pod_spec(item):
            pod_spec(item)["resourceClaims"][0]["resourceClaimTemplateName"] = "misspelt"
    problems = verdicts(experiment, objects)[1]
    assert any("is published by no device" in line for line in problems)
    arm = experiment.baseline.name
    _apply_and_raise(kubectl, objects, {arm})

    def refused() -> bool:
        for node in fakes:
            report(kubectl, node)
        conditions = [
            condition
            for pod in _pods(kubectl, {arm})
            for condition in (pod.get("status") or {}).get("conditions") or ()
            if condition["type"] == "PodScheduled"
        ]
        return any(
            condition["status"] == "False" and "cannot allocate all claims" in condition.get("message", "")
            for condition in conditions
        )

    wait_until(refused, "the scheduler says that it cannot allocate all claims")
