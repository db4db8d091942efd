"""What the stacks choose by themselves, because no experiment depends on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from experiment.catalogue.prices import SYSTEM_INSTANCE_TYPE
from experiment.cost import SYSTEM_NODES

BEFORE_BLOCK_ENDS = timedelta(minutes=60)
"""EKS empties the group 40 minutes before a capacity block ends and EC2 takes the instances at 30
(https://docs.aws.amazon.com/eks/latest/userguide/capacity-blocks-mng.html); this comes first, while pods can still
be stopped in order."""


@dataclass(frozen=True, kw_only=True)
class HelmChart:
    """A Helm chart at a version."""

    release: str
    repository: str
    """In an OCI registry (`oci://...`, the chart itself), or an index of charts (`https://...`)."""
    version: str
    name: str = ""
    """Of the chart in an index."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Sizes, retention times and versions; the defaults are what is deployed."""

    network_cidr: str = "10.0.0.0/16"
    private_subnet_mask: int = 19
    """8,187 addresses a zone; every pod takes one."""
    public_subnet_mask: int = 24
    """Holds the NAT gateway, nothing else."""

    system_instance_type: str = SYSTEM_INSTANCE_TYPE
    """4 vCPU, 16 GiB. Carries CoreDNS, the add-ons' agents and controllers, the fetch Job and the benchmark's pod, never
    a model; on an m7i.large the agents alone leave the benchmark no room."""
    system_nodes: int = SYSTEM_NODES
    system_volume_gib: int = 150
    """Holds two Neuron images, which the proof of the arguments pulls (`cdk8s_charts/pods/sizes.py`), beside the other images, the
    fetch Job's files and the mounts' caches, below the 85 % at which the kubelet begins to remove images."""
    neuron_volume_gib: int = 100
    """The system's disk, where images and pods live on local NVMe."""
    neuron_volume_without_nvme_gib: int = 500
    """Images with the Neuron SDK unpack to tens of GiB, and compilation writes beside them; an estimate."""
    neuron_volume_iops: int = 8000
    neuron_volume_mib_s: int = 1000
    """A node bills from its start, and unpacking the image waits for the disk where there is no NVMe."""

    log_days: int = 90
    access_log_days: int = 90
    incomplete_upload_days: int = 7
    noncurrent_version_days: int = 30
    """Overwritten weights and artifacts can be had back that long; one set of the reference weights is 66 GB."""
    stale_artifact_days: int = 30
    """How old an artifact must be to go once it is marked stale: S3 counts from the upload, not from the mark. Until
    `noncurrent_version_days` later it can be had back by removing the delete markers."""
    cool_after_days: int = 30
    """Then weights and artifacts that nobody reads get cheaper, and stay as quick to read."""

    kept_images: int = 10
    """In the repository of each image that CodeBuild builds; the newest is in use. One that is gone is built again where a
    deployment, or its way back, asks for it."""

    neuron_chart: HelmChart = field(
        default_factory=lambda: HelmChart(
            release="neuron",
            repository="oci://public.ecr.aws/neuron/neuron-helm-chart",
            version="1.10.0",
        )
    )
    """Named by the Neuron Observer page of the SDK 2.33 documentation; that it installs is not tried: not run on AWS."""

    autoscaler_chart: HelmChart = field(
        default_factory=lambda: HelmChart(
            release="keda", name="keda", repository="https://kedacore.github.io/charts", version="2.20.2"
        )
    )
    """Of 31 July 2026, the newest in the index of that repository; tested by its makers on the three newest versions of
    Kubernetes (https://keda.sh/docs/2.20/operate/cluster/#kubernetes-compatibility). Not run on AWS."""
