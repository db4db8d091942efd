"""What every step of a run works with: the experiment, the account, the cluster, the state, waiting; and its Jobs, found in the
reviewed manifests, released in the cluster, made again where one failed before."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cdk8s_charts.manifests import ManifestFile, fill, with_tags
from trnspec.core.console import progress
from trnspec.core.findings import Finding, Refusal
from trnspec.experiment import Arm, Experiment
from trnspec.experiment.arms import Weights
from trnspec.experiment.compilation import artifact_key
from trnspec.experiment.cost import run_price
from trnspec.experiment.naming import BENCHMARK_NAME, STEP, bucket, weights_path
from trnspec.experiment.placement import rounds
from trnspec.operations.cloud import kubernetes
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.cloud.clock import Clock, moment, stamp
from trnspec.operations.cloud.cloudformation import deploy_workloads
from trnspec.operations.cloud.kubernetes import Kubernetes
from trnspec.operations.running.state import Held, RunState, RunStore
from trnspec.operations.verification import verify

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
POLL_S = 15
_RENEW_EVERY = timedelta(minutes=1)


def predicted_h(experiment: Experiment, step: str, *, to_compile: int | None = None) -> float:
    """Trn2 hours that the price of a run assumes for a step; 0 where it assumes nothing."""
    name, _, number = step.partition("-")
    parts = run_price(experiment, to_compile=to_compile).parts
    hours = {part.step: part.hours for part in parts}
    assumed = hours.get({"nodes": "nodes start", "arms": "load"}.get(name, name), 0.0)
    return assumed / len(rounds(experiment)) if number else assumed


class StepError(Refusal):
    """A step cannot be carried out; the message is the line that the user gets."""


class NoCapacityError(StepError):
    """EC2 has no such instance now, or none at the price that the file allows; it may have one later."""


class UnprovenError(StepError):
    """The nodes are there and something about them is not as it must be: worth a look before they are given back."""


@dataclass(kw_only=True)
class Context:
    """One run on one account; `held` is its state, written after everything that must not be forgotten."""

    experiment: Experiment
    aws: Aws
    cluster: Kubernetes
    clock: Clock
    store: RunStore
    held: Held
    files: tuple[ManifestFile, ...]
    """The manifests as they were reviewed: which Jobs belong to the experiment."""
    hours: float
    """Time to live of the nodes."""
    needs_h: float = 0.0
    """Trn2 hours that must be left before a schedule sets the nodes to 0, or none start."""
    out: Path
    """Folder for the results."""
    say: Callable[[str], None]
    report: Callable[[Path], None]
    """Makes the report of a results folder."""
    verify: Callable[..., list[Finding]] | None = verify
    """Proves the nodes. `None`: nothing is proved about nodes and images."""
    wait_h: float = 0.0
    """So long nodes are asked for again where EC2 has none; a capacity block that begins later is waited for."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Steps that do not fit before the nodes end, with their titles."""
    away_since: datetime | None = field(default=None, init=False)
    """Since when nodes are missing."""
    spot: tuple[datetime | None, float | None] = field(default=(None, None), init=False)
    """When the spot price was asked for, and the answer."""
    _last_said: str = field(default="", init=False)

    @property
    def state(self) -> RunState:
        return self.held.state

    def bucket(self, purpose: str) -> str:
        return bucket(self.experiment, purpose, self.aws.account)

    def save(self, **changes: Any) -> None:
        """Write the state, which renews the lease as well."""
        self.held = self.store.save(self.held, renewed=stamp(self.clock.now()), **changes)

    def renew(self) -> None:
        """Renew the lease where the last time is long ago: others take the run up once its driver is silent."""
        if self.clock.now() - moment(self.state.renewed) >= _RENEW_EVERY:
            self.save()

    def wait(self, check: Callable[[], str | None], *, patience_s: float, remedy: str) -> None:
        """Ask again and again until `check` returns None; what it returns is what is waited for.

        Raises `StepError` with `remedy` when it takes longer than `patience_s`.
        """
        begun = last = self.clock.ticking()
        predicted_s = 3600 * predicted_h(self.experiment, self.state.step)
        with progress(self.state.step) as show:
            while (waiting_for := check()) is not None:
                if waiting_for != self._last_said:
                    self.say(f"    {waiting_for}")
                    self._last_said = waiting_for
                if self.away_since is not None:  # nodes that are missing have a patience of their own
                    begun += self.clock.ticking() - last
                last = self.clock.ticking()
                if self.clock.ticking() - begun >= patience_s:
                    raise StepError(f"{waiting_for}, for {patience_s / 60:.0f} minutes; {remedy}")
                self.renew()
                left_s = predicted_s - (self.clock.ticking() - begun)
                left = f", predicted {left_s / 60:.0f} more minutes" if left_s > 0 else ""
                show(doing=f"{self.state.step}{left}: {waiting_for}")
                self.clock.sleep(POLL_S)

    def need(self, kind: str, name: str) -> dict[str, Any]:
        """An object that a deployment applies. Raises `StepError` when the cluster does not have it."""
        if (found := self.cluster.get(kind, name)) is None:
            remedy = deploy_workloads(self.experiment.name)
            raise StepError(f"{kind} {name}: none in the cluster; {remedy}")
        return found


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
            status.get("state", {})
            for pod in kubernetes.pods_of(pods, name)
            for status in kubernetes.container_statuses(pod)
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
        if (doing := job_progress(context, name)) is not None:
            still()
        return doing

    context.wait(check, patience_s=patience_s, remedy=remedy)


def job_progress(context: Context, name: str) -> str | None:
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
        container["env"] = [own if item["name"] == _UID else item for item in container.get("env", ())]
    return job
