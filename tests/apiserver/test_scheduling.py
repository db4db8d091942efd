"""The real scheduler and allocator against the model of the tests: the same pods on the same devices."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.pods import SCHEDULER
from experiment import Experiment
from experiment.naming import NODE_ROLE_LABEL
from tests.apiserver.control_plane import ControlPlane
from tests.apiserver.kubectl import wait_until
from tests.apiserver.objects import Objects, Remember, filled, renamed, without_warnings
from tests.apiserver.standing import Standing
from tests.cdk8s_charts.objects import EXPERIMENTS, NEURON_RESOURCE, experiment_at, objects_of, pod_spec, the
from tests.cdk8s_charts.placement import Node, Place, Unplaceable, nodes
from tests.cdk8s_charts.placement import stand as places_of
from tests.cdk8s_charts.variations import with_serving
from tests.conftest import REFERENCE

Stand = Callable[[Experiment, Objects], Standing]


@pytest.fixture
def stand(
    scheduling: ControlPlane,
    nodes_of: Callable[[Sequence[Node]], None],
    erased: Remember,
) -> Stand:
    """Puts an experiment on as many fake nodes as it may have."""

    def stood(experiment: Experiment, objects: Objects) -> Standing:
        fakes = nodes(experiment, neuron_nodes=experiment.cluster.max_nodes)
        nodes_of(fakes)
        erased(objects)
        standing = Standing(scheduling.kubectl, experiment.name, fakes)
        standing.apply(objects)
        return standing

    return stood


def _role(standing: Standing, node: str) -> str:
    return next(each.labels[NODE_ROLE_LABEL] for each in standing.nodes if each.name == node)


def _compare(standing: Standing, pods: Objects, wanted: dict[str, Place]) -> None:
    """Nodes and groups of devices are the predicted ones; which arm has which group is the scheduler's to choose."""
    places = list(wanted.values())
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == sorted(place.node for place in places)
    if not any(place.asks[NEURON_RESOURCE] for place in places):
        held = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods}
        taken = [(held[name], devices) for name, devices in standing.held().items() if name in held]
        assert sorted(taken) == sorted((place.node, place.devices) for place in places)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_arms_get_the_nodes_and_devices_that_the_check_predicts(path: Path, stand: Stand) -> None:
    experiment, objects = experiment_at(path), filled(objects_of(path))
    predicted, _ = places_of(experiment, objects)
    standing = stand(experiment, objects)
    for wanted in predicted:
        if not wanted:  # arms without a server
            continue
        standing.scale(wanted, 1)
        _compare(standing, standing.wait_bound(wanted), wanted)
        standing.scale(wanted, 0)
        standing.wait_gone()


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_all_jobs_released_at_once_end_whatever_their_order(path: Path, stand: Stand) -> None:
    experiment, objects = experiment_at(path), filled(objects_of(path))
    _, predicted = places_of(experiment, objects)
    standing = stand(experiment, objects)
    jobs = [item["metadata"]["name"] for item in objects if item["kind"] == "Job"]
    standing.release(jobs)
    where: dict[str, str] = {}

    def ended() -> bool:
        for pod in standing.look(ended=jobs):
            where[pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]] = pod["spec"].get("nodeName", "")
        complete = standing.kubectl.items("jobs", experiment.name)
        return all(job.get("status", {}).get("completionTime") for job in complete)

    wait_until(ended, f"{len(jobs)} Jobs are complete")
    assert {name: _role(standing, node) for name, node in where.items()} == {
        name: _role(standing, predicted[f"Job/{name}"].node) for name in jobs
    }


def test_the_benchmark_stands_beside_the_servers_and_not_on_their_node(stand: Stand) -> None:
    experiment, objects = experiment_at(REFERENCE), filled(objects_of(REFERENCE))
    standing = stand(experiment, objects)
    arms = {arm.name for arm in experiment.arms}
    standing.scale(arms, 1)
    standing.wait_bound(arms)
    kubectl = standing.kubectl
    made = kubectl.run("create", "job", "loading", "--from=cronjob/qwen-llmperf", "-n", experiment.name)
    assert made.returncode == 0, made.stderr
    (pod,) = standing.wait_bound({"loading"})
    assert _role(standing, pod["spec"]["nodeName"]) == "system"


