"""Who goes first when a node is full: servers before jobs, and nobody is thrown out for another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts.lift import content_suffix

if TYPE_CHECKING:
    from experiment.arms import Experiment

SERVING = "serving"
JOBS = "jobs"
_VALUES = {SERVING: 10_000, JOBS: 1_000}


def priority_classes(experiment: Experiment) -> list[dict[str, Any]]:
    """Both classes. They cannot be changed, so their names carry a hash of their content."""
    return [_priority_class(experiment, purpose) for purpose in _VALUES]


def priority_name(experiment: Experiment, purpose: str) -> str:
    """What pods of `SERVING` or `JOBS` name."""
    return str(_priority_class(experiment, purpose)["metadata"]["name"])


def _priority_class(experiment: Experiment, purpose: str) -> dict[str, Any]:
    content = {
        "value": _VALUES[purpose],
        "globalDefault": False,
        # A preempted server would lose its devices in the middle of a measurement.
        "preemptionPolicy": "Never",
        "description": f"{purpose} of experiment {experiment.name}",
    }
    name = f"{experiment.name}-{purpose}-{content_suffix(content)}"
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        **content,
    }
