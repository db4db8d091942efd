"""Why pods do not run, and what to do: `pod_trouble.yaml` has the causes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from trnspec.experiment import Experiment
from trnspec.experiment.catalogue.models import table_of
from trnspec.operations.cloud.cloudformation import deploy_workloads
from trnspec.operations.cloud.kubernetes import Object, condition, container_statuses, pods_of

_STARTS = ("ContainerCreating", "PodInitializing")
"""Reasons of a container that is starting: its image is pulled or its volumes are mounted."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """One reason of one pod."""

    pod: str
    why: str
    remedy: str
    lasting: bool = False
    """The pod never starts unless somebody helps, if this stays for minutes."""
    unscheduled: bool = False
    of_image: bool = False
    """Another node would meet it too."""


def troubles(
    experiment: Experiment, pods: Sequence[Object], name: str, events: Sequence[Object] = ()
) -> list[Trouble]:
    """Return why pods of a Deployment or a Job do not run, what lasts first; empty if all run or are starting.

    `events` are those of the namespace: what keeps a pod from its volumes, its devices or its network is nowhere else.
    """
    found = [trouble for pod in pods_of(pods, name) for trouble in _of_pod(experiment, pod, events)]
    if not pods_of(pods, name) and events:
        found = [*_known(experiment, "job", name, _newest_event("Job", name, events))]
    return sorted(dict.fromkeys(found), key=lambda one: not one.lasting)


def trouble(experiment: Experiment, pods: Sequence[Object], name: str, events: Sequence[Object] = ()) -> str:
    """Return `troubles` as a line."""
    return in_words(troubles(experiment, pods, name, events))


def in_words(found: Sequence[Trouble]) -> str:
    """Return a line with the first reason, its remedy, and the other reasons; empty without any."""
    first = [f"{one.why}; {one.remedy}" for one in found[:1]]
    return "; also ".join([*first, *(one.why for one in found[1:])])


def have_started(pods: Sequence[Object], name: str) -> bool:
    """Return whether each pod of a Deployment or a Job has started a container, so that its events say nothing more."""
    own = pods_of(pods, name)
    return bool(own) and all(any(map(_has_run, container_statuses(pod))) for pod in own)


def _has_run(status: Object) -> bool:
    return not {"running", "terminated"}.isdisjoint(status.get("state", {}))


def _of_pod(experiment: Experiment, pod: Object, events: Sequence[Object]) -> Iterator[Trouble]:
    name = pod["metadata"]["name"]
    statuses = container_statuses(pod)
    if (unscheduled := condition(pod, "PodScheduled", "False")) is not None:
        reported = "Unschedulable", unscheduled.get("message", "no reason given")
        yield from _known(experiment, "pod", name, reported)
    waiting = [status["state"]["waiting"] for status in statuses if "waiting" in status.get("state", {})]
    reasons = [(one.get("reason", ""), one.get("message", one.get("reason", ""))) for one in waiting]
    for reason in reasons:
        yield from _known(experiment, "pod", name, reason)
    if not any(map(_has_run, statuses)) and all(reason in _STARTS for reason, _ in reasons):
        yield from _known(experiment, "pod", name, _newest_event("Pod", name, events))
    for status in statuses:
        ended = status.get("state", {}).get("terminated") or status.get("lastState", {}).get("terminated")
        if ended and ended.get("exitCode", 0) != 0:
            killed = ended.get("reason") == "OOMKilled"
            cause = "ran out of memory" if killed else f"ended with exit {ended['exitCode']}"
            why = f"pod {name}, container {status.get('name')}, {cause}"
            remedy = f"read ./trnspec kubectl {experiment.file} logs {name} -c {status.get('name')}"
            yield Trouble(pod=name, why=why, remedy=remedy)


def _known(experiment: Experiment, kind: str, name: str, reported: tuple[str, str]) -> Iterator[Trouble]:
    """Yield what the table says of a reason and its message, if it has it."""
    reason, message = reported[0], " ".join(reported[1].split())
    for entry in causes():
        if reason not in entry.get("reasons", (reason,)) or not re.search(entry.get("words", ""), message):
            continue
        yield Trouble(
            pod=name,
            why=f"{kind} {name} {entry['says'].format(said=message)}",
            remedy=entry["remedy"].format(file=experiment.file, deploy=deploy_workloads(experiment)),
            lasting=not entry.get("waits", False),
            unscheduled=reason == "Unschedulable",
            of_image=entry.get("of_image", False),
        )
        return


@cache
def causes() -> list[dict[str, Any]]:
    return list(table_of(__file__))


def _newest_event(kind: str, name: str, events: Sequence[Object]) -> tuple[str, str]:
    """Return reason and message of the newest event about an object: an older one may be over."""
    wanted = {"kind": kind, "name": name}.items()
    about = [event for event in events if wanted <= event.get("involvedObject", {}).items()]
    newest = max(about, key=_time, default={})
    return newest.get("reason", ""), newest.get("message", "")


def _time(event: Object) -> str:
    """Return when an event was last seen. The scheduler counts in a series, the kubelet in the event."""
    seen = event.get("series", {}).get("lastObservedTime") or event.get("lastTimestamp")
    return str(seen or event.get("eventTime") or event["metadata"].get("creationTimestamp", ""))
