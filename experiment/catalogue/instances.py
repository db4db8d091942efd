"""Instance types that can hold an arm, and the zones of the regions in which they were seen.

Chips, cores, HBM of Trainium2: AWS Neuron documentation, trn2-arch and trainium2 pages. Host memory and vCPU of
trn2.48xlarge: the same. What Kubernetes can allocate on it, its pods and its NVMe: Karpenter's instance-type reference
(https://karpenter.sh/preview/reference/instance-types/), an estimate. trn2.3xlarge: one chip, and a sixteenth of the
host; AWS's own page for it was not read.

Zones of us-east-2: https://docs.aws.amazon.com/global-infrastructure/latest/regions/aws-availability-zones.html, which also
says that every region has three at least; of the others: as moto 5.2.5 (2026-10-27) records what EC2 answers. By that
record ap-south-2 offers both types in all its zones, ap-southeast-4 the small one in its third zone only. `./trnspec preflight`
asks in which of them the account is offered Trn2. Local zones are left out: EKS places no control plane there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

ZONES = MappingProxyType(
    {
        region: tuple(f"{region}{letter}" for letter in "abc")
        for region in ("us-east-2", "ap-south-2", "ap-southeast-4")
    }
)
"""By region, in the order of their letters."""
GROUP_SIZES = (1, 4, 8, 16)
"""Sets of devices that are connected to each other, as the Neuron DRA driver publishes them (`devicegroupN_id`)."""


@dataclass(frozen=True, kw_only=True)
class Instance:
    """What one node offers."""

    name: str
    devices: int
    """Trainium2 chips."""
    cores_per_device: int
    """Physical NeuronCores of one chip."""
    hbm_gib_per_device: int
    vcpus: int
    memory_gib: int
    allocatable_cpu: int
    """Cores a pod may request, after what the system reserves."""
    allocatable_memory_gib: int
    scratch_gib: int = 0
    """Local NVMe as one RAID0 array: emptyDir volumes, container images and logs live on it."""
    ephemeral_gib: int = 0
    """What Kubernetes can allocate of it: nine tenths, the rest is the kubelet's eviction threshold."""
    max_pods: int = 0
    efa_interfaces: int = 0
    neuron: bool = True
    regions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Regions in which it was seen on demand, and when (year-month); not a complete list."""
    offered: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Further regions in which EC2 offers it by what moto records, and the date of that record."""

    @property
    def seen(self) -> dict[str, str]:
        """Every region in which it can stand, and since when that is known."""
        return {**self.regions, **self.offered}


_OFFERED = MappingProxyType({"ap-south-2": "2026-10-27"})
_ALL = (
    Instance(
        name="trn2.48xlarge",
        devices=16,
        cores_per_device=8,
        hbm_gib_per_device=96,
        vcpus=192,
        memory_gib=2048,
        allocatable_cpu=191,
        allocatable_memory_gib=1892,
        scratch_gib=7078,
        ephemeral_gib=6370,
        max_pods=100,
        efa_interfaces=16,
        regions=MappingProxyType({"us-east-2": "2025-11", "ap-southeast-4": "2026-05"}),
        offered=_OFFERED,
    ),
    Instance(
        name="trn2.3xlarge",
        devices=1,
        cores_per_device=8,
        hbm_gib_per_device=96,
        vcpus=12,
        memory_gib=128,
        allocatable_cpu=11,
        allocatable_memory_gib=115,
        scratch_gib=440,
        ephemeral_gib=396,
        max_pods=29,
        regions=MappingProxyType({"ap-southeast-4": "2026-05"}),
        offered=_OFFERED,
    ),
    Instance(
        name="lab-cpu",
        devices=0,
        cores_per_device=0,
        hbm_gib_per_device=0,
        vcpus=2,
        memory_gib=8,
        allocatable_cpu=2,
        allocatable_memory_gib=8,
        neuron=False,
    ),
)
"""`lab-cpu` is the machine that the lab runs on; nothing is ever deployed to it."""

INSTANCES = {instance.name: instance for instance in _ALL}
