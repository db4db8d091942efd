"""What a server decides when pods and Jobs are made: Pod Security, and the policy of Jobs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.control_plane import ControlPlane
from tests.apiserver.kubectl import Kubectl, wait_until
from tests.apiserver.objects import (
    Objects,
    Remember,
    deployed,
    filled,
    make_namespace,
    renamed,
    without_warnings,
)
from tests.cdk8s_charts.objects import RENDERED, objects_of, pods_of, the
from tests.cdk8s_charts.test_admission import HOSTILE
from tests.cdk8s_charts.variations import with_serving
from trnspec.experiment import Experiment
from trnspec.operations.reviewed_jobs import named

ENFORCE = "pod-security.kubernetes.io/enforce"


def _pods(objects: Objects) -> Objects:
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{pod.kind.lower()}-{pod.name}",
                "namespace": pod.owner["metadata"]["namespace"],
                "labels": pod.metadata["labels"],
            },
            "spec": pod.spec,
        }
        for pod in pods_of(objects)
    ]


def _prepared(kubectl: Kubectl, objects: Objects, *, level: str, name: str) -> Objects:
    """Pods, after what they refer to stands in a namespace of that level and name."""
    moved = copy.deepcopy(objects)
    for item in moved:
        if item["kind"] == "Namespace":
            item["metadata"].update(name=name, labels={ENFORCE: level})
        elif "namespace" in item["metadata"]:
            item["metadata"]["namespace"] = name
    make_namespace(kubectl, moved)
    needed = [item for item in moved if item["kind"] in ("ServiceAccount", "PriorityClass")]
    assert without_warnings(kubectl.feed(needed, "apply")) == []
    return _pods(moved)


def _refused(kubectl: Kubectl, pods: Objects) -> set[str]:
    """Names of the pods that Pod Security refuses; nothing else may be wrong with any."""
    complaints = without_warnings(kubectl.feed(pods, "create", "--dry-run=server"))
    assert all("violates PodSecurity" in line for line in complaints), complaints
    return {
        pod["metadata"]["name"]
        for pod in pods
        if any(f'"{pod["metadata"]["name"]}"' in line for line in complaints)
    }


def _holds_devices(pod: dict[str, Any]) -> bool:
    return "resourceClaims" in pod["spec"] or "aws.amazon.com/neuron" in str(pod["spec"])


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_pods_that_hold_devices_are_the_only_ones_that_restricted_refuses(
    control_plane: ControlPlane, erased: Remember, path: Path
) -> None:
    objects = filled(objects_of(path))
    for level in ("baseline", "restricted"):
        name = f"{level}-{path.stem.replace('.', '-')}"
        pods = _prepared(control_plane.kubectl, objects, level=level, name=name)
        erased([{"kind": "Namespace", "metadata": {"name": name}}])
        keep_their_user = {pod["metadata"]["name"] for pod in pods if _holds_devices(pod)}
        assert keep_their_user
        expected = keep_their_user if level == "restricted" else set()
        assert _refused(control_plane.kubectl, pods) == expected


@pytest.mark.parametrize(("level", "enforced"), [("restricted", "restricted"), ("ipc-lock", "privileged")])
def test_with_either_end_of_pod_security_every_pod_may_enter(
    level: str, enforced: str, control_plane: ControlPlane, erased: Remember, reference: Experiment
) -> None:
    objects = renamed(with_serving(reference, pod_security=level), level)
    (namespace,) = (item for item in objects if item["kind"] == "Namespace")
    assert namespace["metadata"]["labels"][ENFORCE] == enforced
    erased(objects)
    pods = _prepared(control_plane.kubectl, objects, level=enforced, name=level)
    assert control_plane.kubectl.feed(pods, "create", "--dry-run=server") == []


def test_the_policy_admits_reviewed_jobs_and_refuses_each_hostile_one(
    control_plane: ControlPlane, erased: Remember, reference: Experiment
) -> None:
    kubectl, where = control_plane.kubectl, "policy"
    objects = renamed(reference, where)
    erased(objects)
    make_namespace(kubectl, objects)
    assert without_warnings(kubectl.feed(deployed(objects), "apply")) == []
    jobs = [item for item in objects if item["kind"] == "Job"]
    fetch = the(jobs, "Job", "fetch-")

    def refused(job: dict[str, Any]) -> str:
        return " ".join(without_warnings(kubectl.feed([job], "create", "--dry-run=server")))

    hostile = {}
    for what, (says, edit) in HOSTILE.items():
        hostile[what] = says, named(fetch, "hostile")
        edit(hostile[what][1]["spec"]["template"]["spec"])
    # The server takes a new policy up within a second or so.
    wait_until(lambda: bool(refused(hostile["an image"][1])), "the policy is in force")
    assert {job["metadata"]["name"]: refused(job) for job in jobs} == {
        job["metadata"]["name"]: "" for job in jobs
    }
    # Of some the server itself refuses the form.
    assert [what for what, (_, job) in hostile.items() if not refused(job)] == []
    assert hostile["an image"][0] in refused(hostile["an image"][1])
    policy = kubectl.get("validatingadmissionpolicy", f"{where}-jobs")
    assert "expressionWarnings" not in policy.get("status", {}).get("typeChecking", {})
