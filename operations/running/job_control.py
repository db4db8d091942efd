"""Jobs of a run: found in the reviewed manifests, released in the cluster, made again where one failed before."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from cdk8s_charts.manifests import fill, with_tags
from core.findings import Refusal
from experiment import Arm
from experiment.arms import Weights
from experiment.compilation import artifact_key
from experiment.naming import BENCHMARK_NAME, STEP, weights_path
from operations.cloud import kubernetes
from operations.running.context import Context, StepError

READ = "read its log (./trnspec kubectl logs), then run this again"
EARLIER_S = 4 * 3600
"""As long as compiling is waited for."""
_BY_CLUSTER = (
    "controller-uid",
    "batch.kubernetes.io/controller-uid",
    "job-name",
    "batch.kubernetes.io/job-name",
)
_UID = "JOB_UID"
"""Environment variable of the pods (`cdk8s_charts/workloads/benchmark_pod.py`) that names the folder of unfinished results."""


def of_step(found: Iterable[kubernetes.Object], step: str) -> list[kubernetes.Object]:
    jobs = [item for item in found if item["kind"] == "Job"]
    return [job for job in jobs if job["metadata"].get("labels", {}).get(STEP) == step]


def fetching(jobs: Sequence[kubernetes.Object], weights: Weights) -> kubernetes.Object:
    """The Job that fetches a model. Raises `StepError` when the manifests have none."""
    return _working_on(jobs, "fetch", f'/{weights_path(weights)}"')


def compiling(jobs: Sequence[kubernetes.Object], arm: Arm) -> kubernetes.Object:
    """The Job that makes an arm's artifact. Raises `StepError` when the manifests have none."""
    return _working_on(jobs, "compile", f'"--key", "{artifact_key(arm)}"')


def _working_on(jobs: Sequence[kubernetes.Object], step: str, what: str) -> kubernetes.Object:
    """A Job is known by its arguments: its name has a hash of the whole Job."""
    for job in of_step(jobs, step):
        if what in json.dumps(job):
            return job
    render = "render them again (./trnspec render), review and deploy"
    raise StepError(f"manifests: no Job {step}-... works on {what}; {render}")


def take_up(context: Context, step: str) -> list[kubernetes.Object]:
    """The Jobs of a step as the deployment filled them in, once those of an earlier deployment are out of their way.

    A deployment deletes nothing, and two versions at once would hold devices for one artifact. An earlier Job that is
    making what one of these would make is waited for, any other is removed. Raises `StepError` when that takes too long.
    """
    image = kubernetes.tools_image(context.need("cronjob", BENCHMARK_NAME))
    values = with_tags({"AWS_ACCOUNT": context.aws.account, "BENCHMARK_IMAGE": image})
    objects = (item for file in context.files for item in file.objects)
    jobs: list[kubernetes.Object] = list(fill(of_step(objects, step), values))
    ours = {job["metadata"]["name"]: _makes(job) for job in jobs}
    context.wait(
        lambda: _leaving(context, step, ours),
        patience_s=EARLIER_S,
        remedy="wait for it, or remove it (./trnspec kubectl delete job NAME); then run this again",
    )
    return jobs