def test_a_server_waits_for_the_devices_of_a_job_and_gets_them_afterwards(stand: Stand) -> None:
    """Neither pushes the other out, and nobody has to delete anything."""
    experiment, objects = experiment_at(REFERENCE), filled(objects_of(REFERENCE))
    standing = stand(experiment, objects)
    compiling = [
        item["metadata"]["name"]
        for item in objects
        if item["kind"] == "Job" and item["metadata"]["name"].startswith("compile-")
    ]
    standing.release(compiling)
    before = {pod["metadata"]["uid"] for pod in standing.wait_bound(compiling)}
    arm = experiment.baseline.name
    standing.scale({arm}, 1)
    standing.wait_pending(arm, "Insufficient cpu")
    assert before <= {pod["metadata"]["uid"] for pod in standing.look()}

    def raised() -> bool:
        standing.look(ended=compiling)
        return any(pod["spec"].get("nodeName") for pod in standing.pods_of({arm}))

    wait_until(raised, "the server has the devices")


def test_with_the_device_plugin_arms_are_counted_onto_one_node(
    scheduling: ControlPlane, reference: Experiment, stand: Stand
) -> None:
    if SCHEDULER not in scheduling.schedulers:
        pytest.skip(f"no scheduler of the name {SCHEDULER} in this cluster")
    experiment = replace(with_serving(reference, allocation="device-plugin"), name="by-count")
    objects = renamed(experiment, "by-count")
    (wanted, *_), _ = places_of(experiment, objects)
    standing = stand(experiment, objects)
    standing.scale(wanted, 1)
    _compare(standing, standing.wait_bound(wanted), wanted)
    third = copy.deepcopy(the(objects, "Deployment"))
    third["metadata"]["name"] = "third"
    for labels in (third["spec"]["selector"]["matchLabels"], third["spec"]["template"]["metadata"]["labels"]):
        labels["app.kubernetes.io/name"] = "third"
    third["spec"]["replicas"] = 1
    assert without_warnings(standing.kubectl.apply([third])) == []
    standing.wait_pending("third", "Insufficient aws.amazon.com/neuron")


def _server(objects: Objects) -> dict[str, Any]:
    return pod_spec(the(objects, "Deployment", "qwen-vllm"))


def _ask_for_another_type(objects: Objects) -> None:
    exactly = the(objects, "ResourceClaimTemplate")["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    another = "device.attributes['neuron.aws.com'].instanceType == 'trn1.32xlarge'"
    exactly["selectors"] = [{"cel": {"expression": another}}]


WAITING: dict[str, tuple[Callable[[Objects], object], str]] = {
    # by what the scheduler says: what breaks it, what placement.py says
    "cannot allocate all claims": (_ask_for_another_type, ""),
    "Insufficient memory": (
        lambda o: _server(o)["containers"][0]["resources"].update(
            requests={"memory": "2000Gi"}, limits={"memory": "2000Gi"}
        ),
        "memory:",
    ),
    "untolerated taint": (lambda o: _server(o).pop("tolerations"), "taints"),
    "didn't match Pod's node affinity/selector": (
        lambda o: _server(o).update(nodeSelector={NODE_ROLE_LABEL: "gpu"}),
        "labels",
    ),
}


@pytest.mark.parametrize("scheduler_says", WAITING)
def test_a_pod_that_the_check_refuses_is_one_that_waits_for_ever(scheduler_says: str, stand: Stand) -> None:
    damage, check_says = WAITING[scheduler_says]
    experiment, objects = experiment_at(REFERENCE), filled(objects_of(REFERENCE))
    damage(objects)
    if check_says:
        with pytest.raises(Unplaceable, match=check_says):
            places_of(experiment, objects)
    standing = stand(experiment, objects)
    arm = experiment.baseline.name
    standing.scale({arm}, 1)
    standing.wait_pending(arm, scheduler_says)
