"""Pods onto nodes: the filters of kube-scheduler that pods here meet, over a state that remembers who holds what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdk8s_charts.scheduling.allocator import NEURON_CLASS, Demand, allocate, demand
from cdk8s_charts.scheduling.errors import NeverSatisfied, NothingFree, NotModelled, SchedulingError
from cdk8s_charts.scheduling.mounts import Mount, Volume, needed, s3_volumes, total
from cdk8s_charts.scheduling.quantities import Amounts
from cdk8s_charts.scheduling.workloads import named

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cdk8s_charts.scheduling.nodes import Node
    from cdk8s_charts.scheduling.workloads import Object, Workload

NEURON_SCHEDULER = "my-scheduler"
"""Name under which the Neuron scheduler extension's kube-scheduler runs (values of the Neuron Helm chart)."""
CONTIGUOUS = (1, 4, 8, 16)


@dataclass(frozen=True)
class Surroundings:
    """Objects that pods refer to."""

    classes: Mapping[str, Object]
    templates: Mapping[str, Object]
    volumes: Mapping[str, Volume]
    """By PersistentVolumeClaim, those of the S3 CSI driver only."""

    @classmethod
    def of(cls, objects: Iterable[Object]) -> Surroundings:
        """Those among rendered objects, and the class that the Neuron chart makes."""
        known = tuple(objects)
        classes = {NEURON_CLASS["metadata"]["name"]: NEURON_CLASS, **named(known, "DeviceClass")}
        return cls(classes, named(known, "ResourceClaimTemplate"), s3_volumes(known))


@dataclass(frozen=True)
class Placement:
    """Where one pod stands."""

    node: str
    devices: tuple[str, ...]
    asks: Amounts
    mounts: frozenset[Mount]
    """Mountpoint pods that it needs on the node."""


@dataclass(frozen=True)
class Cluster:
    """Nodes and the pods on them; scheduling returns a new state."""

    nodes: tuple[Node, ...]
    surroundings: Surroundings
    placed: tuple[Placement, ...] = ()

    def taken(self, node: str) -> frozenset[str]:
        """Devices that pods hold on a node."""
        return frozenset(device for place in self.placed if place.node == node for device in place.devices)

    def mounts(self, node: str) -> frozenset[Mount]:
        """Mountpoint pods that run on a node."""
        return frozenset(mount for place in self.placed if place.node == node for mount in place.mounts)

    def free(self, node: Node) -> Amounts:
        """What pods can still ask of a node."""
        left = node.free - total(self.mounts(node.name))
        for place in self.placed:
            if place.node == node.name:
                left -= place.asks
        return left

    def without(self, place: Placement) -> Cluster:
        """The state after a pod has ended."""
        rest = list(self.placed)
        rest.remove(place)
        return Cluster(self.nodes, self.surroundings, tuple(rest))

    def schedule(self, workload: Workload, *, spread: bool = False) -> tuple[Cluster, Placement]:
        """Put one pod on the first node that takes it; with `spread`, nodes with fewer pods come first.

        Raises `SchedulingError`: `NeverSatisfied` or `NotModelled` when no order of things could help.
        """
        _refuse_unknown(workload)
        wanted = claims(workload, self.surroundings)
        order = sorted(self.nodes, key=lambda node: len(self.taken(node.name))) if spread else self.nodes
        errors: list[SchedulingError] = []
        for node in order:
            if _repelled(workload, node):
                continue
            try:
                placement = self._fit(workload, wanted, node)
            except SchedulingError as error:
                errors.append(error)
                continue
            return Cluster(self.nodes, self.surroundings, (*self.placed, placement)), placement
        if not errors:
            raise NeverSatisfied(
                f"no node has the labels {workload.spec.get('nodeSelector') or {}} and tolerated taints"
            )
        raise next((error for error in errors if isinstance(error, NothingFree)), errors[0])

    def _fit(self, workload: Workload, wanted: tuple[Demand, ...], node: Node) -> Placement:
        mounts = needed(workload, self.surroundings.volumes)
        asks = workload.requests()
        new = mounts - self.mounts(node.name)
        if short := self.free(node).short_of(asks + total(new)):
            kind = NeverSatisfied if node.free.short_of(asks + total(mounts)) else NothingFree
            counted = f" (with {len(new)} Mountpoint pods)" if new else ""
            raise kind(f"node {node.name}: {'; '.join(short)}{counted}")
        taken = self.taken(node.name)
        devices: list[str] = []
        for claim in wanted:
            devices += allocate(claim, node.devices, taken | frozenset(devices))
        if asks.neuron:
            devices += _contiguous(workload, asks.neuron, node, taken)
        return Placement(node.name, tuple(devices), asks, mounts)


def claims(workload: Workload, surroundings: Surroundings) -> tuple[Demand, ...]:
    """The claims of a pod, read. Raises `NeverSatisfied` for a template that nobody rendered."""
    found = []
    for entry in workload.spec.get("resourceClaims") or ():
        template = entry.get("resourceClaimTemplateName")
        if template is None:
            raise NotModelled(
                f"claim {entry.get('name')} is not made from a template; use resourceClaimTemplateName"
            )
        if template not in surroundings.templates:
            raise NeverSatisfied(
                f"claim template {template!r} is not rendered, so the pod is never considered"
            )
        found.append(demand(surroundings.templates[template]["spec"]["spec"], surroundings.classes))
    return tuple(found)


def _contiguous(workload: Workload, count: int, node: Node, taken: frozenset[str]) -> list[str]:
    """Devices of the device plugin, as the Neuron scheduler extension picks them: a connected group.

    https://awsdocs-neuron.readthedocs-hosted.com/en/latest/containers/k8s-neuron-scheduler.html
    """
    if count not in CONTIGUOUS:
        raise NeverSatisfied(
            f"{count} devices are no connected group; ask for {', '.join(map(str, CONTIGUOUS))}"
        )
    if 1 < count < node.plugin_devices and workload.spec.get("schedulerName") != NEURON_SCHEDULER:
        raise NeverSatisfied(
            f"{count} of {node.plugin_devices} devices need the scheduler extension to be connected; set schedulerName "
            f"{NEURON_SCHEDULER}"
        )
    for first in range(0, node.plugin_devices, count):
        group = [f"neuron{number}" for number in range(first, first + count)]
        if not taken & set(group):
            return group
    raise NothingFree(f"no connected group of {count} devices is free")


def _repelled(workload: Workload, node: Node) -> bool:
    selector = workload.spec.get("nodeSelector") or {}
    if not selector.items() <= node.labels.items():
        return True
    return any(not _tolerated(taint, workload.spec.get("tolerations") or ()) for taint in node.taints)


def _tolerated(taint: tuple[str, str], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    key, effect = taint
    return any(
        entry.get("key", key) == key
        and entry.get("effect") in (None, "", effect)
        and (entry.get("operator") == "Exists" or entry.get("value") == "true")
        for entry in tolerations
    )


def _refuse_unknown(workload: Workload) -> None:
    affinity = workload.spec.get("affinity") or {}
    for kind, rules in affinity.items():
        if rules.get("requiredDuringSchedulingIgnoredDuringExecution"):
            raise NotModelled(f"a required {kind} is not known to this check; use nodeSelector")
    for entry in workload.spec.get("topologySpreadConstraints") or ():
        if entry.get("whenUnsatisfiable") == "DoNotSchedule":
            raise NotModelled(
                "a topology spread that must hold is not known to this check; use ScheduleAnyway"
            )
