"""Checkpoints and artifacts as read-only S3 buckets in pods, with a check before a server starts."""

from __future__ import annotations

from typing import Any

from cdk8s_charts import pods, vllm_command
from cdk8s_charts.manifests import content_suffix, kubernetes_object
from trnspec.experiment import naming
from trnspec.experiment.arms import Arm, Experiment
from trnspec.experiment.compilation import artifact_key

STORES = {"checkpoints": vllm_command.CHECKPOINTS_MOUNT, "artifacts": vllm_command.ARTIFACTS_MOUNT}
"""Buckets that pods on devices read, with their mount paths."""
_CAPACITY = "1Ti"
"""Kubernetes requires a number; an S3 bucket has no size."""


def address(experiment: Experiment, purpose: str, path: str) -> str:
    """Return the S3 address of a path in one of the experiment's buckets."""
    return f"s3://{naming.bucket(experiment, purpose, naming.ACCOUNT_PLACEHOLDER)}/{path}"


def volume_and_claim(experiment: Experiment, purpose: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a statically bound volume and claim. The volume's name has a hash of its source, because a source cannot be changed.

    `authenticationSource: pod` makes Mountpoint use the Pod Identity of the pod that mounts, not the driver's; the
    volume handle must be unique in the cluster; `allow-other` lets other users than root read, as `restricted` and the
    tools' image need; the cache keeps what several containers of a node read in turn (Mountpoint CSI driver 2.x,
    docs/CONFIGURATION.md).
    """
    region = experiment.cluster.region
    attributes = {
        "bucketName": naming.bucket(experiment, purpose, naming.ACCOUNT_PLACEHOLDER),
        "authenticationSource": "pod",
        "stsRegion": region,
        "cache": "emptyDir",
        "cacheEmptyDirSizeLimit": f"{pods.MOUNT_CACHE_GIB}Gi",
        "mountpointContainerResourcesRequestsCpu": "1",
        "mountpointContainerResourcesRequestsMemory": f"{pods.MOUNT_MEMORY_GIB}Gi",
        "mountpointContainerResourcesLimitsMemory": f"{pods.MOUNT_MEMORY_GIB}Gi",
    }
    options = ["read-only", "allow-other", f"region {region}"]
    name = f"{experiment.name}-{purpose}-{content_suffix([attributes, options])}"
    volume = {
        "accessModes": ["ReadOnlyMany"],
        "capacity": {"storage": _CAPACITY},
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "claimRef": {"namespace": naming.namespace(experiment), "name": name},
        "mountOptions": options,
        "csi": {
            "driver": "s3.csi.aws.com",
            "volumeHandle": f"{name}-{naming.ACCOUNT_PLACEHOLDER}",
            "volumeAttributes": attributes,
        },
    }
    claim = {
        "accessModes": ["ReadOnlyMany"],
        "resources": {"requests": {"storage": _CAPACITY}},
        "storageClassName": "",
        "volumeName": name,
    }
    return (
        kubernetes_object("v1", "PersistentVolume", name, spec=volume),
        kubernetes_object("v1", "PersistentVolumeClaim", name, within=experiment, spec=claim),
    )


UNUSABLE = 4
"""Exit code of the check for an artifact that is marked complete and is not: compiling again helps."""
_CHECK = f"""\
set -f; folder=$1; key=$2; files=$3; shift 3; found= code=1
refuse() {{ echo "artifact $key: $1" >&2; exit $code; }}
[ -f "$folder/{naming.COMPLETE}" ] || refuse "missing or unfinished, $folder/{naming.COMPLETE} does not exist; compile this arm first"
read -r found < "$folder/{naming.COMPLETE}" || :
[ "$found" = "{{\\"key\\": \\"$key\\"}}" ] || refuse "$folder was made for $found; compile this arm"
for file in $files; do
  case $file in
    *\\**) grep -q "$(expr "$file" : '.*\\*\\(.*\\)')\\"" "$folder/{naming.ARTIFACT_FILES}";;
    *) [ -s "$folder/$file" ];;
  esac || {{ code={UNUSABLE}; refuse "$folder/$file is missing although marked complete; ./trnspec run compiles it again"; }}
done
for weights in "$@"; do
  [ -f "$weights/{naming.COMPLETE}" ] || refuse "needs weights that are missing or unfinished, $weights/{naming.COMPLETE} does not exist; \
fetch them first"
done
echo "artifact $key: complete"
"""


def marker_check(arm: Arm) -> pods.Container:
    """Return an init container that ends the pod with one line unless weights and artifact are complete and belong to this arm.

    Without it vLLM 0.9.1 would answer a missing artifact by compiling for tens of minutes, into a read-only mount. It is
    a script for the server's own image, which certainly has a shell.
    """
    files = " ".join(vllm_command.artifact_files(arm))
    command = ["/bin/sh", "-c", _CHECK, "check-artifact", _mounted_artifact(arm), artifact_key(arm), files]
    return pods.container(
        "check-artifact",
        arm.runtime.image,
        [*command, *(vllm_command.weights_path(weights) for weights in arm.weights)],
        resources=pods.amounts(cpu="100m", memory="64Mi"),
        security=pods.container_security(writable_root=False),
    )


def add_sources(experiment: Experiment, spec: pods.PodSpec, server: pods.Container, arm: Arm) -> None:
    """Add the check and the mounts: weights read-only from their bucket; the artifact too, or from a copy on local NVMe.

    A server reads its sharded weights from the artifact and little more than the tokenizer from the checkpoints, so only
    the artifact is worth a copy. It is copied from the mount, so that the pod needs no way out of the cluster. The copy is
    the server's own and writable: the native plugin takes locks in its compiled files, and compiles what it does not find. Compilers
    write into the working directory as well.
    """
    check = marker_check(arm)
    spec["initContainers"] = [check]
    mount_store(experiment, "checkpoints", spec, check, server)
    if not arm.serving.copies_artifact:
        mount_store(experiment, "artifacts", spec, check, server)
        return
    copy = pods.tool(
        "copy-artifact",
        ["pull", _mounted_artifact(arm), "--to", vllm_command.compiled_path(arm), "--key", artifact_key(arm)],
        cpu="4",
        memory="4Gi",
    )
    mount_store(experiment, "artifacts", spec, check, copy)
    spec["initContainers"].append(copy)
    pods.add_scratch(spec, pods.copies_gib(experiment), copy, server)
    pods.mount_fixed_caches(arm, server)
    server["workingDir"] = vllm_command.SCRATCH_MOUNT
    spec.setdefault("securityContext", {}).update(pods.OWN_VOLUMES)


def mount_store(experiment: Experiment, purpose: str, spec: pods.PodSpec, *holders: pods.Container) -> None:
    (_, claim) = volume_and_claim(experiment, purpose)
    source = {"claimName": claim["metadata"]["name"], "readOnly": True}
    pods.add_volume(spec, purpose, STORES[purpose], *holders, persistentVolumeClaim=source)


def _mounted_artifact(arm: Arm) -> str:
    return f"{vllm_command.ARTIFACTS_MOUNT}/{naming.artifact_path(arm)}"
