"""`verify`: check the running nodes before anything is compiled on them.

First come the checks of nodes, devices and add-ons with the API server: objects in, findings out. They are repeated for some minutes,
because a new node pulls the images of its daemons and publishes its devices after it is Ready. Then a Job for each arm of the first
round checks the nodes themselves; all Jobs run at once, as the arms will.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cdk8s_charts.manifests import read
from cdk8s_charts.pods import (
    DRIVER,
    EXTENDED_RESOURCE,
    compile_ephemeral_gib,
    group_attribute,
    serving_ephemeral_gib,
)
from trnspec.core.console import print_json, print_table
from trnspec.core.findings import Finding, State
from trnspec.core.words import count
from trnspec.experiment import Experiment, load
from trnspec.experiment.catalogue.runtimes import OLDEST_FOR_CLAIMS
from trnspec.experiment.naming import NEURON_TAINT_KEY
from trnspec.operations.cloud.access import cluster_of
from trnspec.operations.cloud.aws import aws_of
from trnspec.operations.cloud.clock import Clock, poll
from trnspec.operations.cloud.kubernetes import (
    Kubernetes,
    Object,
    condition,
    is_ready,
    own_nodes,
    trn2_nodes,
)
from trnspec.operations.node_checks import checked, prove
from trnspec.operations.options import manifests_option, with_experiment
from trnspec.operations.reviewed_jobs import as_deployed

LOOK_S = 10
SETTLE_S = 600
"""Patience for the daemons of a new node. What takes longer has another cause."""
LOOKS_IN_A_ROW = 3
"""A daemon that crashes repeatedly may pass two checks in a row."""
_SETTLING = ("nodes-ready", "device-class", "device-attributes", "daemons-ready")
"""Checks that can pass later. What a node can allocate does not change."""
ON_EVERY_NODE = ("aws-node", "kube-proxy", "eks-pod-identity-agent", "s3-csi-node")
"""DaemonSets of the add-ons that all pods need. Those of Neuron have the check device-class."""
_CLUSTER = "cluster"
"""Place of the finding that a node is missing."""
_BESIDE_DRA = (
    "AWS does not support it beside the DRA driver, and no arm needs it "
    "(https://awsdocs-neuron.readthedocs-hosted.com/en/latest/deploy/infrastructure/monitoring.html)"
)
_UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

Objects = Sequence[Object]


@with_experiment
@manifests_option
def command(path: Path, manifests: Path, as_json: bool) -> int:
    """Check the running Trn2 nodes. Takes about two minutes.

    On a new node it waits up to ten minutes more, until the daemons run and the devices are published. Exit 0: every check
    passed, perhaps with warnings. 1: a check failed.
    """
    experiment = load(path)
    files, aws = read(experiment, manifests), aws_of(experiment)
    with cluster_of(experiment, aws) as kubernetes:
        jobs = as_deployed(experiment, aws, kubernetes, files, "verify")
        tell = partial(print, file=sys.stderr)
        findings = verify(experiment, kubernetes, Clock(), jobs=jobs, tell=tell)
    bad = failed(findings)
    if as_json:
        print_json({"experiment": experiment.name, "checks": [check.as_json() for check in findings]})
        return 1 if bad else 0
    rows = [
        (check.state, check.check, check.where, f"{check.why}. {check.remedy}".rstrip(". "))
        for check in findings
    ]
    print_table(("state", "check", "where", "found"), rows)
    print(f"\n{count_text(findings)}")
    return 1 if bad else 0


def verify(
    experiment: Experiment,
    kubernetes: Kubernetes,
    clock: Clock,
    *,
    jobs: Objects,
    tell: Callable[[str], None],
    alive: Callable[[], None] = lambda: None,
) -> list[Finding]:
    """Return all findings. `jobs` are the reviewed Jobs of this step; they are not created if their pods could not start.

    `alive` is called every few seconds, so that a run can renew its lease.
    """
    findings = look_until_settled(lambda: look(experiment, kubernetes), clock, tell=tell, alive=alive)
    stopping = {"nodes-ready", "device-class", "device-attributes"}
    if any(check.check in stopping for check in failed(findings)):
        tell("the checks on the nodes are skipped, because their pods could not start; fix what failed first")
        return findings
    return findings + prove(experiment, kubernetes, clock, jobs=jobs, tell=tell, alive=alive)


def look(experiment: Experiment, kubernetes: Kubernetes) -> list[Finding]:
    """Return the findings from the API server of now."""
    nodes = own_nodes(kubernetes.list("node"))
    names, pods = {node["metadata"]["name"] for node in nodes}, kubernetes.list("pod", everywhere=True)
    here = [pod for pod in pods if pod.get("spec", {}).get("nodeName") in names]
    return [
        *nodes_ready(nodes, experiment),
        *node_size(experiment, nodes),
        *device_class(experiment, kubernetes.list("deviceclass"), nodes),
        *device_attributes(experiment, kubernetes.list("resourceslice"), nodes),
        *daemons_ready(experiment, here, nodes),
    ]


def look_until_settled(
    look: Callable[[], list[Finding]],
    clock: Clock,
    *,
    tell: Callable[[str], None],
    alive: Callable[[], None],
) -> list[Finding]:
    """Repeat `look` until several looks in a row pass, or only problems remain that waiting cannot change; returns the last findings."""
    findings, passed, told = list[Finding](), 0, list[str]()

    def not_settled() -> str | None:
        nonlocal findings, passed
        bad = failed(findings := look())
        waiting = [check for check in bad if check.check in _SETTLING]
        passed = 0 if waiting else passed + 1
        # Waiting does not start a node.
        without_node = any((check.check, check.where) == ("nodes-ready", _CLUSTER) for check in bad)
        if without_node or passed == LOOKS_IN_A_ROW:
            return None
        if not waiting:
            return "several looks in a row have to pass"
        more = f" ({len(waiting) - 1} more)" if len(waiting) > 1 else ""
        text = f"waiting for {waiting[0].check}, {waiting[0].where}: {waiting[0].why}{more}"
        if [text] != told[-1:]:
            tell(text if told else f"{text}; for {SETTLE_S // 60} minutes at most")
            told.append(text)
        return text

    poll(not_settled, clock=clock, every_s=LOOK_S, patience_s=SETTLE_S, between=lambda _: alive())
    return findings


def failed(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that are neither fine nor a warning."""
    return [check for check in findings if check.state not in (State.FINE, State.WARNING)]


