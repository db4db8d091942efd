"""Every pod of every experiment has a place, and no two pods wait for each other's devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cdk8s_charts.pods import sizes
from cdk8s_charts.pods.devices import SCHEDULER
from cdk8s_charts.workloads.proofs import runtimes
from experiment import Experiment
from experiment.catalogue.instances import INSTANCES
from experiment.catalogue.prices import SYSTEM_INSTANCE_TYPE
from experiment.cost import SYSTEM_NODES
from experiment.placement import compilations_at_once, place
from infra.settings import SYSTEM_VOLUME_GIB
from tests.cdk8s_charts import placement
from tests.cdk8s_charts.committed import EXPERIMENTS, experiment_at, objects_of, pod_spec, the
from tests.cdk8s_charts.generated import WANTED, generated
from tests.cdk8s_charts.placement import Cluster, Unplaceable, allocatable, nodes, stand
from tests.cdk8s_charts.pods import Object, Pod, pods_of, words
from tests.conftest import REFERENCE

Edit = Callable[[list[Object]], object]
SWEEP = REFERENCE.with_name("qwen3-32b-tp4-sweep.yaml")
LOOPS = ("until ", "while ", "sleep ", "wait ")


def _placed_as_the_core_says(experiment: Experiment, objects: list[Object]) -> None:
    """The same arms on the same nodes, batch by batch; a connected group is where the core counts it."""
    together, _ = stand(experiment, objects)
    said = [
        (where.batch, where.arm, f"trn2-{where.node}", f"{where.first_device}", where.devices)
        for where in place(experiment)
        if not next(arm for arm in experiment.arms if arm.name == where.arm).batch_only
    ]
    found = [
        (
            batch,
            arm,
            one.node,
            one.devices[0].removeprefix("neuron").removeprefix("-device-"),
            len(one.devices),
        )
        for batch, places in enumerate(together)
        for arm, one in places.items()
    ]
    nodes_of = experiment.cluster.max_nodes
    if nodes_of == 1:  # with several nodes the scheduler may as well spread them
        assert found == said
    assert len(found) == len(said)


def _nothing_waits_while_it_holds(objects: list[Object]) -> None:
    """A pod holds its claim while an init container waits: one that waited for a Job of the same devices waits for ever."""
    for pod in pods_of(objects):
        told = " ".join(word for one in pod.spec.get("initContainers") or () for word in words(one))
        assert not any(loop in told for loop in LOOPS), pod
        assert not any(f" {job.name}" in told for job in pods_of(objects) if job.kind == "Job"), pod


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_pod_of_a_committed_experiment_has_a_place(path: Path) -> None:
    _placed_as_the_core_says(experiment_at(path), objects_of(path))
    _nothing_waits_while_it_holds(objects_of(path))


@pytest.mark.parametrize("number", range(WANTED))
def test_whatever_the_core_accepts_has_a_place(number: int) -> None:
    experiment, objects = generated()[number]
    _placed_as_the_core_says(experiment, list(objects))
    _nothing_waits_while_it_holds(list(objects))


def test_enough_experiments_are_drawn_and_they_differ() -> None:
    drawn = [experiment for experiment, _ in generated()]
    assert len(drawn) == WANTED
    assert {one.instance.name for one in drawn} == {"trn2.48xlarge", "trn2.3xlarge"}
    assert {one.baseline.serving.allocation for one in drawn} == {"dra", "device-plugin"}
    assert len({one.baseline.serving.devices for one in drawn}) >= 3


def test_the_reference_arms_stand_on_the_halves_of_one_node() -> None:
    (arms,), alone = stand(experiment_at(REFERENCE), objects_of(REFERENCE))
    assert arms["qwen-vllm"].devices == tuple(f"neuron-device-{number}" for number in range(8))
    assert arms["qwen-sd-vllm"].devices == tuple(f"neuron-device-{number}" for number in range(8, 16))
    assert alone["CronJob/qwen-llmperf"].node.startswith("system-")


def _resources(objects: list[Object], **amounts: str) -> None:
    server = pod_spec(the(objects, "Deployment", "qwen-sd-vllm"))["containers"][0]
    for part in ("requests", "limits"):
        server["resources"][part].update({name.replace("_", "-"): value for name, value in amounts.items()})


def _count(objects: list[Object], count: int) -> None:
    devices = the(objects, "ResourceClaimTemplate")["spec"]["spec"]["devices"]
    devices["requests"][0]["exactly"]["count"] = count


UNPLACEABLE: dict[str, tuple[str, Edit]] = {
    "too much CPU for two": ("cpu: 110", lambda o: _resources(o, cpu="110")),
    "too much memory": ("memory", lambda o: _resources(o, memory="2000Gi")),
    "too much disk": ("ephemeral-storage", lambda o: _resources(o, ephemeral_storage="9000Gi")),
    "nine devices": ("9 devices are not a connected group", lambda o: _count(o, 9)),
    "a group for each arm that leaves none": ("no group of 16 devices is free", lambda o: _count(o, 16)),
    "no template": ("is not rendered", lambda o: o.remove(the(o, "ResourceClaimTemplate"))),
    "a label that no node has": (
        "labels",
        lambda o: pod_spec(the(o, "Deployment"))["nodeSelector"].update(nodegroup="x"),
    ),
    "no toleration": ("taints", lambda o: pod_spec(the(o, "Deployment")).pop("tolerations")),
    "a mount that leaves no memory": (
        "memory",
        lambda o: the(o, "PersistentVolume")["spec"]["csi"]["volumeAttributes"].update(
            mountpointContainerResourcesRequestsMemory="1100Gi"
        ),
    ),
}


@pytest.mark.parametrize("what", UNPLACEABLE)
def test_a_pod_that_would_wait_for_ever_is_seen(what: str) -> None:
    says, damage = UNPLACEABLE[what]
    objects = objects_of(REFERENCE)
    damage(objects)
    with pytest.raises(Unplaceable, match=says):
        stand(experiment_at(REFERENCE), objects)


def test_pods_of_one_account_share_a_mount() -> None:
    objects = objects_of(REFERENCE)
    cluster = Cluster(nodes(experiment_at(REFERENCE), neuron_nodes=1), tuple(objects))
    for name in ("qwen-vllm", "qwen-sd-vllm"):
        cluster.schedule(Pod(the(objects, "Deployment", name)))
    assert len(cluster.mounted) == 2, "checkpoints and artifacts, once"


def test_figures_are_those_of_the_places_they_come_from() -> None:
    large = INSTANCES["trn2.48xlarge"]
    assert (SYSTEM_INSTANCE_TYPE, SYSTEM_NODES) == (
        placement.SYSTEM_INSTANCE,
        placement.SYSTEM_NODES,
    )
    assert SYSTEM_VOLUME_GIB == placement.SYSTEM_DISK_GIB
    assert placement.NEURON_SCHEDULER == SCHEDULER
    offered = allocatable(
        vcpus=large.vcpus, memory_gib=large.memory_gib, max_pods=large.max_pods, disk_gib=large.scratch_gib
    )
    assert offered["cpu"] == 191.45
    assert offered["memory"] == 1_938_410 * 2**20, "Karpenter's reference"
    assert large.allocatable_cpu <= offered["cpu"]
    assert large.allocatable_memory_gib * 2**30 <= offered["memory"]


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_a_system_node_holds_the_images_that_are_asked_and_keeps_them(path: Path) -> None:
    """Both Jobs may come to one node; the kubelet removes images from 85 % of the disk on. 10 GiB: the system, our images."""
    images = len(runtimes(experiment_at(path)))
    fetched, caches = 13, 2 * sizes.MOUNT_CACHE_GIB
    assert images * sizes.NEURON_IMAGE_GIB + fetched + caches + 10 <= 0.85 * placement.SYSTEM_DISK_GIB


def _compilers(objects: list[Object]) -> list[Object]:
    jobs = [one for one in objects if one["metadata"]["name"].startswith("compile-")]
    return [one for job in jobs for one in pod_spec(job)["initContainers"] if one["name"] == "compile"]


def test_a_sweep_of_single_chips_compiles_four_at_once_with_a_quarter_of_the_node_each() -> None:
    """More than that would not fit: the shares of those that `run` releases at once are the node's."""
    experiment, objects = experiment_at(SWEEP), objects_of(SWEEP)
    assert compilations_at_once(experiment) == 4
    assert compilations_at_once(experiment_at(REFERENCE)) == 2
    compilers = _compilers(objects)
    assert len(compilers) == 16
    for one in compilers:
        asked = one["resources"]["requests"]
        assert (asked["cpu"], asked["memory"]) == ("42", "425Gi")
    stand(experiment, objects)
    for one in compilers:
        one["resources"]["requests"]["memory"] = "600Gi"  # each fits alone
    with pytest.raises(Unplaceable):
        stand(experiment, objects)
