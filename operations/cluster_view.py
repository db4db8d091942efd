"""What stands in the cluster, read once and put into words; pure functions over Kubernetes objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cdk8s_charts.labels import NAME
from experiment.naming import NODE_ROLE_LABEL

Object = Mapping[str, Any]
NEURON = {NODE_ROLE_LABEL: "neuron"}


def is_ready(node: Object) -> bool:
    """Whether the kubelet says so."""
    conditions = node.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def role(node: Object) -> str:
    """`neuron`, `system`, or nothing for a node that is not ours."""
    return str(node["metadata"].get("labels", {}).get(NODE_ROLE_LABEL, ""))


def replicas(deployment: Object | None) -> tuple[int, int]:
    """Wanted and ready."""
    if deployment is None:
        return 0, 0
    return deployment.get("spec", {}).get("replicas", 1), deployment.get("status", {}).get("readyReplicas", 0)


def pods_of(pods: Sequence[Object], name: str) -> list[Object]:
    """Pods of a Deployment or a Job."""
    return [
        pod
        for pod in pods
        if name in (labels := pod["metadata"].get("labels", {})).values()
        and (
            labels.get(NAME) == name
            or labels.get("job-name") == name
            or labels.get("batch.kubernetes.io/job-name") == name
        )
    ]


def is_unfinished(pod: Object) -> bool:
    """Whether the pod may still do something."""
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def is_running(pod: Object) -> bool:
    """Whether a container of the pod runs. Its phase does not say: it is Pending while init containers work."""
    status = pod.get("status", {})
    containers = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    return any("running" in container.get("state", {}) for container in containers)


def trouble(pod: Object) -> str | None:
    """Why a pod does not run, with what to do; nothing when it does, or is only starting."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return _unscheduled(name, " ".join(condition.get("message", "no reason given").split()))
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        if (told := _container(name, container)) is not None:
            return told
    return None


def _unscheduled(name: str, why: str) -> str:
    if "claim" in why or ("resource" in why.lower() and "dra" in why.lower()):
        remedy = "check the device attributes (scripts/kubectl get resourceslices -o yaml), or set serving.allocation: device-plugin"
    elif "Insufficient" in why:
        remedy = "another pod holds the devices or the memory: lower it, or raise cluster.max_nodes"
    else:
        remedy = "check that the Trn2 nodes are ready (scripts/status)"
    return f"pod {name} is not scheduled: {why}; {remedy}"


def _container(pod: str, status: Object) -> str | None:
    waiting = status.get("state", {}).get("waiting", {})
    reason = waiting.get("reason", "")
    if reason in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName"):
        return (
            f"pod {pod} cannot pull its image ({' '.join(waiting.get('message', reason).split())}); "
            "run scripts/preflight, which asks the registry"
        )
    if reason in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
        return (
            f"pod {pod} cannot start: {' '.join(waiting.get('message', reason).split())}; fix what it names"
        )
    ended = status.get("state", {}).get("terminated") or status.get("lastState", {}).get("terminated")
    if ended and ended.get("exitCode", 0) != 0:
        cause = (
            "ran out of memory"
            if ended.get("reason") == "OOMKilled"
            else f"ended with exit {ended['exitCode']}"
        )
        return f"pod {pod}, container {status['name']}, {cause}; read scripts/kubectl logs {pod} -c {status['name']}"
    return None


def job_state(job: Object | None) -> str:
    """`absent`, `suspended`, `active`, `complete` or `failed`."""
    if job is None:
        return "absent"
    for condition in job.get("status", {}).get("conditions", ()):
        if condition["status"] == "True" and condition["type"] in ("Complete", "Failed"):
            return str(condition["type"]).lower()
    return "suspended" if job.get("spec", {}).get("suspend") else "active"


def tools_image(cron_job: Object) -> str:
    """Which image of `benchmark` and `store` the deployment filled in, by the CronJob of the benchmark."""
    return str(cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["image"])


def job_failure(job: Object) -> str:
    """Why a Job failed, in Kubernetes' words."""
    for condition in job.get("status", {}).get("conditions", ()):
        if condition["type"] == "Failed":
            return f"{condition.get('reason', 'Failed')}: {' '.join(condition.get('message', '').split())}".rstrip(
                ": "
            )
    return "Failed"


def claim_state(claim: Object) -> str:
    """`allocated` with its devices, or `waiting`."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    if not results:
        return "waiting"
    names = [str(result["device"]) for result in results]
    return f"allocated: {', '.join(names)} on {results[0].get('pool', '?')}"
