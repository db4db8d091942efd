"""Rendered objects as a server takes them, and the way to remove them again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from cdk8s_charts.manifests import PLACEHOLDERS, fill
from tests.apiserver.kubectl import Kubectl, wait_until
from tests.cdk8s_charts.variations import rendered
from trnspec.experiment import Experiment

Objects = list[dict[str, Any]]
Remember = Callable[[Sequence[dict[str, Any]]], None]
"""What the fixture `erased` gives."""


ACCOUNT = "111122223333"
IMAGE = f"{ACCOUNT}.dkr.ecr.us-east-2.amazonaws.com/tools:0123456789abcdef"
_CLUSTER_SCOPED = (
    *("PersistentVolume", "PriorityClass", "ClusterRole", "ClusterRoleBinding"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
)


def filled(objects: Iterable[dict[str, Any]], image: str = IMAGE) -> Objects:
    return fill(objects, {name: ACCOUNT if name == "AWS_ACCOUNT" else image for name in PLACEHOLDERS})


def deployed(objects: Iterable[dict[str, Any]]) -> Objects:
    """What the workloads stack applies of them."""
    return [item for item in objects if item["kind"] != "Job"]


def renamed(experiment: Experiment, name: str, image: str = IMAGE) -> Objects:
    """Rendered under a name of its own: a server without controllers never ends a namespace."""
    return filled(rendered(replace(experiment, name=name)), image)


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

    No pod was scheduled, so none keeps the namespace.
    """
    kubectl.run("delete", "namespace", namespace, "--ignore-not-found", "--wait=false")
    for kind in _CLUSTER_SCOPED:
        names = [item["metadata"]["name"] for item in objects if item["kind"] == kind]
        if names:
            kubectl.run("delete", kind, *names, "--ignore-not-found", "--wait=false")
    wait_until(
        lambda: kubectl.run("get", "namespace", namespace).returncode != 0, f"namespace {namespace} is gone"
    )
