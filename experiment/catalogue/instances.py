"""Trainium2 instance types.

Chips, cores, HBM: AWS Neuron documentation, trn2-arch and trainium2 pages. Host memory and vCPU of trn2.48xlarge:
the same. What Kubernetes can allocate on it: Karpenter's instance-type reference (estimate).
"""

from __future__ import annotations

from dataclasses import dataclass

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
    allocatable_cpu: int
    """Cores a pod may request, after what the system reserves."""
    allocatable_memory_gib: int
    efa_interfaces: int
    scratch_gib: int = 7600

    def logical_cores(self, *, devices: int, logical_nc_config: int) -> int:
        """NeuronCores as the framework sees them: physical cores grouped by the logical NeuronCore configuration."""
        return devices * self.cores_per_device // logical_nc_config


_ALL = (
    Instance(
        name="trn2.48xlarge",
        devices=16,
        cores_per_device=8,
        hbm_gib_per_device=96,
        allocatable_cpu=191,
        allocatable_memory_gib=1892,
        efa_interfaces=16,
    ),
)

INSTANCES = {instance.name: instance for instance in _ALL}
