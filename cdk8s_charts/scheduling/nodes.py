"""The nodes that pods are placed on: what each offers, and what stands on it before any pod of this project.

Figures with their source; `estimate` where none was found. Nothing here was measured on AWS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdk8s_charts.scheduling.devices import Device, published
from cdk8s_charts.scheduling.quantities import Amounts
from experiment.naming import NEURON_TAINT_KEY, NODE_ROLE_LABEL

if TYPE_CHECKING:
    from experiment.arms import Experiment
    from experiment.catalogue.instances import Instance

_MIB = 2**20
_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Machine:
    """An EC2 instance type as a node of EKS."""

    vcpus: int
    memory_gib: int
    max_pods: int
    disk_gib: int
    """Disk of the kubelet: the RAID0 of the local NVMe where there is one, else the root volume."""
    source: str


SYSTEM_MACHINE = Machine(
    vcpus=4,
    memory_gib=16,
    max_pods=58,
    disk_gib=50,
    source="EC2 instance types; pods by the number of network interfaces (eni-max-pods.txt); root volume",
)
SYSTEM_INSTANCE = "m7i.xlarge"
"""As `infra/settings.py` has it; a test holds them together."""
SYSTEM_NODES = 2


def machine(instance: Instance) -> Machine:
    """A Trn2 node, whose kubelet lives on the local NVMe."""
    return Machine(
        vcpus=instance.vcpus,
        memory_gib=instance.memory_gib,
        max_pods=instance.max_pods,
        disk_gib=instance.scratch_gib,
        source="experiment/catalogue/instances.py",
    )


def allocatable(of: Machine) -> Amounts:
    """What is left for pods, by the formula of the EKS images.

    CPU: 6 % of the first core, 1 % of the second, 0.5 % of two more, 0.25 % of the rest is reserved. Memory: the
    hypervisor and kernel take 7.5 % (Karpenter's default for what cannot be known before a node runs), the kubelet 255 MiB
    and 11 MiB a pod, eviction starts at 100 MiB. Disk: 1 GiB reserved, eviction at 10 %. For trn2.48xlarge this gives
    191,450m and 1,938,410 Mi, the figures of Karpenter's reference.
    https://github.com/awslabs/amazon-eks-ami (nodeadm, kubelet defaults)
    """
    cores = of.vcpus
    reserved_m = 60 + 10 * (cores > 1) + 5 * max(0, min(cores, 4) - 2) + 2.5 * max(0, cores - 4)
    memory_mib = of.memory_gib * 1024 * 0.925 - 255 - 11 * of.max_pods - 100
    return Amounts(
        cpu_m=int(cores * 1000 - reserved_m),
        memory=int(memory_mib) * _MIB,
        ephemeral=int((of.disk_gib * 0.9 - 1) * _GIB),
        pods=of.max_pods,
    )


@dataclass(frozen=True, kw_only=True)
class Resident:
    """A pod of the platform that stands on every node of a role."""

    name: str
    asks: Amounts
    source: str
    roles: frozenset[str] = frozenset({"neuron", "system"})
    allocation: str | None = None
    """Only where devices are allocated so; `None`: always."""


def _asks(cpu_m: int, memory_mib: int, pods: int = 1) -> Amounts:
    return Amounts(cpu_m=cpu_m, memory=memory_mib * _MIB, pods=pods)


_NEURON = frozenset({"neuron"})
_SYSTEM = frozenset({"system"})
RESIDENTS = (
    Resident(
        name="aws-node", asks=_asks(50, 0), source="eks-charts aws-vpc-cni: 25m for each of two containers"
    ),
    Resident(name="kube-proxy", asks=_asks(100, 0), source="estimate: 100m, as the EKS add-on requests"),
    Resident(name="eks-pod-identity-agent", asks=_asks(0, 0), source="its chart sets no requests by default"),
    Resident(
        name="s3-csi-node",
        asks=_asks(30, 120),
        source="mountpoint-s3-csi-driver chart: 10m and 40Mi, counted for each of three containers",
    ),
    Resident(
        name="cloudwatch-agent",
        asks=_asks(250, 128),
        source="chart amazon-cloudwatch-observability: 250m, 128Mi",
    ),
    Resident(name="fluent-bit", asks=_asks(50, 25), source="estimate: 50m, 25Mi"),
    Resident(
        name="neuron-monitor",
        asks=_asks(256, 128),
        roles=_NEURON,
        source="chart amazon-cloudwatch-observability: 256m, 128Mi",
    ),
    Resident(
        name="neuron-dra-driver",
        asks=_asks(20, 256),
        roles=_NEURON,
        allocation="dra",
        source="neuron-helm-charts README: limits of 20m and 256Mi",
    ),
    Resident(
        name="neuron-device-plugin",
        asks=_asks(100, 128),
        roles=_NEURON,
        allocation="device-plugin",
        source="estimate",
    ),
    Resident(
        name="eks-node-monitoring-agent",
        asks=_asks(10, 30),
        source="values.yaml of chart 1.7.0: 10m, 30Mi",
    ),
    Resident(
        name="coredns",
        asks=_asks(100, 70),
        roles=_SYSTEM,
        source="EKS add-on: 100m, 70Mi; one of two replicas a node",
    ),
    Resident(
        name="controllers",
        asks=_asks(210, 304, pods=4),
        roles=_SYSTEM,
        source="estimate: CloudWatch operator 100m and 64Mi, metrics-server 100m and 200Mi, S3 CSI controller 10m and "
        "40Mi, Neuron scheduler extension; one replica each, counted on every node as any may get them",
    ),
)


@dataclass(frozen=True)
class Node:
    """A node before pods of this project come."""

    name: str
    labels: dict[str, str]
    taints: tuple[tuple[str, str], ...]
    """Key and effect."""
    free: Amounts
    devices: tuple[Device, ...] = ()
    """What the DRA driver publishes; empty where the device plugin counts devices instead."""
    plugin_devices: int = 0


def nodes(experiment: Experiment, *, neuron_nodes: int) -> tuple[Node, ...]:
    """`neuron_nodes` Trn2 nodes and the system nodes."""
    allocation = experiment.baseline.serving.allocation
    neuron = [_neuron_node(experiment, number, allocation) for number in range(neuron_nodes)]
    system = [
        Node(
            f"system-{number}",
            {**_standard_labels(SYSTEM_INSTANCE), NODE_ROLE_LABEL: "system"},
            (),
            allocatable(SYSTEM_MACHINE) - taken_by_residents("system", allocation),
        )
        for number in range(SYSTEM_NODES)
    ]
    return (*neuron, *system)


def taken_by_residents(role: str, allocation: str) -> Amounts:
    """What the platform's own pods request on a node."""
    total = Amounts()
    for resident in RESIDENTS:
        if role in resident.roles and resident.allocation in (None, allocation):
            total += resident.asks
    return total


def _neuron_node(experiment: Experiment, number: int, allocation: str) -> Node:
    instance = experiment.cluster.instance
    name = f"trn2-{number}"
    by_claims = allocation == "dra"
    free = allocatable(machine(instance)) - taken_by_residents("neuron", allocation)
    return Node(
        name,
        {**_standard_labels(instance.name), NODE_ROLE_LABEL: "neuron"},
        ((NEURON_TAINT_KEY, "NoSchedule"),),
        free if by_claims else free + Amounts(neuron=instance.devices),
        published(instance.name, node=name, devices=instance.devices, efa=instance.efa_interfaces > 0)
        if by_claims
        else (),
        0 if by_claims else instance.devices,
    )


def _standard_labels(instance: str) -> dict[str, str]:
    return {
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": instance,
    }
