"""The proof on the nodes: a Job for each arm that is deployed first, all at once, as the arms will be, and what its pod printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cdk8s_charts import node_probe
from cdk8s_charts.workloads.probes import CONTAINER, SECONDS, proof_name
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
"""Beyond the Jobs' own deadline, for the API to say so."""


def checked(check: str, where: str, found: str, remedy: str = "") -> Finding:
    """What was found; with a remedy it is something to do."""
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
    """Findings of every arm of the first batch, in file order. The Jobs are removed whatever happens."""
    reviewed = {job["metadata"]["name"]: job for job in jobs}
    begun = clock.now().strftime("%Y%m%dt%H%M%Sz")
    made = {f"verify-{arm.name}-{begun}": arm for arm in experiment.rounds[0]}
    try:
        for left in kubernetes.list("jobs", labels={STEP: "verify"}):  # of a process that was killed
            kubernetes.delete("job", left["metadata"]["name"])
        for job, arm in made.items():
            kubernetes.create(named(reviewed[proof_name(experiment, arm)], job))
        names = ", ".join(arm.name for arm in made.values())
        tell(f"proving on the nodes: {names}; an image new to a node is pulled first")
        running = list(made)

        def proving() -> str | None:
            for job in [*running]:
                if job_state(kubernetes.get("job", job)) in ("absent", "complete", "failed"):
                    running.remove(job)
                    tell(f"  {job} ended, {len(running)} to go")
            return f"proving on the nodes: {listed(running)}" if running else None

        poll(
            proving,
            clock=clock,
            every_s=POLL_S,
            patience_s=SECONDS + ALLOWANCE_S,
            between=lambda _: alive(),
        )
        return [
            result for job, arm in made.items() for result in _results(experiment, kubernetes, arm.name, job)
        ]
    finally:
        for job in made:
            kubernetes.delete("job", job)


def _results(experiment: Experiment, kubernetes: Kubernetes, arm: str, job: str) -> Iterator[Finding]:
    """What the pod of a Job printed; or, where it printed nothing, why."""
    kubectl = f"./trnspec kubectl {experiment.file}"
    pods = kubernetes.list("pod", labels={"batch.kubernetes.io/job-name": job})
    if not pods:
        remedy = f"{kubectl} describe job {job}; usually a quota or a policy"
        yield checked("proof-ran", arm, "no pod was made", remedy)
        return
    pod = max(pods, key=lambda one: str(one["metadata"].get("creationTimestamp", "")))
    name, states = pod["metadata"]["name"], [one.get("state", {}) for one in container_statuses(pod)]
    if condition(pod, "PodScheduled", "False") or any("waiting" in state for state in states):
        why, _, remedy = (
            trouble(experiment, [pod], job, kubernetes.list("events"))
            or f"pod {name} never started; {kubectl} describe pod {name}"
        ).partition("; ")
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
