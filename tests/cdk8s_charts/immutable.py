"""Version 2 over version 1: what Kubernetes does not let change under the same name.

Each such object carries a hash of its content in its name; this compares two renders and finds where that failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.cdk8s_charts.objects import the

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.cdk8s_charts.objects import Object

    Edit = Callable[[list[Object]], object]

FIELDS: dict[str, tuple[str, ...]] = {
    "Deployment": ("spec.selector",),
    "StatefulSet": ("spec.selector", "spec.serviceName", "spec.volumeClaimTemplates"),
    "DaemonSet": ("spec.selector",),
    "ResourceClaimTemplate": ("spec",),
    "ResourceClaim": ("spec",),
    "PersistentVolume": ("spec.csi", "spec.volumeMode"),
    "PersistentVolumeClaim": (
        *("spec.volumeName", "spec.accessModes", "spec.storageClassName", "spec.volumeMode"),
        *("spec.selector", "spec.dataSource", "spec.dataSourceRef"),
    ),
    "PriorityClass": ("value", "preemptionPolicy"),
    "ClusterRoleBinding": ("roleRef",),
    "Service": ("spec.clusterIP",),
}
"""https://github.com/kubernetes/kubernetes: the update validations of each kind."""


REFUSED: dict[str, tuple[str, Edit]] = {
    "a Deployment's selector": (
        "spec.selector",
        lambda o: the(o, "Deployment")["spec"]["selector"]["matchLabels"].update(x="y"),
    ),
    "the count of a claim template": (
        "spec",
        lambda o: the(o, "ResourceClaimTemplate")["spec"]["spec"]["devices"]["requests"][0]["exactly"].update(
            count=4
        ),
    ),
    "the bucket of a volume": (
        "spec.csi",
        lambda o: the(o, "PersistentVolume")["spec"]["csi"]["volumeAttributes"].update(bucketName="x"),
    ),
    "the volume of a claim": (
        "spec.volumeName",
        lambda o: the(o, "PersistentVolumeClaim")["spec"].update(volumeName="x"),
    ),
    "the data of an immutable ConfigMap": (
        "data",
        lambda o: the(o, "ConfigMap")["data"].update({"plan.json": "{}"}),
    ),
}
"""Field and edit; tests/apiserver asks a real server."""


def changed_in_place(before: Iterable[Object], after: Iterable[Object]) -> list[tuple[str, str]]:
    """Object and field of what applying `after` over `before` would be refused for."""
    old = {_key(item): item for item in before}
    found = []
    for item in after:
        earlier = old.get(_key(item))
        if earlier is None:
            continue
        for path in (*FIELDS.get(item["kind"], ()), *_frozen_data(earlier)):
            if at(earlier, path) != at(item, path):
                found.append((f"{item['kind']}/{item['metadata']['name']}", path))
    return found


def _key(item: Object) -> tuple[Any, ...]:
    return (item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"])


def _frozen_data(item: Object) -> tuple[str, ...]:
    immutable = item["kind"] in ("ConfigMap", "Secret") and item.get("immutable")
    return ("data", "binaryData", "immutable") if immutable else ()


def at(item: Any, path: str) -> Any:
    """What stands at a path with dots; nothing where the object has none."""
    for key in path.split("."):
        item = item.get(key) if isinstance(item, dict) else None
    return item
