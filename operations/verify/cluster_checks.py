"""What the API server tells about nodes, devices and add-ons. Pure: objects in, findings out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiment.naming import NEURON_TAINT_KEY, NODE_ROLE_LABEL
from operations.verify.findings import Checked, failed, passed

if TYPE_CHECKING:
    from experiment import Experiment

DRIVER = "neuron.aws.com"
EXTENDED_RESOURCE = "aws.amazon.com/neuron"
_FIRST_SOUND_KUBELET = (1, 34, 2)
"""https://github.com/kubernetes/kubernetes/issues/133920"""
_UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

Objects = Sequence[Mapping[str, Any]]


def neuron_nodes(nodes: Objects) -> list[Mapping[str, Any]]:
    """Those with the role that pods of the arms select."""
    return [node for node in nodes if _labels(node).get(NODE_ROLE_LABEL) == "neuron"]


def nodes_ready(nodes: Objects, *, wanted: int) -> Iterator[Checked]:
    """As many Trn2 nodes as the arms need, ready, tainted, with a sound kubelet."""
    found = neuron_nodes(nodes)
    if len(found) < wanted:
        yield failed(
            "nodes-ready",
            "cluster",
            f"{len(found)} Trn2 nodes, {wanted} are needed",
            "scripts/scale; a node that does not come within 20 minutes is most often missing capacity",
        )
    for node in found:
        wrong = list(_troubles(node))
        name = node["metadata"]["name"]
        if wrong:
            yield failed(
                "nodes-ready", name, "; ".join(wrong), "replace the node; scripts/scale 0, then anew"
            )
        else:
            yield passed(
                "nodes-ready", name, f"ready, kubelet {node['status']['nodeInfo']['kubeletVersion']}"
            )


def node_size(experiment: Experiment, nodes: Objects) -> Iterator[Checked]:
    """Placement counted on the catalogue's figures, which are estimates."""
    instance = experiment.cluster.instance
    for node in neuron_nodes(nodes):
        name, has = node["metadata"]["name"], node["status"]["allocatable"]
        cpu, memory_gib = quantity(has["cpu"]), quantity(has["memory"]) / 2**30
        text = f"{cpu:.1f} CPU and {memory_gib:.0f} GiB allocatable"
        if cpu < instance.allocatable_cpu or memory_gib < instance.allocatable_memory_gib:
            yield failed(
                "node-size",
                name,
                f"{text}; the catalogue has {instance.allocatable_cpu} and {instance.allocatable_memory_gib}",
                "lower both in experiment/catalogue/instances.py and render the manifests anew",
            )
        else:
            yield passed("node-size", name, text)


def device_class(experiment: Experiment, classes: Objects, nodes: Objects) -> Iterator[Checked]:
    """What brings devices to pods is installed: the class of the DRA driver, or the device plugin's resource."""
    if experiment.baseline.serving.allocation == "dra":
        if any(one["metadata"]["name"] == DRIVER for one in classes):
            yield passed("device-class", DRIVER, "exists")
        else:
            yield failed(
                "device-class",
                DRIVER,
                "does not exist",
                "look at the Helm release in kube-system: helm status",
            )
        return
    for node in neuron_nodes(nodes):
        name, offered = (
            node["metadata"]["name"],
            quantity(node["status"]["allocatable"].get(EXTENDED_RESOURCE, "0")),
        )
        wanted = experiment.cluster.instance.devices
        if offered == wanted:
            yield passed("device-class", name, f"{EXTENDED_RESOURCE}: {wanted}")
        else:
            yield failed(
                "device-class",
                name,
                f"{EXTENDED_RESOURCE}: {offered:.0f} of {wanted}",
                "look at the device plugin's DaemonSet in kube-system",
            )


def device_attributes(experiment: Experiment, slices: Objects, nodes: Objects) -> Iterator[Checked]:
    """Every attribute that a claim names is published on every device; one that is absent matches nothing, silently."""
    if experiment.baseline.serving.allocation != "dra":
        return
    groups = sorted({arm.serving.devices for arm in experiment.arms})
    wanted = [f"{DRIVER}/instanceType", *(f"resource.aws.com/devicegroup{size}_id" for size in groups)]
    for node in neuron_nodes(nodes):
        name = node["metadata"]["name"]
        devices = [
            device
            for one in slices
            if one["spec"].get("driver") == DRIVER and one["spec"].get("nodeName") == name
            for device in one["spec"].get("devices", [])
        ]
        if len(devices) != experiment.cluster.instance.devices:
            yield failed(
                "device-attributes",
                name,
                f"{len(devices)} devices published, {experiment.cluster.instance.devices} expected",
                "look at the DaemonSet of the Neuron DRA driver and at dmesg on the node",
            )
            continue
        absent = [key for key in wanted if not all(_has(device, key) for device in devices)]
        if absent:
            yield failed(
                "device-attributes",
                name,
                f"not published: {', '.join(absent)}",
                "device groups need EFA interfaces on the node; without them use serving.allocation: device-plugin",
            )
        else:
            yield passed("device-attributes", name, f"{len(devices)} devices with {', '.join(wanted)}")


def daemons_ready(daemon_sets: Objects) -> Iterator[Checked]:
    """Add-ons and drivers run wherever they are wanted."""
    for one in daemon_sets:
        name = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
        status = one.get("status", {})
        wanted, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
        if ready < wanted:
            remedy = f"kubectl -n {one['metadata']['namespace']} describe daemonset {one['metadata']['name']}"
            yield failed("daemons-ready", name, f"{ready} of {wanted} pods ready", remedy)
        else:
            yield passed("daemons-ready", name, f"{ready} of {wanted} pods ready")


def quantity(text: str) -> float:
    """A Kubernetes quantity as a number. Raises ValueError for what is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m|[KMGT]i|[kMGT])?", text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity")
    return float(match[1]) / 1000 if match[2] == "m" else float(match[1]) * _UNITS[match[2] or ""]


def _troubles(node: Mapping[str, Any]) -> Iterator[str]:
    conditions = {one["type"]: one["status"] for one in node["status"].get("conditions", [])}
    if conditions.get("Ready") != "True":
        yield "not ready"
    if not any(taint["key"] == NEURON_TAINT_KEY for taint in node["spec"].get("taints", [])):
        yield f"no taint {NEURON_TAINT_KEY}, other pods can land on it"
    version = node["status"]["nodeInfo"]["kubeletVersion"]
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < _FIRST_SOUND_KUBELET:
        yield f"kubelet {version}, resource claims need 1.34.2 or later"


def _labels(item: Mapping[str, Any]) -> Mapping[str, str]:
    labels: Mapping[str, str] = item["metadata"].get("labels") or {}
    return labels


def _has(device: Mapping[str, Any], key: str) -> bool:
    """Attributes of the driver's own domain may be published without it (KEP-4381)."""
    attributes = device.get("attributes") or device.get("basic", {}).get("attributes") or {}
    return key in attributes or (
        key.startswith(f"{DRIVER}/") and key.removeprefix(f"{DRIVER}/") in attributes
    )
