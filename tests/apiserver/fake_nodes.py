"""Nodes without machines: Node objects and ResourceSlices as a Trn2 node and its DRA driver would register them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.apiserver.kubectl import Kubectl, wait_until
from tests.cdk8s_charts.placement import Node

DRIVER = "neuron.aws.com"
NEURON_CLASS: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": DRIVER},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
}
"""Made by the Neuron Helm chart, not by this project."""
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
        if node.devices and node.by_claims:
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
    slices = [f"{node.name}-neuron" for node in nodes if node.devices and node.by_claims]
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
    offered = {name: str(int(amount)) for name, amount in node.free.items()}
    offered["cpu"] = f"{int(node.free['cpu'] * 1000)}m"
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
            "devices": [_device(node, number) for number in range(node.devices)],
        },
    }


def _device(node: Node, number: int) -> dict[str, Any]:
    """As `kubectl get resourceslice` printed it on a trn2.48xlarge in a published walk-through (EKS 1.34, March 2026): a 4 x 4
    grid, a group of four a row, and groups on instances with EFA only. Identities of groups are hashes there."""
    assert node.instance is not None
    texts = {
        "instanceType": node.instance.name,
        "resourceType": "neuron_device",
        "neuronDriverVersion": "2.31.7.0",
        **{f"networkNodeLayer{layer}": f"nn-{layer}" for layer in (1, 2, 3)},
        **{
            f"resource.aws.com/devicegroup{size}_id": f"{node.name}-group{size}-{number // size}"
            for size in (1, 4, 8, 16)
            if node.instance.efa_attached and size <= node.devices
        },
    }
    numbers = {"deviceId": number, "topology_x": number // 4, "topology_y": number % 4}
    return {
        "name": f"neuron-device-{number}",
        "attributes": {
            **{name: {"string": value} for name, value in texts.items()},
            **{name: {"int": value} for name, value in numbers.items()},
            "draDriverVersion": {"version": "1.2.0"},
        },
    }
