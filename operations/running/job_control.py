"""Jobs of a run: found in the reviewed manifests, released in the cluster, made anew where one failed before."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdk8s_charts.manifests import fill, with_tags
from experiment.compilation import artifact_key
from experiment.finding import Refusal
from experiment.naming import BENCHMARK_NAME, STEP, weights_path
from operations.cloud.cloudformation import deploy_command
from operations.cloud.kubernetes import (
    ConflictError,
    is_running,
    is_unfinished,
    job_failure,
    job_state,
    pods_of,
    tools_image,
    trouble,
)
from operations.running.context import StepError

if TYPE_CHECKING:
    from experiment import Arm
    from experiment.arms import Weights
    from operations.running.context import Context


Object = Mapping[str, Any]
EARLIER_S = 4 * 3600
"""As long as compiling is waited for."""
_OF_THE_CLUSTER = (
    "controller-uid",
    "batch.kubernetes.io/controller-uid",
    "job-name",
    "batch.kubernetes.io/job-name",
)
_UID = "JOB_UID"
"""Environment variable of the pods (`cdk8s_charts/workloads/benchmark_pod.py`) that names the folder of unfinished results."""


def deployed(context: Context) -> list[Object]:
    """The Jobs of the manifests as the deployment filled them in; the tools' image is the one that the CronJob runs.

    Raises `StepError` when the cluster has no such CronJob.
    """
    cron_job = context.cluster.get("cronjob", BENCHMARK_NAME)
    if cron_job is None:
        raise StepError(
            f"cronjob {BENCHMARK_NAME}: none in the cluster; deploy the workloads "
            f"({deploy_command(context.experiment.name)})"
        )
    values = with_tags({"AWS_ACCOUNT": context.aws.account, "BENCHMARK_IMAGE": tools_image(cron_job)})
    return list(
        fill((item for file in context.files for item in file.objects if item["kind"] == "Job"), values)
    )


def fetching(found: Sequence[Object], weights: Weights) -> Object:
    """The Job that fetches a model. Raises `StepError` when the manifests have none."""
    return _working_on(found, "fetch", f'/{weights_path(weights)}"')


def compiling(found: Sequence[Object], arm: Arm) -> Object:
    """The Job that makes an arm's artifact. Raises `StepError` when the manifests have none."""
    return _working_on(found, "compile", f'"--key", "{artifact_key(arm)}"')


def asking(found: Sequence[Object]) -> list[Object]:
    """The Jobs that ask each image whether it takes the arms' arguments."""
    return [job for job in found if _step(job) == "arguments"]


def batches(found: Sequence[Object]) -> list[Object]:
    """The Jobs of the arms that run without a server."""
    return [job for job in found if _step(job) == "batch"]


def _working_on(found: Sequence[Object], step: str, what: str) -> Object:
    """By what its arguments say: the name carries a hash of the whole Job."""
    for job in found:
        if _step(job) == step and what in json.dumps(job):
            return job
    raise StepError(
        f"manifests: no Job {step}-... works on {what}; render them again (make manifests), review and deploy"
    )


def _step(job: Object) -> str:
    return str(job["metadata"].get("labels", {}).get(STEP, ""))


def make_way(context: Context, found: Sequence[Object], step: str) -> None:
    """Remove the Jobs of a step that an earlier deployment left, before those of this one are released.

    A deployment deletes nothing, and two versions at once would hold devices for one artifact. An earlier Job that is
    making what one of these would make is waited for instead. Raises `StepError` when that takes too long.
    """
    ours = {job["metadata"]["name"]: _makes(job) for job in found if _step(job) == step}
    context.wait(
        lambda: _leaving(context, step, ours),
        patience_s=EARLIER_S,
        remedy="wait for it, or remove it (scripts/kubectl delete job NAME); then run this again",
    )


def _leaving(context: Context, step: str, ours: Mapping[str, str]) -> str | None:
    """What is left of earlier deployments, once the Jobs are removed that make nothing, or what nobody wants."""
    pods = [pod for pod in context.cluster.list("pods", labels={STEP: step}) if is_unfinished(pod)]
    told = {}
    for job in context.cluster.list("jobs", labels={STEP: step}):
        name, makes = job["metadata"]["name"], _makes(job)
        if name in ours:
            continue
        at_work = job_state(job) == "active" and any(is_running(pod) for pod in pods_of(pods, name))
        if at_work and makes and makes in ours.values():
            told[name] = f"job {name} of an earlier deployment makes {makes}"
        else:
            context.cluster.delete("job", name)
    for pod in pods:
        owner = pod["metadata"]["labels"].get("batch.kubernetes.io/job-name", "")
        if owner not in ours:
            told.setdefault(owner, f"pod {pod['metadata']['name']} of an earlier deployment ends")
    return "; ".join(told.values()) or None


