"""Instance types that can hold an arm, and the zones in which EC2 offers them.

Chips, cores, HBM of Trainium2: AWS Neuron documentation, trn2-arch and trainium2 pages. Host memory and vCPU of
trn2.48xlarge: the same. What Kubernetes can allocate on it, its pods and its NVMe: Karpenter's instance-type reference
(https://karpenter.sh/preview/reference/instance-types/), an estimate. trn2.3xlarge: one chip, and a sixteenth of the
host; its vCPU, memory, disk and single EFA interface as the EC2 API told the makers of Kiln (below).

Zones that offer a type: answers of the EC2 API of 2026-10-03, as the makers of Kiln published them
(https://github.com/foxl-ai/kiln/blob/a04d1fa/docs/research/trn2-trn3.md); moto 5.2.5 (2026-10-27) records the same for the
regions it has. Both find no trn2.48xlarge in ap-southeast-4, and the small type in its third zone only. What an account is
offered can differ: `./trnspec preflight` asks. All zones of us-east-2:
https://docs.aws.amazon.com/global-infrastructure/latest/regions/aws-availability-zones.html, which also says that every region has
three at least. Local zones are left out: EKS places no control plane there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

ZONES = MappingProxyType(
    {
        region: tuple(f"{region}{letter}" for letter in "abc")
        for region in ("us-east-2", "ap-south-2", "ap-southeast-4", "sa-east-1")
    }
)
"""By region, in the order of their letters."""
REGION = re.compile(
    r"(af|ap|ca|eu|il|me|mx|sa|us)-(north|south|(north|south)?(east|west)|central)-[1-9]", re.ASCII
)
"""How regions of the partition `aws` are called. Of one that is not among `ZONES` nothing is known here: preflight asks EC2."""


def zones_in(region: str, named: Iterable[str]) -> tuple[str, ...]:
    """The zones of a region; of one that is not known here, those that were named."""
    return ZONES.get(region) or tuple(dict.fromkeys(named))


GROUP_SIZES = (1, 4, 8, 16)
"""Sets of devices that are connected to each other, as the Neuron DRA driver publishes them (`devicegroupN_id`)."""


@dataclass(frozen=True, kw_only=True)
class Instance:
    """What one node offers."""

    name: str
    devices: int = 0
    """Trainium2 chips."""
    cores_per_device: int = 0
    """Physical NeuronCores of one chip."""
    hbm_gib_per_device: int = 0
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
    zones: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """By region, the zones in which EC2 offers it; the region that somebody used first."""

    @property
    def efa_attached(self) -> int:
        """EFA interfaces that its nodes get: none for one chip, which has no other chip to be connected with."""
        return self.efa_interfaces if self.devices > 1 else 0


OFFERED_ON = "2026-10-03"
"""When `zones` was read."""
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
        zones=MappingProxyType({region: ZONES[region] for region in ("us-east-2", "ap-south-2")}),
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
        efa_interfaces=1,
        zones=MappingProxyType(
            {"ap-southeast-4": ("ap-southeast-4c",)}
            | {region: ZONES[region] for region in ("ap-south-2", "sa-east-1")}
        ),
    ),
    Instance(
        name="lab-cpu", vcpus=2, memory_gib=8, allocatable_cpu=2, allocatable_memory_gib=8, neuron=False
    ),
)
"""`lab-cpu` is the machine that the lab runs on; nothing is ever deployed to it."""
INSTANCES = {instance.name: instance for instance in _ALL}
