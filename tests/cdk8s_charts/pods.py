"""The pods behind rendered objects: one view of Deployments, Jobs and CronJobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Object = dict[str, Any]
_FACTORS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9} | {
    f"{unit}i": 1024.0**power for power, unit in enumerate("KMGT", 1)
}
NEURON_RESOURCE = "aws.amazon.com/neuron"


def quantity(value: Any) -> float:
    """`100m`, `1.5Gi` or a plain number."""
    text = str(value)
    number = text.rstrip("mkMGTKi")
    return float(number) * _FACTORS[text[len(number) :]]


@dataclass(frozen=True, eq=False)
class Pod:
    """An object that makes pods."""

    owner: Object

    @property
    def kind(self) -> str:
        return str(self.owner["kind"])

    @property
    def name(self) -> str:
        return str(self.owner["metadata"]["name"])

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"

    @cached_property
    def job(self) -> Object:
        """Specification of the Job, for a Job and a CronJob."""
        spec: Object = self.owner["spec"]
        return spec["jobTemplate"]["spec"] if self.kind == "CronJob" else spec

    @cached_property
    def spec(self) -> Object:
        found: Object = self.job["template"]["spec"]
        return found

    @cached_property
    def metadata(self) -> Object:
        """Labels and annotations of the pods."""
        return self.job["template"].get("metadata") or {}

    @property
    def containers(self) -> list[Object]:
        """Init containers first."""
        return [*(self.spec.get("initContainers") or ()), *self.spec["containers"]]

    @property
    def volumes(self) -> dict[str, Object]:
        return {volume["name"]: volume for volume in self.spec.get("volumes") or ()}


def pods_of(objects: Iterable[Object]) -> list[Pod]:
    return [Pod(item) for item in objects if item["kind"] in ("Deployment", "Job", "CronJob")]


def named(objects: Iterable[Object], kind: str) -> dict[str, Object]:
    """Objects of a kind by name."""
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}


def words(container: Object) -> Iterator[str]:
    """Everything that a container is told."""
    yield from map(str, (*(container.get("command") or ()), *(container.get("args") or ())))
    yield from (str(entry.get("value", "")) for entry in container.get("env") or ())
