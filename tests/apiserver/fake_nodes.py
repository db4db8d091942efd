"""Nodes without machines: Node objects and ResourceSlices as a Trn2 node and its DRA driver would register them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts.scheduling.allocator import NEURON_CLASS
from cdk8s_charts.scheduling.devices import DRIVER
from cdk8s_charts.scheduling.quantities import NEURON_RESOURCE
from tests.apiserver.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdk8s_charts.scheduling.devices import Device, Value
    from cdk8s_charts.scheduling.nodes import Node
    from tests.apiserver.kubectl import Kubectl

_VERSIONS = {"draDriverVersion"}
_NOT_READY = "node.kubernetes.io/not-ready"


def register(kubectl: Kubectl, nodes: Sequence[Node]) -> None:
    """Make the nodes, ready, with what the model leaves free on them, and publish their devices."""
    objects: list[dict[str, Any]] = [NEURON_CLASS]
    for node in nodes:
        taints = [{"key": key, "value": "true", "effect": effect} for key, effect in node.taints]
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": node.name,
                    "labels": {**node.labels, "kubernetes.io/hostname": node.name},
                },
                "spec": {"taints": taints} if taints else {},
            }
        )
        if node.devices:
            objects.append(_slice(node))
    assert kubectl.apply(objects) == []
    report(kubectl, nodes)
    wait_until(lambda: not _tainted(kubectl, nodes), "the node controller has seen that the nodes are ready")


def report(kubectl: Kubectl, nodes: Sequence[Node]) -> None:
    """What kubelets would say of their nodes."""
    statuses = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name}, "status": _status(node)}
        for node in nodes
    ]
    assert kubectl.apply(statuses, status=True) == []


def remove(kubectl: Kubectl, nodes: Sequence[Node]) -> None:
    """Take everything back."""
    names = [node.name for node in nodes]
    slices = [f"{node.name}-neuron" for node in nodes if node.devices]
    for kind, found in (("node", names), ("resourceslice", slices), ("deviceclass", [DRIVER])):
        if found:
            kubectl.run("delete", kind, *found, "--ignore-not-found", "--wait=false")


def _tainted(kubectl: Kubectl, nodes: Sequence[Node]) -> set[str]:
    """Nodes that still have the taint with which every node begins."""
    return {
        node["metadata"]["name"]
        for node in kubectl.get("nodes")["items"]
        if any(taint["key"] == _NOT_READY for taint in node["spec"].get("taints", ()))
    } & {node.name for node in nodes}


def _status(node: Node) -> dict[str, Any]:
    offered = {
        "cpu": f"{node.free.cpu_m}m",
        "memory": str(node.free.memory),
        "ephemeral-storage": str(node.free.ephemeral),
        "pods": str(node.free.pods),
    }
    if node.plugin_devices:
        offered[NEURON_RESOURCE] = str(node.plugin_devices)
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "no machine behind it"}
    return {"capacity": offered, "allocatable": offered, "conditions": [ready]}


def _slice(node: Node) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node.name}-neuron"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node.name,
            "pool": {"name": node.name, "generation": 1, "resourceSliceCount": 1},
            "devices": [_device(device) for device in node.devices],
        },
    }


def _device(device: Device) -> dict[str, Any]:
    attributes = {
        name.removeprefix(f"{DRIVER}/"): {_type(name, value): value} for name, value in device.attributes
    }
    return {"name": device.name, "attributes": attributes}


def _type(name: str, value: Value) -> str:
    if name.rpartition("/")[2] in _VERSIONS:
        return "version"
    if isinstance(value, bool):
        return "bool"
    return "int" if isinstance(value, int) else "string"