def _makes(job: Object) -> str:
    """Where a Job stores what it makes; nothing where only its log tells."""
    arguments = job["spec"]["template"]["spec"]["containers"][0].get("args", [])
    return str(arguments[arguments.index("--to") + 1]) if "--to" in arguments else ""


def release(context: Context, job: Object) -> None:
    """Let a Job run: unsuspend it where it stands, make it where it does not, make it anew where it failed before."""
    name = job["metadata"]["name"]
    found = context.cluster.get("job", name)
    state = job_state(found)
    if state == "failed":
        context.cluster.delete("job", name)
        context.wait(
            lambda: f"job {name}: the failed one goes away" if context.cluster.get("job", name) else None,
            patience_s=300,
            remedy=f"remove it by hand: scripts/kubectl delete job {name}",
        )
        state = "absent"
    if state == "absent":
        create(context, job if found is None else _again(found))
    elif state == "suspended":
        context.cluster.patch("job", name, {"spec": {"suspend": False}})


def create(context: Context, job: Object) -> None:
    """Make a Job that runs at once; fine when it is there already."""
    wanted = copy.deepcopy(dict(job))
    wanted["spec"]["suspend"] = False
    try:
        context.cluster.create(wanted)
    except ConflictError:
        return


def progress(context: Context, name: str) -> str | None:
    """What a Job still does, nothing when it is complete.

    Raises `StepError` when it failed, or when a pod of it can never run.
    """
    found = context.cluster.get("job", name)
    state = job_state(found)
    if state == "complete":
        return None
    if found is None:
        raise StepError(f"job {name}: somebody removed it; run this again")
    if state == "failed":
        raise StepError(f"job {name} failed ({job_failure(found)}){_last_words(context, name)}")
    troubles = [told for pod in pods_of(context.cluster.list("pods"), name) if (told := trouble(pod))]
    return f"job {name} is {state}" + (f": {troubles[0]}" if troubles else "")


def from_cron_job(context: Context, cron_job: str, name: str) -> dict[str, Any]:
    """A Job as the suspended CronJob would make it, but for where it keeps unfinished results: under its own name, so
    that a Job made anew after a failure finds what the failed one left.

    Raises `StepError` when the cluster has no such CronJob.
    """
    found = context.cluster.get("cronjob", cron_job)
    if found is None:
        raise StepError(
            f"cronjob {cron_job}: none in the cluster; deploy the workloads "
            f"({deploy_command(context.experiment.name)})"
        )
    template = found["spec"]["jobTemplate"]
    spec = copy.deepcopy(template["spec"])
    for container in containers(spec):
        container["env"] = [
            {"name": _UID, "value": name} if one["name"] == _UID else one for one in container.get("env", ())
        ]
    metadata = template.get("metadata", {})
    labels = metadata.get("labels") or found["metadata"].get("labels", {})
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": found["metadata"]["namespace"],
            "labels": dict(labels),
            "annotations": {"cronjob.kubernetes.io/instantiate": "manual", **metadata.get("annotations", {})},
        },
        "spec": spec,
    }


def containers(spec: Object) -> list[dict[str, Any]]:
    """All containers of a Job's pods, in the order in which they start."""
    pod = spec["template"]["spec"]
    return [*pod.get("initContainers", ()), *pod["containers"]]


def _again(found: Object) -> dict[str, Any]:
    """A Job that stood in the cluster, without what the cluster wrote into it."""
    spec = copy.deepcopy(found["spec"])
    spec.pop("selector", None)
    labels = spec["template"].get("metadata", {}).get("labels", {})
    for label in _OF_THE_CLUSTER:
        labels.pop(label, None)
    kept = {
        key: found["metadata"][key] for key in ("name", "namespace", "labels") if key in found["metadata"]
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": kept, "spec": spec}


def _last_words(context: Context, name: str) -> str:
    """The last line that a failed Job logged, and how to read the rest."""
    how = f"; read scripts/kubectl logs job/{name} --all-containers, fix what it says, then run this again"
    for pod in pods_of(context.cluster.list("pods"), name):
        try:
            lines = [
                line.strip()
                for line in context.cluster.logs(pod["metadata"]["name"]).splitlines()
                if line.strip()
            ]
        except Refusal:
            continue
        if lines:
            return f": {lines[-1][:200]}{how}"
    return how
