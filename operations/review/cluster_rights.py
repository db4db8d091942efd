"""Rights inside the cluster, one line each: what roles and network policies let through, and what pods may do to their node.

Of a pod only what goes beyond a hardened one is a right, so a lost restriction shows as a right that is new. The servers
of all arms are one subject: another arm with the same rights opens nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cdk8s_charts.labels import ROLE
from operations.review.objects import Key, Object, lasting_name
from operations.review.wording import short

_TEMPLATES = {
    "Pod": (),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    **dict.fromkeys(("DaemonSet", "Deployment", "Job", "StatefulSet"), ("spec", "template")),
}
_RULES = {
    "Role": "rules",
    "ClusterRole": "rules",
    "RoleBinding": "subjects",
    "ClusterRoleBinding": "subjects",
}
_HOST = {
    "hostNetwork": "stand in the network of their node",
    "hostPID": "see the processes of their node",
    "hostIPC": "share memory with their node",
}


def object_grants(objects: Mapping[Key, Object]) -> set[str]:
    """One line for each thing that somebody in the cluster may do."""
    return {
        f"{key[1] or 'cluster'}: {_subject(key, item)} {right}"
        for key, item in objects.items()
        for right in (*_rules(item), *_pod_rights(item))
    }


def _subject(key: Key, item: Object) -> str:
    if key[0] == "Deployment" and item["metadata"].get("labels", {}).get(ROLE) == "server":
        return "servers"
    return f"{key[0]} {lasting_name(key, item)}"


def _rules(item: Object) -> Iterator[str]:
    kind = item["kind"]
    if kind in _RULES:
        of = f" of {short(item['roleRef'])}" if "roleRef" in item else ""
        yield from (f"{short(rule)}{of}" for rule in item.get(_RULES[kind]) or ())
    elif kind == "NetworkPolicy":
        spec = item.get("spec", {})
        yield f"governs {', '.join(spec.get('policyTypes', ()))} of pods {short(spec.get('podSelector', {}))}"
        for direction in ("ingress", "egress"):
            yield from (f"lets {direction} through: {short(rule)}" for rule in spec.get(direction) or ())
    elif kind == "ServiceAccount" and item.get("automountServiceAccountToken") is not False:
        yield "gives its token to its pods"


def _pod_rights(item: Object) -> Iterator[str]:
    if item["kind"] not in _TEMPLATES:
        return
    template: Any = item
    for step in _TEMPLATES[item["kind"]]:
        template = template.get(step, {})
    spec = template.get("spec", {})
    yield f"run as service account {spec.get('serviceAccountName', 'default')}"
    yield from (words for flag, words in _HOST.items() if spec.get(flag))
    if spec.get("automountServiceAccountToken") is not False:
        yield "hold a token of the API server"
    for volume in spec.get("volumes", ()):
        if "hostPath" in volume:
            yield f"mount {volume['hostPath'].get('path')} of their node"
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        security = {**spec.get("securityContext", {}), **container.get("securityContext", {})}
        yield from (f"{right} (container {container['name']})" for right in _beyond_hardened(security))


def _beyond_hardened(security: Mapping[str, Any]) -> Iterator[str]:
    """What a container may do that a hardened one may not
    (https://kubernetes.io/docs/concepts/security/pod-security-standards/, and a read-only root)."""
    if security.get("privileged"):
        yield "are privileged"
    if security.get("allowPrivilegeEscalation") is not False:
        yield "may gain privileges"
    capabilities = security.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()):
        yield "keep the container runtime's capabilities"
    yield from (f"have capability {one}" for one in capabilities.get("add", ()))
    if security.get("runAsNonRoot") is not True and not security.get("runAsUser"):
        yield "may run as root"
    if security.get("readOnlyRootFilesystem") is not True:
        yield "may write their root file system"
    if security.get("seccompProfile", {}).get("type", "Unconfined") == "Unconfined":
        yield "have no seccomp profile"
