"""What kubelets would do with pods that the scheduler has bound: run them, end them, let go of those to be deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.apiserver.kubectl import Kubectl

JOB_LABEL = "batch.kubernetes.io/job-name"
_ADDRESS = "10.0.0.1"
_KILLED = 143


def work(
    kubectl: Kubectl,
    namespace: str,
    *,
    ended: Callable[[str], bool],
    exit_code: Callable[[str], int] = lambda _job: 0,
) -> list[dict[str, Any]]:
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
