"""What every step of a run works with: the experiment, the account, the cluster, the state, waiting; and its Jobs, found in the
reviewed manifests, created in the cluster, created again where one failed before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cdk8s_charts.manifests import ManifestFile
from trnspec.core.findings import Finding, Refusal
from trnspec.experiment import Experiment
from trnspec.experiment.naming import STEP, bucket
from trnspec.operations.cloud import kubernetes
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.cloud.clock import Clock, moment, poll, stamp
from trnspec.operations.cloud.cloudformation import deploy_workloads
from trnspec.operations.cloud.kubernetes import Kubernetes
from trnspec.operations.cloud.pod_trouble import have_started, in_words, troubles
from trnspec.operations.reviewed_jobs import as_deployed, named, under_its_hash
from trnspec.operations.running.run_plan import RunPlan
from trnspec.operations.running.state import Held, RunState, RunStore
from trnspec.operations.verification import verify

STUCK_S = 5 * 60
"""After so long a pod that cannot start ends its step: a new node's add-ons need some minutes, a registry may fail for one."""
EARLIER_S = 4 * 3600
"""As long as compiling is waited for."""
_UID = "JOB_UID"
"""Environment variable of the pods (`cdk8s_charts/workloads/benchmark_pod.py`) that names the folder of unfinished results."""
ENDED = ("complete", "failed")
"""How a Job stands that left no marker and does not work on one."""
POLL_S = 15
_RENEW_EVERY = timedelta(minutes=1)


class StepError(Refusal):
    """A step cannot be carried out; the message is the line that the user gets."""


class NoCapacityError(StepError):
    """EC2 has no such instance now, or none at the price that the file allows; it may have one later."""


class UnprovenError(StepError):
    """The nodes are there and something about them is not as it must be: worth a look before they are given back."""


class ImageError(StepError):
    """An image cannot be pulled."""


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
    plan: RunPlan
    """Rounds, nodes, hours and dollars, computed once."""
    needs_h: float = 0.0
    """Trn2 hours that must be left before a schedule sets the nodes to 0, or none start."""
    out: Path
    """Folder for the results."""
    say: Callable[[str], None]
    report: Callable[[Path], None]
    """Makes the report of a results folder."""
    verify: Callable[..., list[Finding]] | None = verify
    """Proves the nodes. `None`: nothing is proved about nodes and images."""
    away_since: datetime | None = field(default=None, init=False)
    """Since when nodes are missing."""
    spot: tuple[datetime | None, float | None] = field(default=(None, None), init=False)
    """When the spot price was asked for, and the answer."""
    stuck_since: dict[str, dict[str, float]] = field(default_factory=dict, init=False)
    """Since when pods cannot start, by the name of their Job or arm and their own."""
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
        ends = self.clock.ticking() + 3600 * self.plan.hours_of(self.state.step)

        def said() -> str | None:
            if (waiting_for := check()) is not None and waiting_for != self._last_said:
                self.say(f"    {waiting_for}")
                self._last_said = waiting_for
            return waiting_for

        def line(waiting_for: str) -> str:
            self.renew()
            left_s = ends - self.clock.ticking()
            left = f", predicted {left_s / 60:.0f} more minutes" if left_s > 0 else ""
            return f"{self.state.step}{left}: {waiting_for}"

        how: Any = {"clock": self.clock, "every_s": POLL_S, "patience_s": patience_s, "between": line}
        # Nodes that are missing have a patience of their own.
        if (still := poll(said, **how, paused=lambda: self.away_since is not None)) is not None:
            raise StepError(f"{still}, for {patience_s / 60:.0f} minutes; {remedy}")

    def jobs(self, step: str) -> list[dict[str, Any]]:
        """The reviewed Jobs of a step, of the images that are deployed."""
        return as_deployed(self.experiment, self.aws, self.cluster, self.files, step)

    def logs_command(self, job: str) -> str:
        """Return the command that prints the logs of a Job."""
        return f"./trnspec kubectl {self.experiment.file} logs job/{job} --all-containers"

    def need(self, kind: str, name: str) -> dict[str, Any]:
        """An object that a deployment applies. Raises `StepError` when the cluster does not have it."""
        if (found := self.cluster.get(kind, name)) is None:
            remedy = deploy_workloads(self.experiment)
            raise StepError(f"{kind} {name}: none in the cluster; {remedy}")
        return found


def to_create(context: Context, step: str) -> Mapping[str, kubernetes.Object]:
    """The Jobs of a step that is done once, by their reviewed names, as they are created; those of other manifests are out of
    their way.

    Raises `StepError` when that takes too long.
    """
    jobs = {str(job["metadata"]["name"]): under_its_hash(job) for job in context.jobs(step)}
    context.wait(
        lambda: _others(context, step, jobs),
        patience_s=EARLIER_S,
        remedy=f"wait for it, or remove it (./trnspec kubectl {context.experiment.file} delete job NAME); then run this again",
    )
    return jobs


