"""Checkpoints and artifacts as read-only volumes: S3 buckets through the Mountpoint CSI driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts.lift import content_suffix, kubernetes_object
from cdk8s_charts.sizes import MOUNT_CACHE_GIB, MOUNT_MEMORY_GIB
from experiment.naming import ACCOUNT_PLACEHOLDER, bucket, namespace

if TYPE_CHECKING:
    from experiment.arms import Experiment

PURPOSES = ("checkpoints", "artifacts")
_CAPACITY = "1Ti"
"""Kubernetes wants a number; an S3 bucket has none."""


def stores(experiment: Experiment) -> tuple[str, ...]:
    """Buckets that pods mount: none where no arm stands on devices, whose weights lie on the machine itself."""
    return PURPOSES if experiment.device_arms else ()


def volume_and_claim(experiment: Experiment, purpose: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A statically bound pair. The volume's name carries a hash of its source, because a source cannot be changed.

    `authenticationSource: pod` makes Mountpoint use the Pod Identity of the pod that mounts, not the driver's; the
    volume handle must be unique in the cluster; `allow-other` lets users beside root read, as `restricted` and the
    tools' image need; the cache keeps what several containers of a node read in turn (Mountpoint CSI driver 2.x,
    docs/CONFIGURATION.md).
    """
    region = experiment.cluster.region
    name = bucket(experiment, purpose, ACCOUNT_PLACEHOLDER)
    attributes = {
        "bucketName": name,
        "authenticationSource": "pod",
        "stsRegion": region,
        "cache": "emptyDir",
        "cacheEmptyDirSizeLimit": f"{MOUNT_CACHE_GIB}Gi",
        "mountpointContainerResourcesRequestsCpu": "1",
        "mountpointContainerResourcesRequestsMemory": f"{MOUNT_MEMORY_GIB}Gi",
        "mountpointContainerResourcesLimitsMemory": f"{MOUNT_MEMORY_GIB}Gi",
    }
    options = ["read-only", "allow-other", f"region {region}"]
    volume_name = f"{experiment.name}-{purpose}-{content_suffix([attributes, options])}"
    source = {
        "driver": "s3.csi.aws.com",
        "volumeHandle": f"{volume_name}-{ACCOUNT_PLACEHOLDER}",
        "volumeAttributes": attributes,
    }
    volume = {
        "accessModes": ["ReadOnlyMany"],
        "capacity": {"storage": _CAPACITY},
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "claimRef": {"namespace": namespace(experiment), "name": volume_name},
        "mountOptions": options,
        "csi": source,
    }
    claim = {
        "accessModes": ["ReadOnlyMany"],
        "resources": {"requests": {"storage": _CAPACITY}},
        "storageClassName": "",
        "volumeName": volume_name,
    }
    return (
        kubernetes_object("v1", "PersistentVolume", volume_name, spec=volume),
        kubernetes_object("v1", "PersistentVolumeClaim", volume_name, within=experiment, spec=claim),
    )


def claim_name(experiment: Experiment, purpose: str) -> str:
    """The claim that pods mount."""
    return str(volume_and_claim(experiment, purpose)[1]["metadata"]["name"])
