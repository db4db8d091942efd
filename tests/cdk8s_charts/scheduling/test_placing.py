"""Where the pods of a render stand, and which renders are refused because one could never."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cdk8s_charts.allocation import SCHEDULER
from cdk8s_charts.errors import ChartError
from cdk8s_charts.manifest_file import ManifestFile
from cdk8s_charts.scheduling import allocator, refuse_unplaceable, verdicts
from cdk8s_charts.scheduling.cluster import NEURON_SCHEDULER, Cluster, Surroundings
from cdk8s_charts.scheduling.mounts import needed, s3_volumes, total
from cdk8s_charts.scheduling.nodes import (
    RESIDENTS,
    SYSTEM_INSTANCE,
    SYSTEM_MACHINE,
    SYSTEM_NODES,
    allocatable,
    machine,
    nodes,
    taken_by_residents,
)
from cdk8s_charts.scheduling.quantities import Amounts, quantity
from cdk8s_charts.scheduling.workloads import Workload
from experiment.catalogue.instances import INSTANCES
from experiment.placement import compilations_at_once, nodes_needed
from infra.settings import Settings
from tests.cdk8s_charts.committed import EXPERIMENTS, experiment_at, objects_of, pod_spec, the
from tests.conftest import REFERENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiment import Experiment

    Edit = Callable[[list[dict[str, Any]]], object]

ARM = "qwen-sd-vllm"


def _pod(objects: list[dict[str, Any]], name: str = ARM) -> dict[str, Any]:
    return pod_spec(the(objects, "Deployment", name))


def _resources(objects: list[dict[str, Any]], **amounts: str) -> None:
    for part in ("requests", "limits"):
        _pod(objects)["containers"][0]["resources"][part].update(
            {name.replace("_", "-"): value for name, value in amounts.items()}
        )


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_pod_of_every_experiment_can_be_placed(path: Path) -> None:
    found, problems = verdicts(experiment_at(path), objects_of(path))
    assert problems == []
    arms = {f"Deployment/{arm.name}" for arm in experiment_at(path).arms}
    assert {verdict.pod for verdict in found if verdict.batch is not None} <= arms


def test_the_reference_arms_stand_on_the_halves_of_one_node() -> None:
    found, _ = verdicts(experiment_at(REFERENCE), objects_of(REFERENCE))
    by_pod = {verdict.pod: verdict.placement for verdict in found}
    plain, treated = by_pod["Deployment/qwen-vllm"], by_pod["Deployment/qwen-sd-vllm"]
    assert plain.node == treated.node == "trn2-0"
    assert plain.devices == tuple(f"neuron-device-{number}" for number in range(8))
    assert treated.devices == tuple(f"neuron-device-{number}" for number in range(8, 16))
    assert by_pod["CronJob/qwen-llmperf"].node.startswith("system-")
    assert {mount.volume.name.split("-")[2] for mount in plain.mounts} == {"checkpoints", "artifacts"}


def test_pods_of_one_account_share_a_mount_and_another_account_has_its_own() -> None:
    objects = objects_of(REFERENCE)
    volumes = s3_volumes(objects)
    serving, plain = (
        needed(Workload(the(objects, "Deployment", name)), volumes) for name in (ARM, "qwen-vllm")
    )
    assert serving == plain
    compiling = needed(Workload(the(objects, "Job", "compile-")), volumes)
    assert total(serving | compiling) == Amounts(cpu_m=3000, memory=12 * 2**30, pods=3)


def test_a_verdict_is_one_line_for_people() -> None:
    found, _ = verdicts(experiment_at(REFERENCE), objects_of(REFERENCE))
    line = found[0].line()
    assert line.startswith("Deployment/qwen-vllm: batch 0, node trn2-0, devices neuron-device-0, ")
    assert "memory 851Gi" in line


UNPLACEABLE: dict[str, tuple[str, Edit]] = {
    "too much CPU for two": ("cpu 110 of ", lambda o: _resources(o, cpu="110")),
    "too much memory for any": ("memory 2000Gi of ", lambda o: _resources(o, memory="2000Gi")),
    "too much disk": ("ephemeral-storage", lambda o: _resources(o, ephemeral_storage="9000Gi")),
    "nine devices": (
        "no 9 devices of a node share one",
        lambda o: the(o, "ResourceClaimTemplate")["spec"]["spec"]["devices"]["requests"][0]["exactly"].update(
            count=9
        ),
    ),
    "a misspelt attribute": (
        "is published by no device, so the claim waits for ever",
        lambda o: the(o, "ResourceClaimTemplate")["spec"]["spec"]["devices"]["constraints"][0].update(
            matchAttribute="resource.aws.com/devicegroup_8_id"
        ),
    ),
    "a template that nobody rendered": (
        "is not rendered, so the pod is never considered",
        lambda o: o.remove(the(o, "ResourceClaimTemplate")),
    ),
    "a label that no node has": (
        "no node has the labels",
        lambda o: _pod(o)["nodeSelector"].update(nodegroup="di-ng"),
    ),
    "no toleration": ("no node has the labels", lambda o: _pod(o).pop("tolerations")),
    "a required affinity": (
        "a required nodeAffinity is not known",
        lambda o: _pod(o).update(
            affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"x": 1}}}
        ),
    ),
    "a bad quantity": ("'8 GB' is no quantity", lambda o: _resources(o, memory="8 GB")),
    "a mount that leaves no memory": (
        "node trn2-0: memory",
        lambda o: the(o, "PersistentVolume")["spec"]["csi"]["volumeAttributes"].update(
            mountpointContainerResourcesRequestsMemory="1100Gi"
        ),
    ),
    "a benchmark larger than a system node": (
        "node system-0: cpu 6",
        lambda o: pod_spec(the(o, "CronJob"))["containers"][0]["resources"].update(
            requests={"cpu": "6", "memory": "1Gi"}, limits={"cpu": "6", "memory": "1Gi"}
        ),
    ),
}


@pytest.mark.parametrize("what", UNPLACEABLE)
def test_a_pod_that_could_never_run_is_refused_in_one_line(what: str) -> None:
    words, damage = UNPLACEABLE[what]
    objects = objects_of(REFERENCE)
    damage(objects)
    with pytest.raises(ChartError) as refused:
        refuse_unplaceable(experiment_at(REFERENCE), (ManifestFile("all.yaml", tuple(objects)),))
    assert words in str(refused.value)
    assert all(line.split(":")[0].count("/") == 1 for line in str(refused.value).splitlines())


def _with_arms(count: int, **cluster: Any) -> tuple[Experiment, list[dict[str, Any]]]:
    experiment, objects = experiment_at(REFERENCE), objects_of(REFERENCE)
    arms = list(experiment.arms)
    for number in range(count - 2):
        arms.append(replace(experiment.arms[1], name=f"arm-{number}"))
        deployment = copy.deepcopy(the(objects, "Deployment", ARM))
        deployment["metadata"]["name"] = f"arm-{number}"
        objects.append(deployment)
    settings = replace(experiment.cluster, **cluster)
    return replace(experiment, arms=tuple(arms), cluster=settings), objects


def test_arms_beyond_one_node_stand_in_later_batches() -> None:
    found, problems = verdicts(*_with_arms(5, max_nodes=1))
    assert problems == []
    assert [verdict.batch for verdict in found if verdict.batch is not None] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_arms_share_two_nodes_when_there_are_two() -> None:
    found, problems = verdicts(*_with_arms(4, max_nodes=2))
    assert problems == []
    places = [
        (verdict.placement.node, verdict.placement.devices[0]) for verdict in found if verdict.batch == 0
    ]
    assert places == [(node, f"neuron-device-{first}") for node in ("trn2-0", "trn2-1") for first in (0, 8)]


SWEEP = REFERENCE.with_name("qwen3-32b-tp4-sweep.yaml")


def _compilations(objects: list[dict[str, Any]]) -> list[Workload]:
    return [Workload(item) for item in objects if item["metadata"]["name"].startswith("compile-")]


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_what_compiles_at_once_fits_the_nodes_with_its_mounts(path: Path) -> None:
    experiment, objects = experiment_at(path), objects_of(path)
    if not experiment.device_arms:
        return
    at_once = compilations_at_once(experiment)
    state = Cluster(nodes(experiment, neuron_nodes=nodes_needed(experiment)), Surroundings.of(objects))
    asks = Amounts()
    for pod in _compilations(objects)[:at_once]:
        state, place = state.schedule(pod)
        asks += place.asks
    (node, *_) = state.nodes
    if nodes_needed(experiment) == 1:
        assert asks.cpu_m <= node.free.cpu_m
        assert asks.memory <= node.free.memory
        assert asks.ephemeral <= node.free.ephemeral


def test_a_sweep_of_single_chips_compiles_four_at_once_with_a_quarter_of_the_node_each() -> None:
    experiment, objects = experiment_at(SWEEP), objects_of(SWEEP)
    assert compilations_at_once(experiment) == 4
    compilations = _compilations(objects)
    assert len(compilations) == 16
    for pod in compilations:
        asks = pod.requests()
        assert (asks.cpu_m, asks.memory // 2**30) == (42_000, 425)
    halves = experiment_at(REFERENCE)
    assert compilations_at_once(halves) == 2


def test_compilations_that_do_not_fit_together_are_refused_though_each_fits_alone() -> None:
    experiment, objects = experiment_at(SWEEP), objects_of(SWEEP)
    for item in objects:
        if item["metadata"]["name"].startswith("compile-"):
            (compiler,) = (one for one in pod_spec(item)["initContainers"] if one["name"] == "compile")
            compiler["resources"]["requests"]["memory"] = "600Gi"
    problems = verdicts(experiment, objects)[1]
    assert len(problems) == 1
    assert problems[0].startswith("Job/compile-")
    assert problems[0].endswith("(of 4 compilations at once)")


def test_a_hundred_arms_are_placed_without_searching_again_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = allocator.allocate

    def counted(wanted: Any, devices: Any, taken: Any) -> tuple[str, ...]:
        asked.append(len(taken))
        return real(wanted, devices, taken)

    monkeypatch.setattr("cdk8s_charts.scheduling.cluster.allocate", counted)
    found, problems = verdicts(*_with_arms(100, max_nodes=1))
    assert problems == []
    assert len(found) >= 100
    assert len(asked) < 600, "each of 99 rounds of two once packed and once spread, each arm once alone"


def _by_plugin(devices: int, scheduler: str | None) -> list[str]:
    experiment, objects = experiment_at(REFERENCE), objects_of(REFERENCE)
    serving = replace(experiment.baseline.serving, allocation="device-plugin")
    arms = tuple(replace(arm, serving=serving) for arm in experiment.arms)
    objects = [item for item in objects if item["kind"] not in ("Job", "CronJob")]
    for arm in arms:
        spec = _pod(objects, arm.name)
        spec.pop("resourceClaims")
        resources = spec["containers"][0]["resources"]
        resources.pop("claims")
        for part in ("requests", "limits"):
            resources[part]["aws.amazon.com/neuron"] = str(devices)
        if scheduler:
            spec["schedulerName"] = scheduler
    found, problems = verdicts(replace(experiment, arms=arms), objects)
    return problems or [
        ", ".join(verdict.placement.devices) for verdict in found if verdict.batch is not None
    ]


def test_the_device_plugin_gives_connected_groups_through_the_scheduler_extension() -> None:
    first, second = _by_plugin(8, "my-scheduler")
    assert first == ", ".join(f"neuron{number}" for number in range(8))
    assert second == ", ".join(f"neuron{number}" for number in range(8, 16))


@pytest.mark.parametrize(
    ("devices", "scheduler", "words"),
    [
        (8, None, "need the scheduler extension"),
        (6, "my-scheduler", "6 devices are no connected group; ask for 1, 4, 8, 16"),
        (16, "my-scheduler", "aws.amazon.com/neuron 16 of 0 free"),
        (17, "my-scheduler", "aws.amazon.com/neuron 17 of 16 free"),
    ],
)
def test_what_the_device_plugin_cannot_give_is_refused(
    devices: int, scheduler: str | None, words: str
) -> None:
    assert words in _by_plugin(devices, scheduler)[0]


def test_allocatable_of_a_trn2_node_is_what_karpenter_lists() -> None:
    offered = allocatable(machine(INSTANCES["trn2.48xlarge"]))
    assert (offered.cpu_m, offered.memory // 2**20, offered.pods) == (191_450, 1_938_410, 100)


def test_every_figure_has_a_source() -> None:
    assert SYSTEM_MACHINE.source
    assert all(resident.source for resident in RESIDENTS)


def test_the_system_nodes_are_those_that_are_deployed() -> None:
    settings = Settings()
    assert (settings.system_instance_type, settings.system_nodes) == (SYSTEM_INSTANCE, SYSTEM_NODES)
    assert SYSTEM_MACHINE.disk_gib == settings.system_volume_gib


def test_residents_are_counted_by_role_and_allocation() -> None:
    by_claims, by_plugin = (taken_by_residents("neuron", each) for each in ("dra", "device-plugin"))
    assert by_claims.pods == by_plugin.pods
    assert by_claims != by_plugin
    (trn2, *system) = nodes(experiment_at(REFERENCE), neuron_nodes=1)
    assert trn2.free.cpu_m == 191_450 - by_claims.cpu_m
    assert len(system) == SYSTEM_NODES


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("100m", 0.1),
        ("1Gi", 2**30),
        ("1.5k", 1500),
        ("2e3", 2000),
        (4, 4),
        ("131072Mi", 2**37),
        ("1E", 10**18),
    ],
)
def test_quantities_are_read_as_kubernetes_reads_them(text: str, value: float) -> None:
    assert float(quantity(text)) == value


@pytest.mark.parametrize("text", ["", "1 Gi", "1GB", "Gi", "1e", True, None])
def test_what_is_no_quantity_is_refused(text: Any) -> None:
    with pytest.raises(ChartError, match="is no quantity"):
        quantity(text)


def test_a_pod_asks_for_its_hungriest_phase_with_the_sidecars() -> None:
    def container(cpu: str, **more: Any) -> dict[str, Any]:
        return {"name": f"c{cpu}", "resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "initContainers": [container("3"), container("1", restartPolicy="Always"), container("4")],
        "containers": [container("2"), container("1")],
    }
    pod = Workload({"kind": "Pod", "metadata": {"name": "x"}, "spec": spec})
    assert pod.requests() == Amounts(cpu_m=5000, pods=1)


def test_the_scheduler_extension_has_one_name() -> None:
    assert SCHEDULER == NEURON_SCHEDULER