def _others(context: Context, step: str, jobs: Mapping[str, kubernetes.Object]) -> str | None:
    """What Jobs of other manifests still do. One that is at work on what one of ours makes is waited for, because both would hold
    devices for it and write into one folder. All others are removed, and their pods are waited for."""
    ours = {job["metadata"]["name"] for job in jobs.values()}
    # The phase of a pod is Pending while its init containers work.
    pods = context.cluster.list("pods", labels={STEP: step})
    pods = [pod for pod in pods if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")]
    waits = {}
    for job in context.cluster.list("jobs", labels={STEP: step}):
        if (name := job["metadata"]["name"]) in ours:
            continue
        started = [kubernetes.container_statuses(pod) for pod in kubernetes.pods_of(pods, name)]
        at_work = any("running" in status.get("state", {}) for statuses in started for status in statuses)
        if at_work and kubernetes.job_state(job) == "active" and name.rpartition("-")[0] in jobs:
            waits[name] = f"job {name} of an earlier deployment makes what this run would make"
        else:
            context.cluster.delete("job", name)
    for pod in pods:
        owner = pod["metadata"]["labels"].get("batch.kubernetes.io/job-name", "")
        if owner not in ours:
            waits.setdefault(owner, f"pod {pod['metadata']['name']} of an earlier deployment ends")
    return "; ".join(waits.values()) or None


def create(context: Context, job: kubernetes.Object, *, ended: Collection[str] = ("failed",)) -> str:
    """Create a Job that does not exist, or that has a state of `ended`: a marker in the bucket says what is done, not a Job.

    Returns its name.
    """
    name = str(job["metadata"]["name"])
    state = kubernetes.job_state(context.cluster.get("job", name))
    if state in ended:
        remove(context, name)
    if state in ended or state == "absent":
        with suppress(kubernetes.ConflictError):  # it is there already
            context.cluster.create(job)
    return name


def remove(context: Context, name: str) -> None:
    """Remove a Job, and wait for its pods, which store in their last minute what they have and hold their devices until then."""
    context.cluster.delete("job", name)

    def going() -> str | None:
        there = context.cluster.get("job", name) or kubernetes.pods_of(context.cluster.list("pods"), name)
        return f"job {name}: goes away, and keeps what it has" if there else None

    context.wait(
        going,
        patience_s=300,
        remedy=f"remove it: ./trnspec kubectl {context.experiment.file} delete job {name}",
    )


def wait_for(
    context: Context,
    name: str,
    *,
    patience_s: float,
    remedy: str = "",
    still: Callable[[], object] = lambda: None,
) -> None:
    """Until a Job is complete. `still` raises `StepError` for what makes it useless to go on.

    Raises `StepError` when it failed, or takes too long.
    """

    def check() -> str | None:
        if (doing := job_progress(context, name)) is not None:
            still()
        return doing

    remedy = remedy or f"read its log ({context.logs_command(name)}), then run this again"
    context.wait(check, patience_s=patience_s, remedy=remedy)


def job_progress(context: Context, name: str) -> str | None:
    """What a Job still does, None when it is complete.

    Raises `StepError` when it failed, or when somebody removed it.
    """
    found = context.cluster.get("job", name)
    state = kubernetes.job_state(found)
    if state == "complete":
        return None
    if found is None:
        raise StepError(f"job {name}: someone removed it; run this again")
    if state == "failed":
        failed = kubernetes.condition(found, "Failed") or {}
        why = f"{failed.get('reason', 'Failed')}: {' '.join(failed.get('message', '').split())}".rstrip(": ")
        raise StepError(f"job {name} failed ({why}){_last_words(context, name)}")
    try:
        why = why_not_up(context, f"job {name}", name, step=kubernetes.label(found, STEP))
    except StepError:
        context.cluster.delete("job", name)  # its pod may hold devices
        raise
    return f"job {name} is {state}" + (f": {why}" if why else "")


def why_not_up(context: Context, owner: str, name: str, *, step: str = "") -> str:
    """Return why pods of a Job or an arm do not run, empty if all run or are starting.

    Raises `StepError` for what has kept a pod from starting for `STUCK_S`. A pod that no node has room for waits for its turn while
    a pod of another Job of the same step has a node.
    """
    pods, now = context.cluster.list("pods"), context.clock.ticking()
    events = () if have_started(pods, name) else context.cluster.list("events")
    found = troubles(context.experiment, pods, name, events)
    turn = step and any(kubernetes.holds_node(pod) for pod in pods if kubernetes.label(pod, STEP) == step)
    stuck = {one.pod: one for one in found[::-1] if one.lasting and not (one.unscheduled and turn)}
    before = context.stuck_since.get(name, {})
    context.stuck_since[name] = {pod: before.get(pod, now) for pod in stuck}
    for pod, since in context.stuck_since[name].items():
        if now - since >= STUCK_S:
            error = ImageError if stuck[pod].of_image else StepError
            raise error(f"{owner}: {stuck[pod].why}, for {STUCK_S // 60} minutes; {stuck[pod].remedy}")
    return in_words(found)


def _last_words(context: Context, name: str) -> str:
    """The last line that a failed Job logged, and how to read the rest."""
    how = f"; read {context.logs_command(name)}, fix what it says, then run this again"
    for pod in kubernetes.pods_of(context.cluster.list("pods"), name):
        with suppress(Refusal):
            log = context.cluster.logs(pod["metadata"]["name"]).splitlines()
            if lines := [line.strip() for line in log if line.strip()]:
                return f": {lines[-1][:200]}{how}"
    return how


def of_run(context: Context, step: str, name: str) -> dict[str, Any]:
    """A Job of this run from the reviewed one of a step. It keeps unfinished results under its own name, so that a Job made again
    after a failure finds what the failed one left."""
    (reviewed,) = context.jobs(step)
    job = named(reviewed, name)
    own = {"name": _UID, "value": name}
    containers: list[Any] = [*kubernetes.pod_containers(job)]
    for container in containers:
        container["env"] = [own if item["name"] == _UID else item for item in container.get("env", ())]
    return job
