"""Rendered objects as a server takes them, what kubelets would do with their pods, and the way to make all go away again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from cdk8s_charts.manifests import PLACEHOLDERS, fill, with_tags
from experiment import Experiment
from tests.apiserver.kubectl import Kubectl, wait_until
from tests.cdk8s_charts.variations import rendered

Objects = list[dict[str, Any]]
Remember = Callable[[Sequence[dict[str, Any]]], None]
"""What the fixture `erased` gives."""
JOB_LABEL = "batch.kubernetes.io/job-name"
_ADDRESS = "10.0.0.1"
_KILLED = 143


def play_kubelets(
    kubectl: Kubectl,
    namespace: str,
    *,
    ended: Callable[[str], bool],
    exit_code: Callable[[str], int] = lambda _job: 0,
) -> Objects:
    """One look at every pod of a namespace: servers become ready, pods of Jobs end where `ended` says so.

    Both functions are told the name of the Job. Returns the pods as they were found.
    """
    pods = kubectl.items("pods", namespace)
    for pod in pods:
        metadata, name = pod["metadata"], pod["metadata"]["name"]
        if "deletionTimestamp" in metadata:
            let_go(kubectl, pod)
        elif "nodeName" in pod["spec"] and pod["status"]["phase"] in ("Pending", "Running"):
            job = metadata.get("labels", {}).get(JOB_LABEL)
            if job is not None and ended(job):
                kubectl.patch_status("pod", name, _status(pod, exit_code(job)), namespace=namespace)
            elif pod["status"]["phase"] == "Pending":
                kubectl.patch_status("pod", name, _status(pod, None), namespace=namespace)
    return pods


def let_go(kubectl: Kubectl, pod: dict[str, Any]) -> None:
    """End a pod that is to be deleted: a Job keeps its pod until it has seen that it ended."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    if pod["status"]["phase"] in ("Pending", "Running"):
        kubectl.patch_status("pod", name, _status(pod, _KILLED), namespace=namespace)
    kubectl.run("delete", "pod", name, "-n", namespace, "--force", "--grace-period=0", "--wait=false")


def _status(pod: dict[str, Any], exit_code: int | None) -> dict[str, Any]:
    """As the kubelet writes it, `None` while the pod runs. The scheduler's condition is kept: conditions are one list."""
    running = exit_code is None
    state: dict[str, Any] = {"running": {}} if running else {"terminated": {"exitCode": exit_code}}
    kept = [one for one in pod["status"].get("conditions", ()) if one["type"] == "PodScheduled"]
    ready = [{"type": kind, "status": str(running)} for kind in ("ContainersReady", "Ready")]
    containers = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": running,
            "restartCount": 0,
            "state": state,
        }
        for container in pod["spec"]["containers"]
    ]
    return {
        "phase": "Running" if running else "Failed" if exit_code else "Succeeded",
        "podIP": _ADDRESS,
        "podIPs": [{"ip": _ADDRESS}],
        "conditions": [*kept, {"type": "Initialized", "status": "True"}, *ready],
        "containerStatuses": containers,
    }


ACCOUNT = "111122223333"
IMAGE = f"{ACCOUNT}.dkr.ecr.us-east-2.amazonaws.com/tools:0123456789abcdef"
_CLUSTER_SCOPED = ("PersistentVolume", "PriorityClass", "ClusterRole", "ClusterRoleBinding")


def filled(objects: Iterable[dict[str, Any]], image: str = IMAGE) -> Objects:
    """Every placeholder replaced by an example."""
    return fill(
        objects, with_tags({name: ACCOUNT if name == "AWS_ACCOUNT" else image for name in PLACEHOLDERS})
    )


def renamed(experiment: Experiment, name: str, image: str = IMAGE) -> Objects:
    """Rendered under a name of its own: a server without controllers never ends a namespace."""
    return filled(rendered(replace(experiment, name=name)), image)


def make_namespace(kubectl: Kubectl, objects: Iterable[dict[str, Any]]) -> str:
    """Apply the namespace alone, without which nothing else can even be tried; returns its name."""
    (namespace,) = (item for item in objects if item["kind"] == "Namespace")
    refused = without_warnings(kubectl.feed([namespace], "apply"))
    assert not refused, refused
    return str(namespace["metadata"]["name"])


def release(kubectl: Kubectl, job: str, where: str) -> None:
    """Let a Job begin."""
    released = kubectl.run("patch", "job", job, "-n", where, "-p", '{"spec":{"suspend":false}}')
    assert released.returncode == 0, released.stderr


def without_warnings(complaints: Iterable[str]) -> list[str]:
    """What was refused."""
    return [line for line in complaints if not line.startswith("Warning")]


def erase(kubectl: Kubectl, namespace: str, objects: Sequence[dict[str, Any]] = ()) -> None:
    """Everything in a namespace, it itself, and the cluster-scoped among `objects`; back when all are gone.

    Pods go first, as their kubelets would let them go: a namespace waits for their grace, and their claims hold devices
    that the next test wants.
    """
    kubectl.run("delete", "deployments,jobs,cronjobs", "--all", "-n", namespace, "--wait=false")
    wait_until(lambda: _empty(kubectl, namespace), f"pods and claims of {namespace} are gone")
    kubectl.run("delete", "namespace", namespace, "--ignore-not-found", "--wait=false")
    for kind in _CLUSTER_SCOPED:
        names = [item["metadata"]["name"] for item in objects if item["kind"] == kind]
        if names:
            kubectl.run("delete", kind, *names, "--ignore-not-found", "--wait=false")
    wait_until(
        lambda: kubectl.run("get", "namespace", namespace).returncode != 0, f"namespace {namespace} is gone"
    )


def _empty(kubectl: Kubectl, namespace: str) -> bool:
    pods = kubectl.items("pods", namespace)
    for pod in pods:
        if pod["metadata"].get("finalizers"):
            let_go(kubectl, pod)
    if pods:
        kubectl.run("delete", "pods", "--all", "-n", namespace, "--force", "--grace-period=0", "--wait=false")
    return not pods and not kubectl.items("resourceclaims", namespace)
