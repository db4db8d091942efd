"""The checks on the nodes: one Job for each arm of the first round, all at once, and what their pods print."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cdk8s_charts import node_probe
from cdk8s_charts.workloads.check_jobs import CONTAINER, SECONDS, proof_name
from trnspec.core.findings import Finding, State
from trnspec.core.words import listed
from trnspec.experiment import Experiment
from trnspec.experiment.naming import STEP
from trnspec.operations.cloud.clock import Clock, poll
from trnspec.operations.cloud.kubernetes import (
    Kubernetes,
    Object,
    condition,
    container_statuses,
    job_state,
    json_lines,
)
from trnspec.operations.cloud.pod_trouble import trouble
from trnspec.operations.reviewed_jobs import named

POLL_S = 5
ALLOWANCE_S = 120
"""Seconds after the deadline of the Jobs, in which the API reports their end."""


def checked(check: str, where: str, found: str, remedy: str = "") -> Finding:
    """Return the finding of a check; it has failed if it has a remedy."""
    state = State.FINDING if remedy else State.FINE
    return Finding(where, None, found, remedy, check=check, state=state)


def prove(
    experiment: Experiment,
    kubernetes: Kubernetes,
    clock: Clock,
    *,
    jobs: Sequence[Object],
    tell: Callable[[str], None],
    alive: Callable[[], None],
) -> list[Finding]:
    """Return the findings of every arm of the first round, in file order. The Jobs are always removed."""
    reviewed = {job["metadata"]["name"]: job for job in jobs}
    begun = clock.now().strftime("%Y%m%dt%H%M%Sz")
    made = {f"verify-{arm.name}-{begun}": arm for arm in experiment.rounds[0]}
    left = list(made)

    def running() -> str | None:
        for job in [*left]:
            if job_state(kubernetes.get("job", job)) != "active":
                left.remove(job)
                tell(f"  {job} ended, {len(left)} left")
        return f"checking the nodes: {listed(left)}" if left else None

    try:
        for job in kubernetes.list("jobs", labels={STEP: "verify"}):  # of a process that was killed
            kubernetes.delete("job", job["metadata"]["name"])
        for name, arm in made.items():
            kubernetes.create(named(reviewed[proof_name(experiment, arm)], name))
        names = ", ".join(arm.name for arm in made.values())
        tell(f"checking the nodes with a Job for {names}; a node pulls a new image first")
        how: Any = {"clock": clock, "every_s": POLL_S, "patience_s": SECONDS + ALLOWANCE_S}
        poll(running, **how, between=lambda _: alive())
        return [one for job, arm in made.items() for one in _results(experiment, kubernetes, arm.name, job)]
    finally:
        for name in made:
            kubernetes.delete("job", name)


def _results(experiment: Experiment, kubernetes: Kubernetes, arm: str, job: str) -> Iterator[Finding]:
    """Yield the findings that the pod of a Job printed, or why it printed none."""
    kubectl = f"./trnspec kubectl {experiment.file}"
    pods = kubernetes.list("pod", labels={"batch.kubernetes.io/job-name": job})
    if not pods:
        remedy = f"{kubectl} describe job {job}; usually a quota or a policy"
        yield checked("proof-ran", arm, "no pod was made", remedy)
        return
    pod = max(pods, key=lambda one: str(one["metadata"].get("creationTimestamp", "")))
    name, states = pod["metadata"]["name"], [one.get("state", {}) for one in container_statuses(pod)]
    if condition(pod, "PodScheduled", "False") or any("waiting" in state for state in states):
        known = trouble(experiment, [pod], job, kubernetes.list("events"))
        why, _, remedy = (known or f"pod {name} never started; {kubectl} describe pod {name}").partition("; ")
        yield checked("proof-ran", arm, why, remedy)
        return
    seen = set()
    for line in json_lines(kubernetes.logs(name, container=CONTAINER, lines=100)):
        if line.keys() == {"check", "passed", "found", "remedy"}:
            seen.add(line["check"])
            doubt = State.WARNING if line["remedy"] else State.FINE
            state = doubt if line["passed"] else State.FINDING
            yield Finding(arm, None, line["found"], line["remedy"], check=line["check"], state=state)
    silent = [check for check in node_probe.CHECKS if check not in seen]
    read = f"{kubectl} logs {name} -c {CONTAINER}"
    if not seen:
        yield checked("proof-ran", arm, f"pod {name} printed no result", read)
    elif silent:
        ended = next((state["terminated"] for state in states if "terminated" in state), None)
        code = f" (exit code {ended['exitCode']}, {ended.get('reason', 'no reason given')})" if ended else ""
        remedy = f"{read}; usually the runtime ends a process whose driver does not match"
        yield checked("proof-ran", arm, f"pod {name} ended before {', '.join(silent)}{code}", remedy)
