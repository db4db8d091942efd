"""`verify`: what only real nodes can prove, before anything is compiled on them."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cdk8s_charts import on_node
from cdk8s_charts.pods import sizes
from cdk8s_charts.pods.devices import DRIVER, EXTENDED_RESOURCE, group_attribute
from cdk8s_charts.workloads.proofs import CONTAINER, SECONDS, proof_name
from experiment.catalogue.node_images import OLDEST_FOR_CLAIMS
from experiment.finding import Finding, Refusal, State, finding, fine
from experiment.naming import NAME, NEURON_TAINT_KEY, NODE_ROLE_LABEL
from experiment.placement import batches, nodes_needed
from operations.cloud.access import cluster_of
from operations.cloud.clock import SystemClock
from operations.cloud.cloudformation import deploy_command
from operations.console import table
from operations.options import add_experiment, as_json, aws_of, experiment_of

if TYPE_CHECKING:
    from experiment import Experiment

if TYPE_CHECKING:
    from experiment import Arm, Experiment
    from operations.cloud.clock import Clock
    from operations.cloud.kubernetes import Kubernetes

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.cloud.clock import Clock
    from operations.cloud.kubernetes import Kubernetes


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


POLL_S = 5
ALLOWANCE_S = 120
"""Beyond the Jobs' own deadline, for the API to say so."""


def prove(
    experiment: Experiment, kubernetes: Kubernetes, clock: Clock, *, tell: Callable[[str], None]
) -> list[Finding]:
    """Findings of every arm of the first batch, in file order. The Jobs are removed whatever happens."""
    jobs = [(arm, f"verify-{arm.name}") for arm in batches(experiment)[0]]
    try:
        for arm, job in jobs:
            kubernetes.delete("job", job)
            _wait_until_gone(kubernetes, clock, job)
            kubernetes.create(_job(experiment, kubernetes, arm, job))
        tell(
            f"proving on the nodes: {', '.join(arm.name for arm, _ in jobs)}; an image new to a node is pulled first"
        )
        _wait(kubernetes, clock, [job for _, job in jobs], tell)
        return [one for arm, job in jobs for one in results(kubernetes, arm.name, job)]
    finally:
        for _, job in jobs:
            kubernetes.delete("job", job)


def _job(experiment: Experiment, kubernetes: Kubernetes, arm: Arm, name: str) -> dict[str, Any]:
    """What `kubectl create job --from=cronjob/...` would make, under a name of its own."""
    source = proof_name(experiment, arm)
    found = kubernetes.get("cronjob", source)
    if found is None:
        raise Refusal(
            f"{arm.name}: the cluster has no CronJob {source}; deploy the workloads "
            f"({deploy_command(experiment.name)})"
        )
    template = found["spec"]["jobTemplate"]
    labels = {**template.get("metadata", {}).get("labels", {}), "speculation.trn2/proof-of": arm.name}
    spec = template["spec"]
    pod = {**spec["template"], "metadata": {"labels": {**labels, NAME: name}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {**spec, "template": pod},
    }


def _wait_until_gone(kubernetes: Kubernetes, clock: Clock, job: str) -> None:
    end = clock.now() + timedelta(seconds=ALLOWANCE_S)
    while kubernetes.get("job", job) is not None:
        if clock.now() > end:
            raise Refusal(f"job {job} of an earlier verify does not go away; kubectl describe job {job}")
        clock.sleep(POLL_S)


def _wait(kubernetes: Kubernetes, clock: Clock, jobs: Sequence[str], tell: Callable[[str], None]) -> None:
    """Until each Job has ended, or its deadline and the allowance are over."""
    end = clock.now() + timedelta(seconds=SECONDS + ALLOWANCE_S)
    open_jobs = list(jobs)
    while open_jobs and clock.now() < end:
        for name in list(open_jobs):
            job = kubernetes.get("job", name)
            if job is None or _ended(job):
                open_jobs.remove(name)
                tell(f"  {name} ended, {len(open_jobs)} to go")
        if open_jobs:
            clock.sleep(POLL_S)


def results(kubernetes: Kubernetes, arm: str, job: str) -> Iterator[Finding]:
    """What the pod of a Job printed; or, where it printed nothing, why."""
    pods = kubernetes.list("pod", labels={"batch.kubernetes.io/job-name": job})
    if not pods:
        yield finding(
            "proof-ran",
            "no pod was made",
            f"kubectl describe job {job}; most often a quota or a policy",
            where=arm,
        )
        return
    pod = max(pods, key=lambda one: str(one["metadata"].get("creationTimestamp", "")))
    name = pod["metadata"]["name"]
    if (why := _never_started(pod)) is not None:
        yield finding("proof-ran", *why, where=arm)
        return
    seen = set()
    for line in kubernetes.logs(name, container=CONTAINER, lines=100).splitlines():
        if (result := _result(line)) is not None:
            seen.add(result["check"])
            state = State.FINE if result["passed"] else State.FINDING
            yield Finding(arm, None, result["found"], result["remedy"], check=result["check"], state=state)
    if not seen:
        yield finding(
            "proof-ran", f"pod {name} printed no result", f"kubectl logs {name} -c {CONTAINER}", where=arm
        )
    elif silent := [check for check in on_node.CHECKS if check not in seen]:
        yield finding(
            "proof-ran",
            f"pod {name} ended before {', '.join(silent)}{_end(pod)}",
            f"kubectl logs {name} -c {CONTAINER}; the runtime most often ends a process whose driver does not fit",
            where=arm,
        )


def _end(pod: Mapping[str, Any]) -> str:
    """How the container of the proof ended, where the kubelet says it."""
    for container in pod.get("status", {}).get("containerStatuses") or []:
        ended = container.get("state", {}).get("terminated")
        if ended:
            return f" (exit code {ended.get('exitCode')}, {ended.get('reason', 'no reason given')})"
    return ""


def _result(line: str) -> dict[str, Any] | None:
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) and said.keys() == {"check", "passed", "found", "remedy"} else None


