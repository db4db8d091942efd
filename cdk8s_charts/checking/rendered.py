"""The rendered objects as checks look at them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cdk8s_charts.scheduling.workloads import Object, Workload, named, workloads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.arms import Arm, Experiment


@dataclass(frozen=True, eq=False)
class Rendered:
    """All objects of an experiment, and the experiment."""

    experiment: Experiment
    objects: tuple[Object, ...]

    @cached_property
    def pods(self) -> tuple[Workload, ...]:
        """Everything that makes pods."""
        return workloads(self.objects)

    def named(self, kind: str) -> dict[str, Object]:
        """Objects of a kind by name."""
        return self._by_kind.setdefault(kind, named(self.objects, kind))

    @cached_property
    def _by_kind(self) -> dict[str, dict[str, Object]]:
        return {}

    def arms(self) -> Iterator[tuple[Arm, Workload]]:
        """Arms that are services, with their Deployment."""
        deployments = {pod.name: pod for pod in self.pods if pod.kind == "Deployment"}
        for arm in self.experiment.arms:
            if arm.name in deployments:
                yield arm, deployments[arm.name]

    def containers(self) -> Iterator[tuple[Workload, str, Object]]:
        """Every container with its pod and its path in the object."""
        for pod in self.pods:
            for path, container in pod.containers():
                yield pod, f"{pod.spec_path}.{path}", container


def label(item: Object) -> str:
    """`Kind/name` of an object."""
    return f"{item.get('kind')}/{item.get('metadata', {}).get('name')}"


def selects(selector: Any, labels: dict[str, str]) -> bool:
    """Whether a label selector (`matchLabels`, `matchExpressions`) chooses these labels; an empty one chooses all."""
    selector = selector or {}
    if not (selector.get("matchLabels") or {}).items() <= labels.items():
        return False
    return all(_holds(entry, labels) for entry in selector.get("matchExpressions") or ())


def _holds(entry: Any, labels: dict[str, str]) -> bool:
    value, values = labels.get(entry["key"]), entry.get("values") or ()
    match entry["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case _:
            return value is None
