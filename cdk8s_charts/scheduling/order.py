"""Can the pods that an apply starts, in whatever order they come, end up waiting for each other's devices for ever?

A pod holds its claim from scheduling on, also while an init container waits or is restarted because it refused. So a
server that waits for a compile Job which needs the same devices waits for ever.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdk8s_charts.scheduling.errors import SchedulingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdk8s_charts.scheduling.cluster import Cluster, Placement
    from cdk8s_charts.scheduling.workloads import Workload

ARTIFACT_ANNOTATION = "speculation.trn2/artifact-key"
_LOOP = re.compile(r"\b(until|while|sleep|wait)\b")
_LIMIT = 500
"""States looked at; beyond, the searched orders are those in which pods that never let go come first."""


@dataclass(frozen=True)
class Waiting:
    """A pod and the Jobs that must have ended before it can work."""

    workload: Workload
    jobs: frozenset[str]


def started(pods: Sequence[Workload]) -> tuple[Waiting, ...]:
    """The pods that are there at once: those that applying starts, those that wait in a loop, and what they wait for."""
    jobs = [pod for pod in pods if pod.kind == "Job"]
    waits = {pod.label: _waits_for(pod, jobs) for pod in pods}
    alive = [
        pod
        for pod in pods
        if pod.pods > 0 or (waits[pod.label] and any(_LOOP.search(text) for text in _init_words(pod)))
    ]
    needed = frozenset[str]().union(*(waits[pod.label] for pod in alive))
    alive += [job for job in jobs if job.name in needed and job not in alive]
    return tuple(Waiting(pod, waits[pod.label]) for pod in alive for _ in range(max(1, pod.pods)))


def deadlock(cluster: Cluster, pods: Sequence[Waiting]) -> str | None:
    """One line about an order that ends with pods waiting for ever, or `None`.

    A Job that waits for nobody and that nobody waits for always ends and gives back what it held, so it is left out.
    """
    needed = frozenset[str]().union(*(pod.jobs for pod in pods))
    pods = [pod for pod in pods if pod.jobs or not pod.workload.ends or pod.workload.name in needed]
    todo = tuple(
        sorted(range(len(pods)), key=lambda number: (pods[number].workload.ends, not pods[number].jobs))
    )
    if not any(pods[number].jobs for number in todo):
        return None  # nobody waits while holding
    seen: set[tuple[frozenset[int], frozenset[str], tuple[tuple[str, ...], ...]]] = set()
    stack: list[tuple[Cluster, dict[int, Placement], frozenset[int], frozenset[str]]] = [
        (cluster, {}, frozenset(todo), frozenset())
    ]
    while stack and len(seen) < _LIMIT:
        state, running, pending, done = stack.pop()
        key = (pending, done, tuple(place.devices for _, place in sorted(running.items())))
        if key in seen:
            continue
        seen.add(key)
        moves = _moves(state, running, pending, done, pods)
        stuck = [number for number in (*running, *pending) if not pods[number].jobs <= done]
        if not moves and stuck:
            return _story(pods, running, pending, done)
        stack += reversed(moves)
    return None


def _moves(
    state: Cluster,
    running: dict[int, Placement],
    pending: frozenset[int],
    done: frozenset[str],
    pods: Sequence[Waiting],
) -> list[tuple[Cluster, dict[int, Placement], frozenset[int], frozenset[str]]]:
    """Every state one step on, those first in which a pod that holds on comes first."""
    moves = []
    for number in sorted(pending, key=lambda each: (pods[each].workload.ends, each)):
        try:
            later, place = state.schedule(pods[number].workload)
        except SchedulingError:
            continue
        moves.append((later, {**running, number: place}, pending - {number}, done))
    for number, place in running.items():
        pod = pods[number]
        if pod.workload.ends and pod.jobs <= done:
            rest = {each: where for each, where in running.items() if each != number}
            moves.append((state.without(place), rest, pending, done | {pod.workload.name}))
    return moves


def _story(
    pods: Sequence[Waiting], running: dict[int, Placement], pending: frozenset[int], done: frozenset[str]
) -> str:
    holders = [pods[number] for number in running]
    wanted = sorted(set().union(*(pod.jobs - done for pod in holders)) if holders else set())
    blocked = sorted(pods[number].workload.label for number in pending)
    held = ", ".join(sorted({pod.workload.label for pod in holders if pod.jobs - done}))
    return (
        f"{held} hold{'s' if ',' not in held else ''} devices while waiting for Job {', '.join(wanted)}, and "
        f"{', '.join(blocked)} cannot start without them; render the waiting pods at 0 replicas until the Jobs have ended"
    )


def _waits_for(pod: Workload, jobs: Sequence[Workload]) -> frozenset[str]:
    """Jobs that an init container names, and the Job that makes the artifact which one checks."""
    words = " ".join(_init_words(pod))
    found = {
        job.name
        for job in jobs
        # The plain look first: a sweep has hundreds of Jobs, and next to none is named.
        if job.name in words and job.label != pod.label and re.search(rf"\b{re.escape(job.name)}\b", words)
    }
    key = pod.annotations.get(ARTIFACT_ANNOTATION)
    if key and key in words and pod.kind != "Job":
        found |= {job.name for job in jobs if job.annotations.get(ARTIFACT_ANNOTATION) == key}
    return frozenset(found)


def _init_words(pod: Workload) -> list[str]:
    """Everything that the init containers are told."""
    return [
        str(word)
        for container in pod.spec.get("initContainers") or ()
        for word in (
            *(container.get("command") or ()),
            *(container.get("args") or ()),
            *(entry.get("value", "") for entry in container.get("env") or ()),
        )
    ]
