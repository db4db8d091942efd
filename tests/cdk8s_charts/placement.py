"""Whether the pods of a render fit where the core puts them: their requests against what nodes offer.

Figures with their source; `estimate` where none was found. Nothing here was measured on AWS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tests.cdk8s_charts.objects import NEURON_RESOURCE, Object, Pod, named, pods_of, quantity
from trnspec.experiment import Experiment
from trnspec.experiment.cost import SYSTEM_VOLUME_GIB
from trnspec.experiment.naming import NEURON_TAINT_KEY, NODE_ROLE_LABEL, STEP
from trnspec.experiment.placement import compilations_at_once, place

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


def misplaced(experiment: Experiment, objects: list[Object]) -> Iterator[str]:
    """What does not fit: arms of a batch together where the core says, so many compilations as `run` releases, every other
    pod alone; and devices that are held twice, or are not a connected group (aligned groups of 1, 4, 8 and 16: Neuron
    documentation, DRA; scheduler extension)."""
    servers, devices = named(objects, "Deployment"), experiment.instance.devices
    together: dict[tuple[int, int], list[Pod]] = {}
    held = set[tuple[int, int, int]]()
    for where in place(experiment):
        if where.arm not in servers:
            continue
        pod, node = Pod(servers[where.arm]), (where.batch, where.node)
        if devices_of(pod, objects) != where.devices or where.devices not in (1, 4, 8, 16):
            yield f"{pod}: asks for other devices than {where.devices}"
        if where.first_device % where.devices or where.first_device + where.devices > devices:
            yield f"{pod}: devices from {where.first_device} are not a group of the node"
        taken = {(*node, where.first_device + number) for number in range(where.devices)}
        if taken & held:
            yield f"{pod}: shares a device"
        held |= taken
        together.setdefault(node, []).append(pod)
    compiling = [pod for pod in pods_of(objects) if (pod.metadata.get("labels") or {}).get(STEP) == "compile"]
    compiling.sort(key=lambda pod: requests(pod.spec)["ephemeral-storage"], reverse=True)
    at_once = compilations_at_once(experiment) // experiment.nodes
    for pods in (*together.values(), compiling[:at_once], *([pod] for pod in pods_of(objects))):
        yield from _beyond(experiment, objects, pods)


def _beyond(experiment: Experiment, objects: list[Object], pods: list[Pod]) -> Iterator[str]:
    """What these pods of one node ask for beyond what is left of it, their mounts of S3 included: one Mountpoint pod for a volume
    and identity (mountpoint-s3-csi-driver, docs/MOUNTPOINT_POD_SHARING.md)."""
    roles = {_role(pod) for pod in pods}
    mounts: dict[tuple[str, str], Amounts] = {}
    for pod in pods:
        for volume in pod.volumes.values():
            if claim := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
                given = named(objects, "PersistentVolume")[claim]["spec"]["csi"]["volumeAttributes"]
                asked = {
                    name.lower(): given[f"mountpointContainerResourcesRequests{name}"]
                    for name in ("Cpu", "Memory")
                }
                mounts[claim, pod.spec["serviceAccountName"]] = _amounts(asked, pods=1)
    asked = total([*(requests(pod.spec) for pod in pods), *mounts.values()])
    for role in roles:
        free = offered(experiment, role)
        yield from (
            f"{', '.join(map(str, pods))}: {name}: {asked[name]:g} of {free[name]:g}"
            for name in RESOURCES
            if asked[name] > free[name]
        )


def _role(pod: Pod) -> str:
    """Of the nodes that it selects; the Trn2 nodes' taint keeps others away."""
    role = "neuron" if pod.spec["nodeSelector"][NODE_ROLE_LABEL].endswith("neuron") else "system"
    tolerated = {entry.get("key") for entry in pod.spec.get("tolerations") or ()}
    assert (NEURON_TAINT_KEY in tolerated) == (role == "neuron"), pod
    return role


def devices_of(pod: Pod, objects: Iterable[Object]) -> int:
    templates = named(objects, "ResourceClaimTemplate")
    held = [claim["resourceClaimTemplateName"] for claim in pod.spec.get("resourceClaims") or ()]
    asked = [templates[name]["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] for name in held]
    return int(sum(asked) + requests(pod.spec)[NEURON_RESOURCE])


def _amounts(resources: Mapping[str, object] | None, *, pods: int = 0) -> Amounts:
    given = {name: quantity(value) for name, value in (resources or {}).items()}
    return {name: given.get(name, 0.0) for name in RESOURCES} | {"pods": float(pods)}


def total(many: Iterable[Amounts]) -> Amounts:
    listed = [_amounts(None), *many]
    return {name: sum(one[name] for one in listed) for name in RESOURCES}


def requests(spec: Object) -> Amounts:
    """What the scheduler counts for a pod: its containers and sidecars, or the hungriest init container beside sidecars.

    https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
    """

    def of(container: Object) -> Amounts:
        resources = container.get("resources") or {}
        return _amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})

    sidecars, peaks = _amounts(None), list[Amounts]()
    for container in spec.get("initContainers") or ():
        peaks.append(total([sidecars, of(container)]))
        if container.get("restartPolicy") == "Always":
            sidecars = peaks[-1]
    peaks.append(total([sidecars, *map(of, spec["containers"])]))
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


def offered(experiment: Experiment, role: str) -> Amounts:
    """What a node of this role has left beside the platform's pods."""
    node = experiment.instance
    if role == "neuron":
        given = allocatable(
            vcpus=node.vcpus, memory_gib=node.memory_gib, max_pods=node.max_pods, disk_gib=node.scratch_gib
        )
        given |= {NEURON_RESOURCE: node.devices}
    else:  # m7i.xlarge: EC2 instance types; pods by its network interfaces (eni-max-pods.txt)
        given = allocatable(vcpus=4, memory_gib=16, max_pods=58, disk_gib=SYSTEM_VOLUME_GIB)
    standing = [(cpu, mib) for cpu, mib, of in RESIDENTS.values() if of in ("", role)]
    taken = total(_amounts({"cpu": cpu, "memory": mib * 2**20}, pods=1) for cpu, mib in standing)
    return {name: given[name] - taken[name] for name in RESOURCES}