def count_text(findings: Sequence[Finding]) -> str:
    """Return in words how many checks passed and failed."""
    bad, warnings = len(failed(findings)), sum(check.state is State.WARNING for check in findings)
    warned = f", {count(warnings, 'warning')}" if warnings else ""
    return f"{count(len(findings) - bad - warnings, 'check')} passed, {bad} failed{warned}"


def nodes_ready(nodes: Objects, experiment: Experiment) -> Iterator[Finding]:
    """Check that enough Trn2 nodes are ready, with the taint and a kubelet of the right version."""
    found, wanted = trn2_nodes(nodes), experiment.nodes
    if len(found) < wanted:
        why = f"{count(len(found), 'Trn2 node')}, {wanted} are needed"
        remedy = f"./trnspec nodes {experiment.file} {wanted}; a node that does not come within 20 minutes is usually missing capacity"
        yield checked("nodes-ready", _CLUSTER, why, remedy)
    for name, node in found.items():
        version = str(node.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", "unknown"))
        wrong = [] if is_ready(node) else ["not ready"]
        taints = node.get("spec", {}).get("taints", [])
        effects = [taint["effect"] for taint in taints if taint["key"] == NEURON_TAINT_KEY]
        if effects != ["NoSchedule"]:
            taint = f"taint {NEURON_TAINT_KEY} is {', '.join(effects) or 'absent'}"
            wrong.append(f"{taint}, pods are rendered for NoSchedule")
        if tuple(map(int, re.findall(r"\d+", version)[:3])) < OLDEST_FOR_CLAIMS:
            wrong.append(f"kubelet {version}, resource claims need 1.34.2 or later")
        remedy = f"replace the node: ./trnspec nodes {experiment.file} 0, then scale again" if wrong else ""
        yield checked("nodes-ready", name, "; ".join(wrong) or f"ready, kubelet {version}", remedy)


def _allocatable(node: Object, resource: str) -> float:
    """Return how much of a resource pods may use on a node; 0 if the kubelet has not said so."""
    return quantity(node.get("status", {}).get("allocatable", {}).get(resource, "0"))


def node_size(experiment: Experiment, nodes: Objects) -> Iterator[Finding]:
    """Check that nodes have the CPU, memory and disk that placement assumes; the catalogue has estimates."""
    instance = experiment.instance
    # Local disk for the arms of the largest round on a node, or for one compilation if that is more.
    compiling = max(compile_ephemeral_gib(arm) for arm in experiment.arms)
    at_once = min(instance.devices // experiment.baseline.serving.devices, len(experiment.arms))
    disk_asked = max(compiling, at_once * serving_ephemeral_gib(experiment))
    for name, node in trn2_nodes(nodes).items():
        cpu, memory, disk = (_allocatable(node, what) for what in ("cpu", "memory", "ephemeral-storage"))
        memory_gib, disk_gib = memory / 2**30, disk / 2**30
        text = f"{cpu:.1f} CPU, {memory_gib:.0f} GiB of memory and {disk_gib:.0f} GiB of disk allocatable"
        remedy = ""
        if cpu < instance.allocatable_cpu or memory_gib < instance.allocatable_memory_gib:
            text += f"; the catalogue has {instance.allocatable_cpu} CPU and {instance.allocatable_memory_gib} GiB"
            remedy = (
                "lower both in src/trnspec/experiment/catalogue/instances.py and render the manifests again"
            )
        elif disk_gib < disk_asked:
            text += f"; the pods that run at once ask for {disk_asked} GiB of disk"
            remedy = "the node's NVMe is not its ephemeral storage: look for NodeConfig localStorage RAID0 in its user data"
        yield checked("node-size", name, text, remedy)


def device_class(experiment: Experiment, classes: Objects, nodes: Objects) -> Iterator[Finding]:
    """Check that the class of the DRA driver exists, or that the device plugin offers all devices."""
    if experiment.baseline.serving.allocation == "dra":
        there = any(item["metadata"]["name"] == DRIVER for item in classes)
        remedy = "" if there else "look at the Helm release in kube-system: helm status"
        yield checked("device-class", DRIVER, "exists" if there else "does not exist", remedy)
        return
    wanted = experiment.instance.devices
    for name, node in trn2_nodes(nodes).items():
        offered = _allocatable(node, EXTENDED_RESOURCE)
        found = f"{wanted}" if offered == wanted else f"{offered:.0f} of {wanted}"
        remedy = "" if offered == wanted else "look at the device plugin's DaemonSet in kube-system"
        yield checked("device-class", name, f"{EXTENDED_RESOURCE}: {found}", remedy)


def device_attributes(experiment: Experiment, slices: Objects, nodes: Objects) -> Iterator[Finding]:
    """Check that each device publishes every attribute that a claim names: a claim for an absent one never matches."""
    if experiment.baseline.serving.allocation != "dra":
        return
    groups = sorted({arm.serving.devices for arm in experiment.arms})
    wanted = [f"{DRIVER}/instanceType", *map(group_attribute, groups)]
    for name in trn2_nodes(nodes):
        specs = [published["spec"] for published in slices]
        ours = [spec for spec in specs if (spec.get("driver"), spec.get("nodeName")) == (DRIVER, name)]
        devices = [_attributes(device) for spec in ours for device in spec.get("devices", [])]
        absent = [key for key in wanted if not all(key in attributes for attributes in devices)]
        published = count(len(devices), "device")
        if len(devices) != experiment.instance.devices:
            why = f"{published} published, {experiment.instance.devices} expected"
            remedy = "look at the DaemonSet of the Neuron DRA driver and at dmesg on the node"
        elif absent:
            why = f"not published: {', '.join(absent)}"
            remedy = "device groups need EFA interfaces on the node; without them use serving.allocation: device-plugin"
        else:
            why, remedy = f"{published} with {', '.join(wanted)}", ""
        yield checked("device-attributes", name, why, remedy)


def _attributes(device: Mapping[str, Any]) -> set[str]:
    """Return the names of the attributes with their domain. The driver may omit its own domain (KEP-4381)."""
    names = device.get("attributes") or device.get("basic", {}).get("attributes") or {}
    return {*names, *(f"{DRIVER}/{name}" for name in names)}


def daemons_ready(experiment: Experiment, pods: Objects, nodes: Objects) -> Iterator[Finding]:
    """Check that the daemons that arms need run on each of our nodes. Other daemons are a warning at most. `pods` are those on our nodes."""
    ready: dict[str, dict[str, bool]] = {}
    for pod in pods:
        owners = pod["metadata"].get("ownerReferences", ())
        for owner in (owner["name"] for owner in owners if owner.get("kind") == "DaemonSet"):
            place = "" if owner in ON_EVERY_NODE else f"{pod['metadata'].get('namespace', '')}/"
            daemon = ready.setdefault(f"{place}{owner}", {})
            daemon[pod["spec"]["nodeName"]] = condition(pod, "Ready") is not None
    for name in ON_EVERY_NODE:
        number = sum(ready.pop(name, {}).values())
        remedy = f"kubectl -n kube-system describe daemonset {name}; the add-on: aws eks describe-addon"
        why = f"ready on {number} of {count(len(nodes), 'node')}"
        yield checked("daemons-ready", name, why, "" if number == len(nodes) else remedy)
    dra = experiment.baseline.serving.allocation == "dra"
    for name, places in ready.items():
        if late := ", ".join(sorted(node for node, fine in places.items() if not fine)):
            monitor = dra and name.rpartition("/")[2].startswith("neuron-monitor")
            why = f"not ready on {late}; {_BESIDE_DRA if monitor else 'no arm needs it'}"
            yield Finding(name, None, why, "tell its owner", check="daemons-ready", state=State.WARNING)


def quantity(text: str) -> float:
    """Return a Kubernetes quantity as a number. Raises ValueError if it is not one."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m|[KMGT]i|[kMGT])?", text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity")
    return float(match[1]) / 1000 if match[2] == "m" else float(match[1]) * _UNITS[match[2] or ""]