def _leaving(context: Context, step: str, ours: Mapping[str, str]) -> str | None:
    """What is left of earlier deployments, once the Jobs are removed that make nothing, or what nobody wants."""
    # The phase of a pod is Pending while its init containers work.
    pods = context.cluster.list("pods", labels={STEP: step})
    pods = [pod for pod in pods if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")]
    waits = {}
    for job in context.cluster.list("jobs", labels={STEP: step}):
        name, makes = job["metadata"]["name"], _makes(job)
        if name in ours:
            continue
        states = [
            one.get("state", {})
            for pod in kubernetes.pods_of(pods, name)
            for one in kubernetes.container_statuses(pod)
        ]
        at_work = kubernetes.job_state(job) == "active" and any("running" in state for state in states)
        if at_work and makes and makes in ours.values():
            waits[name] = f"job {name} of an earlier deployment makes {makes}"
        else:
            context.cluster.delete("job", name)
    for pod in pods:
        owner = pod["metadata"]["labels"].get("batch.kubernetes.io/job-name", "")
        if owner not in ours:
            waits.setdefault(owner, f"pod {pod['metadata']['name']} of an earlier deployment ends")
    return "; ".join(waits.values()) or None


def _makes(job: kubernetes.Object) -> str:
    """Where a Job stores what it makes; empty where only its log has it."""
    arguments = job["spec"]["template"]["spec"]["containers"][0].get("args", [])
    return str(arguments[arguments.index("--to") + 1]) if "--to" in arguments else ""


def release(context: Context, job: kubernetes.Object) -> str:
    """Let a Job run: unsuspend it where it exists, make it where it does not, make it again where it failed before.

    Returns its name.
    """
    name = str(job["metadata"]["name"])
    found = context.cluster.get("job", name)
    state = kubernetes.job_state(found)
    if state == "failed":
        context.cluster.delete("job", name)
        context.wait(
            lambda: f"job {name}: the failed one goes away" if context.cluster.get("job", name) else None,
            patience_s=300,
            remedy=f"remove it by hand: ./trnspec kubectl delete job {name}",
        )
    if state in ("failed", "absent"):
        wanted = copy.deepcopy(dict(job)) if found is None else _again(found)
        wanted["spec"]["suspend"] = False
        with suppress(kubernetes.ConflictError):  # it is there already
            context.cluster.create(wanted)
    elif state == "suspended":
        context.cluster.patch("job", name, {"spec": {"suspend": False}})
    return name


def _again(found: kubernetes.Object) -> dict[str, Any]:
    """A Job of the cluster without what the cluster wrote into it."""
    spec = copy.deepcopy(found["spec"])
    spec.pop("selector", None)
    for label in _BY_CLUSTER:
        spec["template"].get("metadata", {}).get("labels", {}).pop(label, None)
    kept = ("name", "namespace", "labels")
    metadata = {key: value for key, value in found["metadata"].items() if key in kept}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def wait_for(
    context: Context,
    name: str,
    *,
    patience_s: float,
    remedy: str = READ,
    still: Callable[[], object] = lambda: None,
) -> None:
    """Until a Job is complete. `still` raises `StepError` for what makes it useless to go on.

    Raises `StepError` when it failed, or takes too long.
    """

    def check() -> str | None:
        if (doing := progress(context, name)) is not None:
            still()
        return doing

    context.wait(check, patience_s=patience_s, remedy=remedy)


def progress(context: Context, name: str) -> str | None:
    """What a Job still does, None when it is complete; one that was suspended again is released again.

    Raises `StepError` when it failed, or when somebody removed it.
    """
    found = context.cluster.get("job", name)
    state = kubernetes.job_state(found)
    if state == "complete":
        return None
    if state == "suspended":
        context.say(f"    job {name}: was suspended again, as a deployment does; it is released again")
        context.cluster.patch("job", name, {"spec": {"suspend": False}})
    if found is None:
        raise StepError(f"job {name}: someone removed it; run this again")
    if state == "failed":
        failed = kubernetes.condition(found, "Failed") or {}
        why = f"{failed.get('reason', 'Failed')}: {' '.join(failed.get('message', '').split())}".rstrip(": ")
        raise StepError(f"job {name} failed ({why}){_last_words(context, name)}")
    why = kubernetes.trouble(context.cluster.list("pods"), name) or ""
    return f"job {name} is {state}" + (f": {why}" if why else "")


def _last_words(context: Context, name: str) -> str:
    """The last line that a failed Job logged, and how to read the rest."""
    how = f"; read ./trnspec kubectl logs job/{name} --all-containers, fix what it says, then run this again"
    for pod in kubernetes.pods_of(context.cluster.list("pods"), name):
        with suppress(Refusal):
            log = context.cluster.logs(pod["metadata"]["name"]).splitlines()
            if lines := [line.strip() for line in log if line.strip()]:
                return f": {lines[-1][:200]}{how}"
    return how


def from_cron_job(context: Context, cron_job: str, name: str) -> dict[str, Any]:
    """A Job as the suspended CronJob would make it, but for where it keeps unfinished results: under its own name, so
    that a Job made again after a failure finds what the failed one left.

    Raises `StepError` when the cluster has no such CronJob.
    """
    job = kubernetes.job_of(context.need("cronjob", cron_job), name)
    own = {"name": _UID, "value": name}
    containers: list[Any] = [*kubernetes.pod_containers(job)]
    for container in containers:
        container["env"] = [own if one["name"] == _UID else one for one in container.get("env", ())]
    return job
