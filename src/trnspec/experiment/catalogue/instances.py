"""The instance types of `instances.yaml` that can hold an arm, and the zones in which EC2 offers them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trnspec.experiment.catalogue.models import table_of


def _zones(letters: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType({name: tuple(f"{name}{one}" for one in of) for name, of in letters.items()})


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
    scratch_gib: int
    """Local NVMe as one RAID0 array: emptyDir volumes, container images and logs live on it."""
    max_pods: int
    efa_interfaces: int
    zones: Mapping[str, tuple[str, ...]]
    """The zones in which EC2 offers it, by region. A region in which somebody has used it comes first."""

    @property
    def efa_attached(self) -> int:
        """EFA interfaces that its nodes get: none for one chip, which has no other chip to be connected with."""
        return self.efa_interfaces if self.devices > 1 else 0


_TABLE = table_of(__file__)
OFFERED_ON: str = _TABLE["offered_on"]
"""When the zones were read."""
ZONES = _zones(_TABLE["regions"])
"""The zones of each region, in alphabetical order."""
INSTANCES = {
    name: Instance(**row | {"name": name, "zones": _zones(row["zones"])})
    for name, row in _TABLE["instances"].items()
}
GROUP_SIZES = (1, 4, 8, 16)
"""Sets of devices that are connected to each other, as the Neuron DRA driver publishes them (`devicegroupN_id`)."""
REGION = re.compile(
    r"(af|ap|ca|eu|il|me|mx|sa|us)-(north|south|(north|south)?(east|west)|central)-[1-9]", re.ASCII
)
"""The form of region names in the partition `aws`. For a region that is not in `ZONES`, preflight asks EC2."""
