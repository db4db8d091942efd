"""What the stacks choose by themselves, because no experiment depends on it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class HelmChart:
    """A Helm chart in an OCI registry, at a version."""

    release: str
    repository: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Sizes, retention times and versions; the defaults are what is deployed."""

    nat_gateways: int = 1
    """One is enough to pull images and call AWS; a second one only survives the loss of a zone."""
    private_subnet_mask: int = 19
    """8,187 addresses a zone; every pod takes one."""
    public_subnet_mask: int = 24
    """Holds the NAT gateway, nothing else."""

    system_instance_type: str = "m7i.large"
    """Carries CoreDNS, controllers and the benchmark's pod (1 CPU), never a model."""
    system_nodes: int = 2
    """One a zone, so that DNS outlives a node."""
    system_volume_gib: int = 50
    neuron_volume_gib: int = 500
    """Images with the Neuron SDK unpack to tens of GiB, and compilation writes beside them; an estimate."""
    neuron_volume_iops: int = 8000
    neuron_volume_mib_s: int = 1000
    """A node bills from its start, and unpacking the image waits for the disk."""

    log_days: int = 90
    access_log_days: int = 90
    incomplete_upload_days: int = 7
    noncurrent_version_days: int = 30
    """Overwritten weights and artifacts can be had back that long; one set of the reference weights is 66 GB."""

    neuron_chart: HelmChart = field(
        default_factory=lambda: HelmChart(
            release="neuron",
            repository="oci://public.ecr.aws/neuron/neuron-helm-chart",
            version="1.10.0",
        )
    )
    """Named by the Neuron Observer page of the SDK 2.33 documentation; that it installs is not tried: not run on AWS."""
