"""One run: experiment, account, cluster, plan and state, how a step waits, and the Jobs that a step creates from the reviewed
manifests."""

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
from trnspec.operations.running.state import RunState, RunStore, VersionedState
from trnspec.operations.verify import verify

STUCK_S = 5 * 60
"""A pod that cannot start for this time ends its step. The add-ons of a new node need some minutes."""
EARLIER_S = 4 * 3600
"""Patience for a compilation of an earlier deployment."""
_UID = "JOB_UID"
"""Environment variable with the name of the folder of unfinished results (`cdk8s_charts/workloads/benchmark_pod.py`)."""
ENDED = ("complete", "failed")
"""States of a Job that has ended."""
POLL_S = 15
_RENEW_EVERY = timedelta(minutes=1)


class StepError(Refusal):
    """A step failed; the message is the line that the user gets."""


class NoCapacityError(StepError):
    """EC2 has no such instance now, or none at the maximum price of the file."""


class UnprovenError(StepError):
    """A check of the nodes failed. The nodes stay for some minutes so that a person can look at them."""


class ImageError(StepError):
    """An image cannot be pulled."""


@dataclass(kw_only=True)
class ActiveRun:
    """One run in one account. `held` is its stored state."""

    experiment: Experiment
    aws: Aws
    cluster: Kubernetes
    clock: Clock
    store: RunStore
    held: VersionedState
    files: tuple[ManifestFile, ...]
    """The reviewed manifests, which have the Jobs."""
    plan: RunPlan
    """Steps, hours and dollars."""
    needs_h: float = 0.0
    """Nodes start only if this many Trn2 hours are left before a schedule sets them to 0."""
    out: Path
    """Folder for the results."""
    say: Callable[[str], None]
    report: Callable[[Path], None]
    """Makes the report of a results folder."""
    verify: Callable[..., list[Finding]] | None = verify
    """Checks the nodes. `None`: neither nodes nor images are checked."""
    away_since: datetime | None = field(default=None, init=False)
    """Since when nodes are missing."""
    spot: tuple[datetime | None, float | None] = field(default=(None, None), init=False)
    """Time of the last question for the spot price, and its answer."""
    stuck_since: dict[str, dict[str, float]] = field(default_factory=dict, init=False)
    """Since when a pod cannot start, by the name of its Job or arm and its own name."""
    _last_said: str = field(default="", init=False)

    @property
    def state(self) -> RunState:
        return self.held.state

    def bucket(self, purpose: str) -> str:
        return bucket(self.experiment, purpose, self.aws.account)

    def save(self, **changes: Any) -> None:
        """Store the state. This also renews the lease."""
        self.held = self.store.save(self.held, renewed=stamp(self.clock.now()), **changes)

    def renew(self) -> None:
        """Renew the lease if the last write is a minute old."""
        if self.clock.now() - moment(self.state.renewed) >= _RENEW_EVERY:
            self.save()

    def wait(self, check: Callable[[], str | None], *, patience_s: float, remedy: str) -> None:
        """Poll `check` until it returns None; otherwise it returns what the run waits for.

        Raises `StepError` with `remedy` after `patience_s`. Time in which nodes are missing does not count.
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
        if (still := poll(said, **how, paused=lambda: self.away_since is not None)) is not None:
            raise StepError(f"{still}, for {patience_s / 60:.0f} minutes; {remedy}")

    def jobs(self, step: str) -> list[dict[str, Any]]:
        """Return the reviewed Jobs of a step with the deployed images."""
        return as_deployed(self.experiment, self.aws, self.cluster, self.files, step)

    def logs_command(self, job: str) -> str:
        """Return the command that prints the logs of a Job."""
        return f"./trnspec kubectl {self.experiment.file} logs job/{job} --all-containers"

    def need(self, kind: str, name: str) -> dict[str, Any]:
        """Return an object of the deployment. Raises `StepError` if the cluster does not have it."""
        if (found := self.cluster.get(kind, name)) is None:
            remedy = deploy_workloads(self.experiment)
            raise StepError(f"{kind} {name}: none in the cluster; {remedy}")
        return found


def jobs_to_create(run: ActiveRun, step: str) -> Mapping[str, kubernetes.Object]:
    """Return the Jobs of a step that is done once, by their reviewed names. Jobs of an earlier deployment are removed first.

    Raises `StepError` if that takes too long.
    """
    jobs = {str(job["metadata"]["name"]): under_its_hash(job) for job in run.jobs(step)}
    remedy = f"wait for it, or remove it (./trnspec kubectl {run.experiment.file} delete job NAME); then run this again"
    run.wait(lambda: _others(run, step, jobs), patience_s=EARLIER_S, remedy=remedy)
    return jobs


def _others(run: ActiveRun, step: str, jobs: Mapping[str, kubernetes.Object]) -> str | None:
    """Remove the Jobs of an earlier deployment; returns what the run waits for. A Job that already makes the same artifact may finish:
    two Jobs would write into one folder."""
    ours = {job["metadata"]["name"] for job in jobs.values()}
    # The phase of a pod is Pending while its init containers work.
    pods = run.cluster.list("pods", labels={STEP: step})
    pods = [pod for pod in pods if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")]
    waits = {}
    for job in run.cluster.list("jobs", labels={STEP: step}):
        if (name := job["metadata"]["name"]) in ours:
            continue
        started = [kubernetes.container_statuses(pod) for pod in kubernetes.pods_of(pods, name)]
        at_work = any("running" in status.get("state", {}) for statuses in started for status in statuses)
        if at_work and kubernetes.job_state(job) == "active" and name.rpartition("-")[0] in jobs:
            waits[name] = f"job {name} of an earlier deployment already makes it"
        else:
            run.cluster.delete("job", name)
    for pod in pods:
        owner = pod["metadata"]["labels"].get("batch.kubernetes.io/job-name", "")
        if owner not in ours:
            waits.setdefault(owner, f"pod {pod['metadata']['name']} of an earlier deployment ends")
    return "; ".join(waits.values()) or None


def create(run: ActiveRun, job: kubernetes.Object, *, ended: Collection[str] = ("failed",)) -> str:
    """Create a Job unless it exists; returns its name. A Job in a state of `ended` is replaced: only the marker in the bucket counts."""
    name = str(job["metadata"]["name"])
    state = kubernetes.job_state(run.cluster.get("job", name))
    if state in ended:
        remove(run, name)
    if state in ended or state == "absent":
        with suppress(kubernetes.ConflictError):  # it is there already
            run.cluster.create(job)
    return name


def remove(run: ActiveRun, name: str) -> None:
    """Remove a Job and wait for its pods. In their last minute they store their results and still hold their devices."""
    run.cluster.delete("job", name)

    def going() -> str | None:
        there = run.cluster.get("job", name) or kubernetes.pods_of(run.cluster.list("pods"), name)
        return f"job {name}: ends and stores its results" if there else None

    remedy = f"remove it: ./trnspec kubectl {run.experiment.file} delete job {name}"
    run.wait(going, patience_s=300, remedy=remedy)


def wait_for(
    run: ActiveRun,
    name: str,
    *,
    patience_s: float,
    remedy: str,
    still: Callable[[], object] = lambda: None,
) -> None:
    """Wait until a Job is complete. `still` is called while it works and may raise `StepError`.

    Raises `StepError` if the Job fails or takes too long.
    """

    def check() -> str | None:
        if (doing := job_progress(run, name)) is not None:
            still()
        return doing

    run.wait(check, patience_s=patience_s, remedy=remedy)


def job_progress(run: ActiveRun, name: str) -> str | None:
    """Return what a Job does; None if it is complete.

    Raises `StepError` if it failed, or if someone removed it.
    """
    found = run.cluster.get("job", name)
    state = kubernetes.job_state(found)
    if state == "complete":
        return None
    if found is None:
        raise StepError(f"job {name}: someone removed it; run this again")
    if state == "failed":
        failed = kubernetes.condition(found, "Failed") or {}
        why = f"{failed.get('reason', 'Failed')}: {' '.join(failed.get('message', '').split())}".rstrip(": ")
        raise StepError(f"job {name} failed ({why}){_last_words(run, name)}")
    try:
        why = why_not_running(run, f"job {name}", name, step=kubernetes.label(found, STEP))
    except StepError:
        run.cluster.delete("job", name)  # its pod may hold devices
        raise
    return f"job {name} is {state}" + (f": {why}" if why else "")


def why_not_running(run: ActiveRun, owner: str, name: str, *, step: str = "") -> str:
    """Return why pods of a Job or an arm do not run; empty if all run or are starting.

    Raises `StepError` if a pod cannot start for `STUCK_S`. A pod without room on a node waits while another pod of its step has one.
    """
    pods, now = run.cluster.list("pods"), run.clock.ticking()
    events = () if have_started(pods, name) else run.cluster.list("events")
    found = troubles(run.experiment, pods, name, events)
    turn = step and any(kubernetes.holds_node(pod) for pod in pods if kubernetes.label(pod, STEP) == step)
    stuck = {one.pod: one for one in found[::-1] if one.lasting and not (one.unscheduled and turn)}
    before = run.stuck_since.get(name, {})
    run.stuck_since[name] = {pod: before.get(pod, now) for pod in stuck}
    for pod, since in run.stuck_since[name].items():
        if now - since >= STUCK_S:
            error = ImageError if stuck[pod].of_image else StepError
            raise error(f"{owner}: {stuck[pod].why}, for {STUCK_S // 60} minutes; {stuck[pod].remedy}")
    return in_words(found)


def _last_words(run: ActiveRun, name: str) -> str:
    """Return the last line in the log of a failed Job, and the command that shows the rest."""
    how = f"; read {run.logs_command(name)}, fix what it says, then run this again"
    for pod in kubernetes.pods_of(run.cluster.list("pods"), name):
        with suppress(Refusal):
            log = run.cluster.logs(pod["metadata"]["name"]).splitlines()
            if lines := [line.strip() for line in log if line.strip()]:
                return f": {lines[-1][:200]}{how}"
    return how


def job_of_run(run: ActiveRun, step: str, name: str) -> dict[str, Any]:
    """Return the Job of a step under a name of this run. A Job that replaces a failed one has the same name, so it finds the
    unfinished results."""
    (reviewed,) = run.jobs(step)
    job = named(reviewed, name)
    own = {"name": _UID, "value": name}
    containers: list[Any] = [*kubernetes.pod_containers(job)]
    for container in containers:
        container["env"] = [own if item["name"] == _UID else item for item in container.get("env", ())]
    return job
