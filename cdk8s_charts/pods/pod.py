"""What pods here have in common and cdk8s-plus-27 cannot express: nodes, security, mounts. Edits plain pod specs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts.pods.sizes import shared_memory_gib
from cdk8s_charts.vllm_command import SCRATCH_MOUNT
from experiment.naming import NEURON_TAINT_KEY, NODE_ROLE_LABEL, role_label

if TYPE_CHECKING:
    from experiment.arms import Experiment
    from experiment.placement import Share

PodSpec = dict[str, Any]
Container = dict[str, Any]

TOOLS_IMAGE = "${BENCHMARK_IMAGE}"
"""Holds `benchmark` and `store`."""
USER = 65532
"""The user that images of this project are built for, and any other under `restricted`."""
STORE = ["python", "-m", "store"]


def container(
    name: str,
    image: str,
    command: list[str],
    *,
    resources: dict[str, Any],
    security: dict[str, Any],
    arguments: list[str] | None = None,
    environment: dict[str, str] | None = None,
    folder: str | None = None,
) -> Container:
    """A container of a pinned image; `folder` is where it starts, if not where the image says."""
    made: Container = {"name": name, "image": image, "imagePullPolicy": "IfNotPresent", "command": command}
    if arguments is not None:
        made["args"] = arguments
    if environment is not None:
        made["env"] = variables(environment)
    if folder is not None:
        made["workingDir"] = folder
    return {**made, "resources": resources, "securityContext": security}


def variables(environment: dict[str, str]) -> list[dict[str, Any]]:
    """As Kubernetes writes them."""
    return [{"name": name, "value": value} for name, value in environment.items()]


def on_neuron_nodes(experiment: Experiment, spec: PodSpec) -> None:
    """Only Trn2 nodes, whose taint keeps everything else away."""
    spec["nodeSelector"] = {NODE_ROLE_LABEL: role_label(experiment, "neuron")}
    spec["tolerations"] = [{"key": NEURON_TAINT_KEY, "operator": "Exists", "effect": "NoSchedule"}]


def on_system_nodes(experiment: Experiment, spec: PodSpec) -> None:
    """Only system nodes, so that a load generator never shares a host with what it measures."""
    spec["nodeSelector"] = {NODE_ROLE_LABEL: role_label(experiment, "system")}


def add_scratch(spec: PodSpec, gib: int, *holders: Container) -> None:
    """A volume on the node's own disk, gone with the pod, which these containers write to."""
    source = {"sizeLimit": f"{gib}Gi"}
    add_volume(spec, "scratch", SCRATCH_MOUNT, *holders, writable=True, emptyDir=source)


def add_volume(
    spec: PodSpec, name: str, path: str, *holders: Container, writable: bool = False, **source: Any
) -> None:
    """A volume of a pod, where these of its containers mount it."""
    spec.setdefault("volumes", []).append({"name": name, **source})
    for holder in holders:
        mount(holder, name, path, writable=writable)


def share_memory(spec: PodSpec, holder: Container, share: Share) -> None:
    """`/dev/shm`, which is a part of the container's memory."""
    limit = f"{shared_memory_gib(share.memory_gib)}Gi"
    source = {"medium": "Memory", "sizeLimit": limit}
    add_volume(spec, "shm", "/dev/shm", holder, writable=True, emptyDir=source)


def mount(holder: Container, volume: str, path: str, *, writable: bool = False) -> None:
    """Mount a volume that the pod has."""
    entry: dict[str, Any] = {"name": volume, "mountPath": path}
    holder.setdefault("volumeMounts", []).append(entry if writable else {**entry, "readOnly": True})


def amounts(*, cpu: str, memory: str, ephemeral: str | None = None) -> dict[str, Any]:
    """Requests that equal limits, so that no pod takes from another."""
    asked = {"cpu": cpu, "memory": memory, **({"ephemeral-storage": ephemeral} if ephemeral else {})}
    return {"requests": asked, "limits": dict(asked)}


def part_of_node(share: Share, *, disk_gib: int) -> dict[str, Any]:
    """Requests and limits of a container that has a part of a Trn2 node."""
    return amounts(cpu=str(share.cpu), memory=f"{share.memory_gib}Gi", ephemeral=f"{disk_gib}Gi")


def tool(name: str, arguments: list[str], *, cpu: str = "500m", memory: str = "512Mi") -> Container:
    """A container of the tools' image that runs `python -m store` with these arguments."""
    security = {**container_security(writable_root=False), **_AS_USER}
    resources = amounts(cpu=cpu, memory=memory)
    return container(name, TOOLS_IMAGE, STORE, arguments=arguments, resources=resources, security=security)


IMAGE_DEFAULTS = "image-defaults"
"""Level of pod security at which a container that holds devices keeps the capabilities that a container has by default."""


def container_security(*, writable_root: bool, level: str = "baseline") -> dict[str, Any]:
    """No privilege, no capability. The user is the image's: what the Neuron devices ask of a user is unproven.

    At `IMAGE_DEFAULTS` only privilege is refused: capabilities and escalation are what the container runtime gives, which
    the Pod Security Standard `baseline` allows.
    """
    if level == IMAGE_DEFAULTS:
        return {"privileged": False, "readOnlyRootFilesystem": not writable_root}
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": not writable_root,
    }


def settle(spec: PodSpec, *, grace_s: int, priority: str, level: str) -> None:
    """What every pod of this project sets. At `restricted` it names a user, as that level asks."""
    user = {**_AS_USER, **OWN_VOLUMES} if level == "restricted" else {}
    spec["automountServiceAccountToken"] = False
    spec["enableServiceLinks"] = False
    spec["priorityClassName"] = priority
    spec["securityContext"] = {
        **spec.get("securityContext", {}),
        **user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    spec["terminationGracePeriodSeconds"] = grace_s


_AS_USER = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER}
OWN_VOLUMES = {"fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch"}
"""Of a pod's security: its volumes belong to the group of the tools' user, which may then write into them."""
