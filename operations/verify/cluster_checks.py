"""What the API server tells about nodes, devices and add-ons. Pure: objects in, findings out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdk8s_charts import sizes
from cdk8s_charts.allocation import EXTENDED_RESOURCE
from cdk8s_charts.claims import DRIVER, group_attribute
from experiment.catalogue.node_images import OLDEST_FOR_CLAIMS
from experiment.finding import Finding, finding, fine
from experiment.naming import NEURON_TAINT_KEY, NODE_ROLE_LABEL

if TYPE_CHECKING:
    from experiment import Experiment

_UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

ON_EVERY_NODE = ("aws-node", "kube-proxy", "eks-pod-identity-agent", "s3-csi-node")
"""DaemonSets of the add-ons that every pod here rests on; those of Neuron are proved by device-class and the proof."""

Objects = Sequence[Mapping[str, Any]]


def neuron_nodes(nodes: Objects) -> list[Mapping[str, Any]]:
    """Those with the role that pods of the arms select."""
    return [node for node in nodes if _labels(node).get(NODE_ROLE_LABEL) == "neuron"]


def nodes_ready(nodes: Objects, *, wanted: int) -> Iterator[Finding]:
    """As many Trn2 nodes as the arms need, ready, tainted, with a sound kubelet."""
    found = neuron_nodes(nodes)
    if len(found) < wanted:
        yield finding(
            "nodes-ready",
            f"{len(found)} Trn2 nodes, {wanted} are needed",
            "scripts/scale; a node that does not come within 20 minutes is most often missing capacity",
            where="cluster",
        )
    for node in found:
        wrong = list(_troubles(node))
        name = node["metadata"]["name"]
        if wrong:
            yield finding(
                "nodes-ready", "; ".join(wrong), "replace the node; scripts/scale 0, then anew", where=name
            )
        else:
            yield fine(
                "nodes-ready", f"ready, kubelet {node['status']['nodeInfo']['kubeletVersion']}", where=name
            )


def node_size(experiment: Experiment, nodes: Objects) -> Iterator[Finding]:
    """Placement counted on the catalogue's figures, which are estimates."""
    instance = experiment.instance
    for node in neuron_nodes(nodes):
        name, has = node["metadata"]["name"], node["status"]["allocatable"]
        cpu, memory_gib = quantity(has["cpu"]), quantity(has["memory"]) / 2**30
        disk_gib, disk_asked = quantity(has.get("ephemeral-storage", "0")) / 2**30, disk_asked_gib(experiment)
        text = f"{cpu:.1f} CPU, {memory_gib:.0f} GiB of memory and {disk_gib:.0f} GiB of disk allocatable"
        if cpu < instance.allocatable_cpu or memory_gib < instance.allocatable_memory_gib:
            yield finding(
                "node-size",
                f"{text}; the catalogue has {instance.allocatable_cpu} CPU and {instance.allocatable_memory_gib} GiB",
                "lower both in experiment/catalogue/instances.py and render the manifests again",
                where=name,
            )
        elif disk_gib < disk_asked:
            yield finding(
                "node-size",
                f"{text}; the pods that stand at once ask for {disk_asked} GiB of disk",
                "the node's NVMe is not its ephemeral storage: look for NodeConfig localStorage RAID0 in its user data",
                where=name,
            )
        else:
            yield fine("node-size", text, where=name)


def disk_asked_gib(experiment: Experiment) -> int:
    """Local disk that the arms of the largest batch ask for on a node, or one compilation where that is more."""
    instance = experiment.instance
    compiling = max(sizes.compile_ephemeral_gib(arm) for arm in experiment.served_arms)
    at_once = instance.devices // experiment.baseline.serving.devices
    return max(compiling, min(at_once, len(experiment.served_arms)) * sizes.serving_ephemeral_gib(experiment))


