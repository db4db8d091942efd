"""Weights and compiled artifacts as a server meets them: finished and its own, or the pod ends in one line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cdk8s_charts import pod
from cdk8s_charts.command import ARTIFACTS_MOUNT, CHECKPOINTS_MOUNT
from experiment.artifact import artifact_key
from experiment.naming import artifact_path, weights_path

if TYPE_CHECKING:
    from experiment.arms import Arm

MARKER = "COMPLETE"
"""Written last, holding the artifact key: its presence says that everything else was written before."""
FILES = ("neuron_config.json", "model.pt")
"""What NxD Inference leaves in an artifact beside the sharded weights; without them it would compile in silence."""
COMPILED = "/scratch/artifact"
"""Where a compilation leaves its artifact, and where a runtime that writes into it finds its copy."""
_ROLES = ("target", "draft")
_CHECK = f"""\
folder=$1; key=$2; files=$3; shift 3; found=
refuse() {{ echo "artifact $key: $1" >&2; exit 1; }}
[ -f "$folder/{MARKER}" ] || refuse "missing or unfinished, $folder/{MARKER} does not exist; compile this arm first"
read -r found < "$folder/{MARKER}" || :
[ "$found" = "{{\\"key\\": \\"$key\\"}}" ] || refuse "$folder was made for $found; compile this arm"
for file in $files; do
  [ -s "$folder/$file" ] || refuse "$folder/$file is missing although marked complete; delete the folder and compile again"
done
for weights in "$@"; do
  [ -f "$weights/{MARKER}" ] || refuse "needs weights that are missing or unfinished, $weights/{MARKER} does not exist; \
fetch them first"
done
echo "artifact $key: complete"
"""


def required_files(arm: Arm) -> tuple[str, ...]:
    """Files without which an artifact is none. The native plugin keeps a compile cache of its own naming instead."""
    return FILES if arm.runtime.dialect.startswith("nxdi") else ()


def writes_into_artifact(arm: Arm) -> bool:
    """Whether the runtime takes locks in its compiled files, which a mount of S3 cannot give it."""
    return arm.runtime.dialect == "native"


def artifact_folder(arm: Arm) -> str:
    """Mounted folder of the arm's artifact."""
    return f"{ARTIFACTS_MOUNT}/{artifact_path(arm)}"


def weights_folders(arm: Arm) -> list[str]:
    """Mounted folders of target and draft."""
    return [f"{CHECKPOINTS_MOUNT}/{weights_path(weights)}" for weights in arm.weights]


def marker_text(arm: Arm) -> str:
    """The marker's one line."""
    return json.dumps({"key": artifact_key(arm)})


def marker_check(arm: Arm) -> dict[str, Any]:
    """Init container that ends the pod in one line unless weights and artifact are complete and this arm's own.

    Without it vLLM 0.9.1 would answer a missing artifact by compiling for tens of minutes, into a read-only mount. It is
    a script for the server's own image, which brings a shell for certain.
    """
    command = ["/bin/sh", "-c", _CHECK, "check-artifact", artifact_folder(arm), artifact_key(arm)]
    return {
        "name": "check-artifact",
        "image": arm.runtime.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [*command, " ".join(required_files(arm)), *weights_folders(arm)],
        "resources": pod.amounts(cpu="100m", memory="64Mi"),
        "securityContext": pod.container_security(writable_root=False),
    }


def add_sources(
    spec: pod.PodSpec, server: pod.Container, claims: dict[str, str], arm: Arm, *, gib: int
) -> None:
    """Check and mounts: read-only from the buckets, or from copies on local NVMe that init containers make first.

    Both put the same files at the same paths, so the server's command does not depend on the choice.
    """
    check = marker_check(arm)
    spec["initContainers"] = [check]
    copied = arm.serving.artifact_source == "scratch"
    for volume, path in (("checkpoints", CHECKPOINTS_MOUNT), ("artifacts", ARTIFACTS_MOUNT)):
        pod.add_claim_volume(spec, volume, claims[volume])
        pod.mount(check, volume, path)
        if not copied:
            pod.mount(server, volume, path)
    if copied or writes_into_artifact(arm):
        pod.add_scratch(spec, "scratch", gib)
    if copied:
        _copy_everything(spec, server, arm)
    if writes_into_artifact(arm):
        _copy_cache(spec, server, arm)


def _copy_everything(spec: pod.PodSpec, server: pod.Container, arm: Arm) -> None:
    copies: list[tuple[str, str, str, list[str]]] = [
        (role, "checkpoints", folder, []) for role, folder in zip(_ROLES, weights_folders(arm), strict=False)
    ]
    copies.append(("artifact", "artifacts", artifact_folder(arm), ["--key", artifact_key(arm)]))
    for role, volume, folder, key in copies:
        copy = pod.tool(
            f"copy-{role}", ["pull", folder, "--to", f"/scratch{folder}", *key], cpu="4", memory="4Gi"
        )
        pod.mount(copy, volume, f"/{volume}")
        pod.mount(copy, "scratch", "/scratch", writable=True)
        spec["initContainers"].append(copy)
    for volume, path in (("checkpoints", CHECKPOINTS_MOUNT), ("artifacts", ARTIFACTS_MOUNT)):
        pod.mount(server, "scratch", path)
        server["volumeMounts"][-1]["subPath"] = volume
    _share_scratch(spec)


def _copy_cache(spec: pod.PodSpec, server: pod.Container, arm: Arm) -> None:
    copy = pod.tool(
        "copy-cache",
        ["pull", artifact_folder(arm), "--to", COMPILED, "--key", artifact_key(arm)],
        cpu="4",
        memory="4Gi",
    )
    pod.mount(copy, "artifacts", ARTIFACTS_MOUNT)
    for holder in (copy, server):
        pod.mount(holder, "scratch", "/scratch", writable=True)
    spec["initContainers"].append(copy)
    _share_scratch(spec)


def _share_scratch(spec: pod.PodSpec) -> None:
    """The copies belong to the group of the tools' user, which may then write into the volume."""
    context = spec.setdefault("securityContext", {})
    context.update(fsGroup=pod.USER, fsGroupChangePolicy="OnRootMismatch")
