"""Where the pods of a render stand: a small scheduler over modelled nodes. tests/apiserver asks the real one.

Figures with their source; `estimate` where none was found. Nothing here was measured on AWS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cdk8s_charts.pods import SCHEDULER
from experiment import Experiment
from experiment.catalogue.instances import Instance
from experiment.catalogue.prices import SYSTEM_INSTANCE_TYPE
from experiment.cost import SYSTEM_NODES, SYSTEM_VOLUME_GIB
from experiment.naming import NEURON_TAINT_KEY, NODE_ROLE_LABEL, STEP
from experiment.placement import batches, compilations_at_once
from tests.cdk8s_charts.objects import NEURON_RESOURCE, Object, Pod, named, pods_of, quantity

RESOURCES = ("cpu", "memory", "ephemeral-storage", NEURON_RESOURCE, "pods")
RESIDENTS: dict[str, tuple[float, int, str]] = {
    "aws-node": (0.05, 0, ""),  # eks-charts aws-vpc-cni: 25m for each of two containers
    "kube-proxy": (0.1, 0, ""),  # estimate
    "s3-csi-node": (0.03, 120, ""),  # mountpoint-s3-csi-driver chart: 10m and 40Mi, three containers
    "cloudwatch-agent": (0.25, 128, ""),  # chart amazon-cloudwatch-observability
    "fluent-bit": (0.05, 25, ""),  # estimate
    "eks-node-monitoring-agent": (0.01, 30, ""),  # values.yaml of chart 1.7.0
    "eks-pod-identity-agent": (0, 0, ""),  # its chart sets no requests
    "neuron-monitor": (0.256, 128, "neuron"),  # chart amazon-cloudwatch-observability
    "neuron-dra-driver, device-plugin": (0.1, 256, "neuron"),  # neuron-helm-charts README; plugin: estimate
    "coredns": (0.1, 70, "system"),  # EKS add-on, one of two replicas a node
    "CloudWatch operator": (0.1, 64, "system"),  # this and the next three: estimates, counted on every node
    "metrics-server": (0.1, 200, "system"),
    "S3 CSI controller": (0.01, 40, "system"),
    "Neuron scheduler extension": (0, 0, "system"),
}
"""CPUs, MiB and role (empty: every node) of pods of the platform that stand on a node before any of ours."""
Amounts = dict[str, float]


class Unplaceable(Exception):
    """Why a pod waits."""


@dataclass(frozen=True)
class Node:
    """A node before pods of this project come."""

    name: str
    labels: dict[str, str]
    taints: tuple[tuple[str, str], ...]
    """Key and effect."""
    free: Amounts
    instance: Instance | None = None
    by_claims: bool = True

    @property
    def devices(self) -> int:
        return self.instance.devices if self.instance else 0


@dataclass(frozen=True)
class Place:
    """Where one pod stands."""

    node: str
    devices: tuple[str, ...]
    asks: Amounts


@dataclass
class Cluster:
    """Nodes, what pods refer to, and the pods on them."""

    nodes: tuple[Node, ...]
    objects: tuple[Object, ...]
    placed: list[Place] = field(default_factory=list)
    mounted: set[tuple[str, str, str]] = field(default_factory=set)
    """Node, volume and service account of each Mountpoint pod."""

    def schedule(self, pod: Pod, *, spread: bool = False) -> Place:
        """Put one pod on the first node that takes it; with `spread`, emptier nodes come first. Raises `Unplaceable`."""
        why = []
        for node in sorted(self.nodes, key=lambda one: len(self._taken(one.name)) if spread else 0):
            try:
                place = self._fit(pod, node)
            except Unplaceable as error:
                why.append(f"{node.name}: {error}")
                continue
            self.placed.append(place)
            return place
        raise Unplaceable(f"{pod}: {'; '.join(why)}")

    def _taken(self, node: str) -> set[str]:
        return {device for place in self.placed if place.node == node for device in place.devices}

    def _fit(self, pod: Pod, node: Node) -> Place:
        if not (pod.spec.get("nodeSelector") or {}).items() <= node.labels.items():
            raise Unplaceable(f"labels {node.labels}")
        tolerated = {entry.get("key") for entry in pod.spec.get("tolerations") or ()}
        if {key for key, _ in node.taints} - tolerated:
            raise Unplaceable(f"taints {node.taints}")
        asks = requests(pod.spec)
        mounts = self._mounts(pod, node.name)
        total = _sum([asks, *mounts.values()])
        used = _sum(place.asks for place in self.placed if place.node == node.name)
        for name in RESOURCES:
            if total[name] + used[name] > node.free[name]:
                raise Unplaceable(f"{name}: {total[name]:g} beside {used[name]:g} of {node.free[name]:g}")
        place = Place(node.name, self._devices(pod, node), total)
        self.mounted |= mounts.keys()
        return place

    def _mounts(self, pod: Pod, node: str) -> dict[tuple[str, str, str], Amounts]:
        """Mountpoint pods that do not run yet: one a volume, node and identity, with the requests that the volume names
        (mountpoint-s3-csi-driver, docs/MOUNTPOINT_POD_SHARING.md)."""
        claims = named(self.objects, "PersistentVolumeClaim")
        volumes = named(self.objects, "PersistentVolume")
        found = {}
        for volume in pod.volumes.values():
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if claim is None:
                continue
            name = claims[claim]["spec"]["volumeName"]
            given = volumes[name]["spec"]["csi"].get("volumeAttributes") or {}
            prefix = "mountpointContainerResourcesRequests"
            asks = _amounts(
                {"cpu": given.get(f"{prefix}Cpu", 0), "memory": given.get(f"{prefix}Memory", 0)}, pods=1
            )
            found[node, name, pod.spec["serviceAccountName"]] = asks
        return {key: asks for key, asks in found.items() if key not in self.mounted}

    def _devices(self, pod: Pod, node: Node) -> tuple[str, ...]:
        """A connected group of devices: groups of 1, 4, 8 and 16 are aligned (Neuron documentation, DRA; scheduler extension)."""
        count = _devices_of(pod, self.objects)
        if not count:
            return ()
        if count not in (1, 4, 8, 16):
            raise Unplaceable(f"{count} devices are not a connected group")
        if node.by_claims and node.instance and not node.instance.efa_attached:
            raise Unplaceable("groups are published on instances with EFA only")
        if not node.by_claims and 1 < count < node.devices and pod.spec.get("schedulerName") != SCHEDULER:
            raise Unplaceable("without the scheduler extension the devices might not be connected")
        name = "neuron-device-{}" if node.by_claims else "neuron{}"
        for first in range(0, node.devices - count + 1, count):
            group = tuple(name.format(number) for number in range(first, first + count))
            if not self._taken(node.name) & set(group):
                return group
        raise Unplaceable(f"no group of {count} devices is free")


def _devices_of(pod: Pod, objects: Iterable[Object]) -> int:
    templates = named(objects, "ResourceClaimTemplate")
    count = 0
    for claim in pod.spec.get("resourceClaims") or ():
        if claim["resourceClaimTemplateName"] not in templates:
            raise Unplaceable(f"claim template {claim['resourceClaimTemplateName']} is not rendered")
        (request,) = templates[claim["resourceClaimTemplateName"]]["spec"]["spec"]["devices"]["requests"]
        count += request["exactly"]["count"]
    return count + int(requests(pod.spec)[NEURON_RESOURCE])


def _amounts(resources: Mapping[str, object] | None, *, pods: int = 0) -> Amounts:
    given = {name: quantity(value) for name, value in (resources or {}).items()}
    return {name: given.get(name, 0.0) for name in RESOURCES} | {"pods": float(pods)}


def _sum(many: Iterable[Amounts]) -> Amounts:
    total = _amounts(None)
    for one in many:
        total = {name: total[name] + one[name] for name in RESOURCES}
    return total


def requests(spec: Object) -> Amounts:
    """What the scheduler counts for a pod: its containers and sidecars, or the hungriest init container beside sidecars.

    https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
    """

    def of(container: Object) -> Amounts:
        resources = container.get("resources") or {}
        return _amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})

    sidecars, peaks = _amounts(None), list[Amounts]()
    for container in spec.get("initContainers") or ():
        peaks.append(_sum([sidecars, of(container)]))
        if container.get("restartPolicy") == "Always":
            sidecars = peaks[-1]
    peaks.append(_sum([sidecars, *map(of, spec["containers"])]))
    return {name: max(peak[name] for peak in peaks) for name in RESOURCES} | {"pods": 1.0}


def allocatable(*, vcpus: int, memory_gib: int, max_pods: int, disk_gib: float) -> Amounts:
    """What is left for pods, by the formula of the EKS images (https://github.com/awslabs/amazon-eks-ami, nodeadm).

    Memory: 7.5 % for what cannot be known before a node runs (Karpenter's default), 255 MiB and 11 MiB a pod for the kubelet,
    100 MiB for eviction. Disk: 1 GiB reserved, eviction at 10 %. For trn2.48xlarge this gives 191,450m and 1,938,410 Mi, the
    figures of Karpenter's reference.
    """
    reserved_m = 60 + 10 * (vcpus > 1) + 5 * max(0, min(vcpus, 4) - 2) + 2.5 * max(0, vcpus - 4)
    return {
        "cpu": int(vcpus * 1000 - reserved_m) / 1000,
        "memory": int(memory_gib * 1024 * 0.925 - 255 - 11 * max_pods - 100) * 2**20,
        "ephemeral-storage": int((disk_gib * 0.9 - 1) * 2**30),
        NEURON_RESOURCE: 0,
        "pods": max_pods,
    }


def nodes(experiment: Experiment, *, neuron_nodes: int) -> tuple[Node, ...]:
    """`neuron_nodes` Trn2 nodes and the system nodes."""
    instance = experiment.instance
    by_claims = experiment.baseline.serving.allocation == "dra"
    large = allocatable(
        vcpus=instance.vcpus,
        memory_gib=instance.memory_gib,
        max_pods=instance.max_pods,
        disk_gib=instance.scratch_gib,
    )
    # m7i.xlarge: EC2 instance types; pods by its network interfaces (eni-max-pods.txt); root volume of experiment/cost.py
    small = allocatable(vcpus=4, memory_gib=16, max_pods=58, disk_gib=SYSTEM_VOLUME_GIB)
    free_of_system = _without_residents(small, "system")
    free = _without_residents(large, "neuron") | {NEURON_RESOURCE: 0 if by_claims else instance.devices}
    labels, taints = _labels(instance.name, "neuron"), ((NEURON_TAINT_KEY, "NoSchedule"),)
    neuron = tuple(
        Node(f"trn2-{number}", labels, taints, free, instance, by_claims) for number in range(neuron_nodes)
    )
    system = tuple(
        Node(f"system-{number}", _labels(SYSTEM_INSTANCE_TYPE, "system"), (), free_of_system)
        for number in range(SYSTEM_NODES)
    )
    return neuron + system


def _labels(instance: str, role: str) -> dict[str, str]:
    return {
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": instance,
        NODE_ROLE_LABEL: role,
    }


def _without_residents(offered: Amounts, role: str) -> Amounts:
    standing = [(cpu, mib) for cpu, mib, of in RESIDENTS.values() if of in ("", role)]
    taken = _sum(_amounts({"cpu": cpu, "memory": mib * 2**20}, pods=1) for cpu, mib in standing)
    return {name: offered[name] - taken[name] for name in RESOURCES}


def stand(
    experiment: Experiment, objects: Iterable[Object]
) -> tuple[list[dict[str, Place]], dict[str, Place]]:
    """Places of the arms, batch by batch, and of every other pod alone, which is how they are started; compilations
    stand as many at once as `run` releases. Raises `Unplaceable`."""
    known = tuple(objects)
    of_experiment = nodes(experiment, neuron_nodes=experiment.cluster.max_nodes)
    servers = named(known, "Deployment")
    together = []
    for batch in batches(experiment):
        members = [Pod(servers[arm.name]) for arm in batch if not arm.batch_only]
        for spread in (True, False):
            cluster = Cluster(of_experiment, known)
            places = {pod.name: cluster.schedule(pod, spread=spread) for pod in members}
        together.append(places)
    alone = {str(pod): Cluster(of_experiment, known).schedule(pod) for pod in pods_of(known)}
    compiling = [pod for pod in pods_of(known) if (pod.metadata.get("labels") or {}).get(STEP) == "compile"]
    compiling.sort(key=lambda pod: requests(pod.spec)["ephemeral-storage"], reverse=True)
    cluster = Cluster(of_experiment, known)
    for pod in compiling[: compilations_at_once(experiment)]:
        cluster.schedule(pod)
    return together, alone