def device_class(experiment: Experiment, classes: Objects, nodes: Objects) -> Iterator[Finding]:
    """What brings devices to pods is installed: the class of the DRA driver, or the device plugin's resource."""
    if experiment.baseline.serving.allocation == "dra":
        if any(one["metadata"]["name"] == DRIVER for one in classes):
            yield fine("device-class", "exists", where=DRIVER)
        else:
            yield finding(
                "device-class",
                "does not exist",
                "look at the Helm release in kube-system: helm status",
                where=DRIVER,
            )
        return
    for node in neuron_nodes(nodes):
        name, offered = (
            node["metadata"]["name"],
            quantity(node["status"]["allocatable"].get(EXTENDED_RESOURCE, "0")),
        )
        wanted = experiment.instance.devices
        if offered == wanted:
            yield fine("device-class", f"{EXTENDED_RESOURCE}: {wanted}", where=name)
        else:
            yield finding(
                "device-class",
                f"{EXTENDED_RESOURCE}: {offered:.0f} of {wanted}",
                "look at the device plugin's DaemonSet in kube-system",
                where=name,
            )


def device_attributes(experiment: Experiment, slices: Objects, nodes: Objects) -> Iterator[Finding]:
    """Every attribute that a claim names is published on every device; one that is absent matches nothing, silently."""
    if experiment.baseline.serving.allocation != "dra":
        return
    groups = sorted({arm.serving.devices for arm in experiment.arms})
    wanted = [f"{DRIVER}/instanceType", *map(group_attribute, groups)]
    for node in neuron_nodes(nodes):
        name = node["metadata"]["name"]
        devices = [
            device
            for one in slices
            if one["spec"].get("driver") == DRIVER and one["spec"].get("nodeName") == name
            for device in one["spec"].get("devices", [])
        ]
        if len(devices) != experiment.instance.devices:
            yield finding(
                "device-attributes",
                f"{len(devices)} devices published, {experiment.instance.devices} expected",
                "look at the DaemonSet of the Neuron DRA driver and at dmesg on the node",
                where=name,
            )
            continue
        absent = [key for key in wanted if not all(_has(device, key) for device in devices)]
        if absent:
            yield finding(
                "device-attributes",
                f"not published: {', '.join(absent)}",
                "device groups need EFA interfaces on the node; without them use serving.allocation: device-plugin",
                where=name,
            )
        else:
            yield fine("device-attributes", f"{len(devices)} devices with {', '.join(wanted)}", where=name)


def daemons_ready(daemon_sets: Objects, nodes: Objects) -> Iterator[Finding]:
    """Add-ons and drivers run wherever they are wanted, and those of every node are wanted on every node."""
    everywhere = {
        one["metadata"]["name"]: one.get("status", {}).get("desiredNumberScheduled", 0) for one in daemon_sets
    }
    for name in ON_EVERY_NODE:
        if everywhere.get(name, 0) < len(nodes):
            wanted = f"wanted on {everywhere[name]}" if name in everywhere else "absent from the cluster"
            remedy = "look at the add-on in the EKS console, or aws eks describe-addon"
            yield finding("daemons-ready", f"{wanted}, there are {len(nodes)} nodes", remedy, where=name)
    for one in daemon_sets:
        name = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
        status = one.get("status", {})
        wanted, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
        if ready < wanted:
            remedy = f"kubectl -n {one['metadata']['namespace']} describe daemonset {one['metadata']['name']}"
            yield finding("daemons-ready", f"{ready} of {wanted} pods ready", remedy, where=name)
        else:
            yield fine("daemons-ready", f"{ready} of {wanted} pods ready", where=name)


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
    effects = [
        taint["effect"] for taint in node["spec"].get("taints", []) if taint["key"] == NEURON_TAINT_KEY
    ]
    if effects != ["NoSchedule"]:
        yield f"taint {NEURON_TAINT_KEY} is {', '.join(effects) or 'absent'}, pods are rendered for NoSchedule"
    version = node["status"]["nodeInfo"]["kubeletVersion"]
    if tuple(map(int, re.findall(r"\d+", version)[:3])) < OLDEST_FOR_CLAIMS:
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
