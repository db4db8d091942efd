"""Run the proof on the nodes: a Job for each arm that stands first, all at once, as the arms will be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cdk8s_charts.labels import NAME
from cdk8s_charts.proof import on_node
from cdk8s_charts.verifying import CONTAINER, SECONDS, proof_name
from experiment.finding import Finding, Refusal, State, finding
from experiment.placement import batches
from operations.deploying import deploy_command

if TYPE_CHECKING:
    from experiment import Arm, Experiment
    from operations.clock import Clock
    from operations.kubernetes import Kubernetes

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
