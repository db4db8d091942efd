"""Checkpoints and artifacts as pods see them: read-only S3 buckets, and a check before a server starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts.plain_objects import content_suffix, kubernetes_object
from cdk8s_charts.pods import pod
from cdk8s_charts.pods.sizes import MOUNT_CACHE_GIB, MOUNT_MEMORY_GIB, copies_gib
from cdk8s_charts.vllm_command import (
    ARTIFACTS_MOUNT,
    CHECKPOINTS_MOUNT,
    compiled_path,
    dialect_of,
    weights_path,
)
from experiment.compilation import artifact_key
from experiment.naming import ACCOUNT_PLACEHOLDER, COMPLETE, artifact_path, bucket, namespace

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment

STORES = {"checkpoints": CHECKPOINTS_MOUNT, "artifacts": ARTIFACTS_MOUNT}
"""Buckets that pods on devices read, and where."""
_CAPACITY = "1Ti"
"""Kubernetes requires a number; an S3 bucket has no size."""


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


_CHECK = f"""\
folder=$1; key=$2; files=$3; shift 3; found=
refuse() {{ echo "artifact $key: $1" >&2; exit 1; }}
[ -f "$folder/{COMPLETE}" ] || refuse "missing or unfinished, $folder/{COMPLETE} does not exist; compile this arm first"
read -r found < "$folder/{COMPLETE}" || :
[ "$found" = "{{\\"key\\": \\"$key\\"}}" ] || refuse "$folder was made for $found; compile this arm"
for file in $files; do
  [ -s "$folder/$file" ] || refuse "$folder/$file is missing although marked complete; delete the folder and compile again"
done
for weights in "$@"; do
  [ -f "$weights/{COMPLETE}" ] || refuse "needs weights that are missing or unfinished, $weights/{COMPLETE} does not exist; \
fetch them first"
done
echo "artifact $key: complete"
"""


def marker_check(arm: Arm) -> pod.Container:
    """Init container that ends the pod in one line unless weights and artifact are complete and this arm's own.

    Without it vLLM 0.9.1 would answer a missing artifact by compiling for tens of minutes, into a read-only mount. It is
    a script for the server's own image, which certainly has a shell.
    """
    files = " ".join(dialect_of(arm).artifact_files)
    command = ["/bin/sh", "-c", _CHECK, "check-artifact", _mounted_artifact(arm), artifact_key(arm), files]
    return pod.container(
        "check-artifact",
        arm.runtime.image,
        [*command, *(weights_path(weights) for weights in arm.weights)],
        resources=pod.amounts(cpu="100m", memory="64Mi"),
        security=pod.container_security(writable_root=False),
    )


def add_sources(experiment: Experiment, spec: pod.PodSpec, server: pod.Container, arm: Arm) -> None:
    """Check and mounts: weights read-only from their bucket; the artifact too, or from a copy on local NVMe.

    A server reads its sharded weights from the artifact and little more than the tokenizer from the checkpoints, so only
    the artifact is worth a copy. It is copied from the mount, so that the pod needs no way out of the cluster. The copy is
    the server's own and writable: the native plugin takes locks in its compiled files.
    """
    check = marker_check(arm)
    spec["initContainers"] = [check]
    mount_store(experiment, "checkpoints", spec, check, server)
    if arm.serving.artifact_source == "mount":
        mount_store(experiment, "artifacts", spec, check, server)
        return
    copy = pod.tool(
        "copy-artifact",
        ["pull", _mounted_artifact(arm), "--to", compiled_path(arm), "--key", artifact_key(arm)],
        cpu="4",
        memory="4Gi",
    )
    mount_store(experiment, "artifacts", spec, check, copy)
    spec["initContainers"].append(copy)
    pod.add_scratch(spec, copies_gib(experiment), copy, server)
    spec.setdefault("securityContext", {}).update(pod.OWN_VOLUMES)


def mount_store(experiment: Experiment, purpose: str, spec: pod.PodSpec, *holders: pod.Container) -> None:
    """Give containers of a pod a bucket to read."""
    (_, claim) = volume_and_claim(experiment, purpose)
    source = {"claimName": claim["metadata"]["name"], "readOnly": True}
    pod.add_volume(spec, purpose, STORES[purpose], *holders, persistentVolumeClaim=source)


def _mounted_artifact(arm: Arm) -> str:
    return f"{ARTIFACTS_MOUNT}/{artifact_path(arm)}"