def _ended(job: Mapping[str, Any]) -> bool:
    conditions = job.get("status", {}).get("conditions") or []
    return any(one["type"] in ("Complete", "Failed") and one["status"] == "True" for one in conditions)


def _never_started(pod: Mapping[str, Any]) -> tuple[str, str] | None:
    """What was found and what to do, for a pod whose container never ran."""
    status = pod.get("status", {})
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            said = condition.get("message", "no reason given")
            return (
                f"never scheduled: {said}",
                "a claim that cannot be allocated needs free, connected devices: look at other pods on the node, or "
                "use serving.allocation: device-plugin",
            )
    for container in status.get("containerStatuses") or []:
        waiting = container.get("state", {}).get("waiting")
        if waiting:
            reason, said = waiting.get("reason", "Waiting"), waiting.get("message", "")
            remedy = (
                "check the image's name and that the node reaches its registry"
                if "Image" in reason
                else f"kubectl describe pod {pod['metadata']['name']}"
            )
            return f"never started: {reason} {said}".strip(), remedy
    return None


def verify(
    experiment: Experiment, kubernetes: Kubernetes, clock: Clock, *, tell: Callable[[str], None]
) -> list[Finding]:
    """All findings. The proof on the nodes is left out where the API already tells that its pods could not start."""
    nodes = kubernetes.list("node")
    findings = [
        *nodes_ready(nodes, wanted=nodes_needed(experiment)),
        *node_size(experiment, nodes),
        *device_class(experiment, kubernetes.list("deviceclass"), nodes),
        *device_attributes(experiment, kubernetes.list("resourceslice"), nodes),
        *daemons_ready(kubernetes.list("daemonset", everywhere=True), nodes),
    ]
    stopping = {"nodes-ready", "device-class", "device-attributes"}
    if any(one.state is not State.FINE and one.check in stopping for one in findings):
        tell("no proof on the nodes: its pods could not start; fix what failed first")
        return findings
    return findings + prove(experiment, kubernetes, clock, tell=tell)


HELP = "check on running Trn2 nodes everything that could not be tried without AWS; about two minutes"


def configure(parser: argparse.ArgumentParser) -> None:
    """Only which experiment."""
    add_experiment(parser)


def execute(options: argparse.Namespace) -> int:
    """Exit 0 when every check passed, 1 when one failed."""
    experiment = experiment_of(options.experiment, verb="verify")
    with cluster_of(experiment, aws_of(experiment, options)) as kubernetes:
        findings = verify(
            experiment, kubernetes, SystemClock(), tell=lambda text: print(text, file=sys.stderr)
        )
    bad = [one for one in findings if one.state is not State.FINE]
    if options.json:
        print(as_json({"passed": not bad, "checks": [_as_data(one) for one in findings]}))
        return 1 if bad else 0
    rows = [
        ("FAIL" if one in bad else "PASS", one.check, one.where, f"{one.why}. {one.remedy}".rstrip(". "))
        for one in findings
    ]
    print(table(("", "check", "where", "found"), rows))
    print(f"\n{len(findings) - len(bad)} checks passed, {len(bad)} failed")
    return 1 if bad else 0


def _as_data(one: Finding) -> dict[str, Any]:
    return {
        "check": one.check,
        "subject": one.where,
        "passed": one.state is State.FINE,
        "found": one.why,
        "remedy": one.remedy,
    }
