"""What pods here have in common and cdk8s-plus-27 cannot say: claims, nodes, security. Edits plain pod specs."""

from __future__ import annotations

from typing import Any

from experiment.naming import NEURON_TAINT_KEY, NODE_ROLE_LABEL

PodSpec = dict[str, Any]


def hold_claim(spec: PodSpec, container: str, name: str, template: str) -> None:
    """Let the pod hold devices made from a ResourceClaimTemplate, and the container use them."""
    spec["resourceClaims"] = [{"name": name, "resourceClaimTemplateName": template}]
    _container(spec, container)["resources"]["claims"] = [{"name": name, "request": name}]


def on_neuron_nodes(spec: PodSpec) -> None:
    """Only Trn2 nodes, whose taint keeps everything else away."""
    spec["nodeSelector"] = {NODE_ROLE_LABEL: "neuron"}
    spec["tolerations"] = [{"key": NEURON_TAINT_KEY, "operator": "Exists", "effect": "NoSchedule"}]


def on_system_nodes(spec: PodSpec) -> None:
    """Only system nodes, so that a load generator never shares a host with what it measures."""
    spec["nodeSelector"] = {NODE_ROLE_LABEL: "system"}


def mount_claim(spec: PodSpec, container: str, volume: str, claim: str, path: str) -> None:
    """Mount a PersistentVolumeClaim read-only."""
    source = {"claimName": claim, "readOnly": True}
    spec.setdefault("volumes", []).append({"name": volume, "persistentVolumeClaim": source})
    mount_read_only(_container(spec, container), volume, path)


def mount_read_only(container: dict[str, Any], volume: str, path: str) -> None:
    """Mount a volume that the pod has."""
    container.setdefault("volumeMounts", []).append({"name": volume, "mountPath": path, "readOnly": True})


def container_security(*, writable_root: bool) -> dict[str, Any]:
    """No privilege, no capability. The user is the image's: what the Neuron devices ask of a user is unproven."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": not writable_root,
    }


def settle(spec: PodSpec, *, grace_s: int) -> None:
    """What every pod of this project says, whatever it does."""
    spec["automountServiceAccountToken"] = False
    spec["enableServiceLinks"] = False
    spec["securityContext"] = {
        **spec.get("securityContext", {}),
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    spec["terminationGracePeriodSeconds"] = grace_s


def _container(spec: PodSpec, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(entry for entry in spec["containers"] if entry["name"] == name)
    return found
