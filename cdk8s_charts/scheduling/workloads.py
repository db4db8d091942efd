"""The pods behind rendered objects: one view of Deployments, Jobs and CronJobs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cdk8s_charts.scheduling.quantities import Amounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Object = dict[str, Any]
_TEMPLATES = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "Pod": (),
}


@dataclass(frozen=True)
class Workload:
    """An object that makes pods; `owner` is the object itself, which nobody changes once it is looked at."""

    owner: Object

    @cached_property
    def kind(self) -> str:
        """Kind of the object."""
        return str(self.owner["kind"])

    @cached_property
    def name(self) -> str:
        """Name of the object."""
        return str(self.owner["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Namespace of the object and its pods."""
        return str(self.owner["metadata"].get("namespace", "default"))

    @cached_property
    def label(self) -> str:
        """How messages name it."""
        return f"{self.kind}/{self.name}"

    @property
    def template_path(self) -> str:
        """Where in the object its pod stands."""
        return ".".join(_TEMPLATES[self.kind])

    @property
    def spec_path(self) -> str:
        """Where in the object its pod's specification stands."""
        return ".".join((*_TEMPLATES[self.kind], "spec"))

    @cached_property
    def template(self) -> Object:
        """Pod template, or the pod itself."""
        found = self.owner
        for key in _TEMPLATES[self.kind]:
            found = found[key]
        return found

    @property
    def spec(self) -> Object:
        """Specification of the pod."""
        found: Object = self.template["spec"]
        return found

    @cached_property
    def labels(self) -> dict[str, str]:
        """Labels of the pod."""
        return dict(self.template.get("metadata", {}).get("labels") or {})

    @cached_property
    def annotations(self) -> dict[str, str]:
        """Annotations of the pod."""
        return dict(self.template.get("metadata", {}).get("annotations") or {})

    @property
    def ends(self) -> bool:
        """Whether its pods finish by themselves and give back what they hold."""
        return self.kind in ("Job", "CronJob")

    @property
    def pods(self) -> int:
        """Pods that applying the object starts by itself."""
        spec = self.owner.get("spec", {})
        if self.kind == "Deployment":
            return int(spec.get("replicas", 1))
        return 0 if spec.get("suspend") or self.kind == "CronJob" else 1

    def containers(self) -> Iterator[tuple[str, Object]]:
        """Every container with its path inside the pod's specification, init containers first."""
        for part in ("initContainers", "containers"):
            for container in self.spec.get(part) or ():
                yield f"{part}[{container.get('name', '?')}]", container

    def requests(self) -> Amounts:
        """What the scheduler counts for one pod.

        The main containers with the sidecars, or the hungriest init container with the sidecars before it.
        https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
        """
        sidecars, peak = Amounts(), Amounts()
        for container in self.spec.get("initContainers") or ():
            asked = _requests(container)
            if container.get("restartPolicy") == "Always":
                sidecars += asked
                peak = peak.most(sidecars)
            else:
                peak = peak.most(sidecars + asked)
        total = sidecars
        for container in self.spec["containers"]:
            total += _requests(container)
        return total.most(peak) + Amounts.of(self.spec.get("overhead"), pods=1)


def workloads(objects: Iterable[Object]) -> tuple[Workload, ...]:
    """Everything that makes pods, in the order of the objects."""
    return tuple(Workload(item) for item in objects if item.get("kind") in _TEMPLATES)


def named(objects: Iterable[Object], kind: str) -> dict[str, Object]:
    """Objects of a kind by name."""
    return {item["metadata"]["name"]: item for item in objects if item.get("kind") == kind}


def _requests(container: Mapping[str, Any]) -> Amounts:
    """Requests of a container; a limit without request is its request."""
    resources = container.get("resources") or {}
    return Amounts.of({**(resources.get("limits") or {}), **(resources.get("requests") or {})})
