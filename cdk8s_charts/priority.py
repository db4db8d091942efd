"""Who goes first when a node is full: servers before jobs, and nobody is thrown out for another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts.lift import content_suffix, kubernetes_object

if TYPE_CHECKING:
    from experiment.arms import Experiment

SERVING = "serving"
JOBS = "jobs"
MEASURING = "measuring"
"""What loads the servers: the benchmark and the quality check."""
_VALUES = {SERVING: 10_000, JOBS: 1_000, MEASURING: 1_000}


def priority_classes(experiment: Experiment) -> list[dict[str, Any]]:
    """Every class. They cannot be changed, so their names carry a hash of their content."""
    return [_priority_class(experiment, purpose) for purpose in _VALUES]


def priority_name(experiment: Experiment, purpose: str) -> str:
    """What pods of `SERVING`, `JOBS` or `MEASURING` name."""
    return str(_priority_class(experiment, purpose)["metadata"]["name"])


def one_run_at_a_time(experiment: Experiment) -> dict[str, Any]:
    """A quota of one pod that measures: a CronJob's `Forbid` says nothing about Jobs that people make from it.

    The pod of a second run is refused until the first has ended, and its Job tries again.
    """
    name = priority_name(experiment, MEASURING)
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": [name]}
    spec = {"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [scope]}}
    return kubernetes_object("v1", "ResourceQuota", "one-run-at-a-time", within=experiment, spec=spec)


def _priority_class(experiment: Experiment, purpose: str) -> dict[str, Any]:
    content: dict[str, Any] = {
        "value": _VALUES[purpose],
        "globalDefault": False,
        # A preempted server would lose its devices in the middle of a measurement.
        "preemptionPolicy": "Never",
        "description": f"{purpose} of experiment {experiment.name}",
    }
    name = f"{experiment.name}-{purpose}-{content_suffix(content)}"
    return kubernetes_object("scheduling.k8s.io/v1", "PriorityClass", name, **content)
