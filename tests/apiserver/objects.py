"""Rendered objects as a server can take them, and the way to make them go away again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts.manifests import PLACEHOLDERS, fill, with_tags
from tests.apiserver import kubelet
from tests.apiserver.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.apiserver.kubectl import Kubectl

ACCOUNT = "111122223333"
IMAGE = f"{ACCOUNT}.dkr.ecr.us-east-2.amazonaws.com/tools:0123456789abcdef"
_CLUSTER_SCOPED = ("PersistentVolume", "PriorityClass", "ClusterRole", "ClusterRoleBinding")


def filled(objects: Iterable[dict[str, Any]], image: str = IMAGE) -> list[dict[str, Any]]:
    """Every placeholder replaced by an example."""
    return fill(
        objects, with_tags({name: ACCOUNT if name == "AWS_ACCOUNT" else image for name in PLACEHOLDERS})
    )


def make_namespace(kubectl: Kubectl, objects: Iterable[dict[str, Any]]) -> str:
    """Apply the namespace alone, without which nothing else can even be tried; returns its name."""
    (namespace,) = (item for item in objects if item["kind"] == "Namespace")
    refused = without_warnings(kubectl.feed([namespace], "apply"))
    assert not refused, refused
    return str(namespace["metadata"]["name"])


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
            kubelet.let_go(kubectl, pod)
    if pods:
        kubectl.run("delete", "pods", "--all", "-n", namespace, "--force", "--grace-period=0", "--wait=false")
    return not pods and not kubectl.items("resourceclaims", namespace)
