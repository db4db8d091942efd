"""Which devices a claim gets: the allocator of Dynamic Resource Allocation, for the parts of it that claims here use.

Requests with `exactly` (ExactCount or All), selectors of class and request, `matchAttribute` constraints, devices that
others hold; depth first over the devices in the published order, as the real one goes. `tests/apiserver` compares it with a real
kube-scheduler where there is one.
https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdk8s_charts.scheduling.devices import DRIVER
from cdk8s_charts.scheduling.errors import NeverSatisfied, NothingFree, NotModelled
from cdk8s_charts.scheduling.selectors import matches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cdk8s_charts.scheduling.devices import Device

NEURON_CLASS: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": DRIVER},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
}
"""Made by the Neuron Helm chart, not by this project."""
_SUPPORTED = {"deviceClassName", "allocationMode", "count", "selectors"}


@dataclass(frozen=True)
class Request:
    """One request of a claim."""

    name: str
    mode: str
    count: int
    expressions: tuple[str, ...]
    """Selectors of its class, then its own."""


@dataclass(frozen=True)
class Constraint:
    """All devices of these requests have one value of an attribute."""

    requests: tuple[str, ...]
    attribute: str


@dataclass(frozen=True)
class Demand:
    """A claim, read."""

    requests: tuple[Request, ...]
    constraints: tuple[Constraint, ...]


def demand(spec: Mapping[str, Any], classes: Mapping[str, Any]) -> Demand:
    """A claim's `spec`. Raises `NeverSatisfied` for an unknown class, `NotModelled` for a form not known here."""
    devices = spec["devices"]
    requests = tuple(_request(entry, classes) for entry in devices["requests"])
    names = tuple(request.name for request in requests)
    constraints = tuple(_constraint(entry, names) for entry in devices.get("constraints") or ())
    return Demand(requests, constraints)


def allocate(wanted: Demand, devices: Sequence[Device], taken: frozenset[str]) -> tuple[str, ...]:
    """Names of the devices, in request order.

    Raises `NeverSatisfied` when not even the empty node would do, `NothingFree` when others hold what it needs.
    """
    candidates = {request.name: _candidates(request, devices) for request in wanted.requests}
    for constraint in wanted.constraints:
        _refuse_unknown_attribute(constraint, candidates)
    for request in wanted.requests:
        found = len(candidates[request.name])
        if found < request.count:
            raise NeverSatisfied(
                f"request {request.name} wants {request.count} devices and {found} of the node's {len(devices)} match"
            )
    chosen = _search(wanted, candidates, taken)
    if chosen is not None:
        return chosen
    if taken and _search(wanted, candidates, frozenset()) is not None:
        raise NothingFree(f"the devices are held by other pods ({len(taken)} of {len(devices)} are taken)")
    attributes = ", ".join(constraint.attribute for constraint in wanted.constraints)
    raise NeverSatisfied(
        f"no {sum(request.count for request in wanted.requests)} devices of a node share one {attributes}"
    )


def _request(entry: Mapping[str, Any], classes: Mapping[str, Any]) -> Request:
    name = entry["name"]
    if "exactly" not in entry:
        raise NotModelled(f"request {name} has no `exactly`; write exactly: {{deviceClassName, ...}}")
    exactly = entry["exactly"]
    if unknown := exactly.keys() - _SUPPORTED:
        raise NotModelled(f"request {name} uses {', '.join(sorted(unknown))}, which this check does not know")
    class_name = exactly["deviceClassName"]
    if class_name not in classes:
        raise NeverSatisfied(
            f"request {name} names device class {class_name!r}; the cluster has {', '.join(sorted(classes))}"
        )
    selectors = [
        *(classes[class_name].get("spec", {}).get("selectors") or ()),
        *(exactly.get("selectors") or ()),
    ]
    mode = exactly.get("allocationMode", "ExactCount")
    if mode not in ("ExactCount", "All"):
        raise NeverSatisfied(f"request {name} has allocationMode {mode!r}; use ExactCount or All")
    count = int(exactly.get("count", 1)) if mode == "ExactCount" else 1
    return Request(name, mode, count, tuple(entry["cel"]["expression"] for entry in selectors))


def _constraint(entry: Mapping[str, Any], names: tuple[str, ...]) -> Constraint:
    if "matchAttribute" not in entry:
        raise NotModelled(f"constraint {dict(entry)} is not known to this check; use matchAttribute")
    over = tuple(entry.get("requests") or names)
    if unknown := set(over) - set(names):
        raise NeverSatisfied(
            f"a constraint names request {sorted(unknown)[0]!r}; there are {', '.join(names)}"
        )
    return Constraint(over, entry["matchAttribute"])


def _candidates(request: Request, devices: Sequence[Device]) -> tuple[Device, ...]:
    return tuple(
        device for device in devices if all(matches(expression, device) for expression in request.expressions)
    )


def _refuse_unknown_attribute(constraint: Constraint, candidates: Mapping[str, Sequence[Device]]) -> None:
    """The silent kind: such a claim is admitted and then merely never allocated."""
    over = [device for name in constraint.requests for device in candidates[name]]
    if over and all(device.attribute(constraint.attribute) is None for device in over):
        known = sorted({name for device in over for name, _ in device.attributes if "group" in name})
        raise NeverSatisfied(
            f"matchAttribute {constraint.attribute!r} is published by no device, so the claim waits for ever; "
            f"groups of connected devices are {', '.join(known) or 'published on instances with EFA only'}"
        )


def _search(
    wanted: Demand, candidates: Mapping[str, Sequence[Device]], taken: frozenset[str]
) -> tuple[str, ...] | None:
    slots: list[Request] = []
    for request in wanted.requests:
        count = len(candidates[request.name]) if request.mode == "All" else request.count
        slots += [request] * count
    return _fill(slots, (), wanted, candidates, taken)


def _fill(
    slots: list[Request],
    chosen: tuple[tuple[str, Device], ...],
    wanted: Demand,
    candidates: Mapping[str, Sequence[Device]],
    taken: frozenset[str],
) -> tuple[str, ...] | None:
    if len(chosen) == len(slots):
        return tuple(device.name for _, device in chosen)
    request = slots[len(chosen)]
    held = taken | {device.name for _, device in chosen}
    options = [device for device in candidates[request.name] if device.name not in held]
    for constraint in wanted.constraints:
        if request.name in constraint.requests:
            options = _fitting(options, constraint, chosen)
    same = [device for name, device in chosen if name == request.name]
    if same:  # devices of one request are interchangeable: take them in order, never the same set twice
        place = list(candidates[request.name]).index(same[-1])
        options = [device for device in options if device in candidates[request.name][place + 1 :]]
    missing = sum(1 for slot in slots[len(chosen) :] if slot.name == request.name)
    for position, device in enumerate(options):
        if len(options) - position < missing:
            return None
        found = _fill(slots, (*chosen, (request.name, device)), wanted, candidates, taken)
        if found is not None:
            return found
    return None


def _fitting(
    options: list[Device], constraint: Constraint, chosen: tuple[tuple[str, Device], ...]
) -> list[Device]:
    """Those that share the constraint's attribute with what was chosen before."""
    values = {
        device.attribute(constraint.attribute) for name, device in chosen if name in constraint.requests
    }
    return [
        device
        for device in options
        if device.attribute(constraint.attribute) is not None
        and (not values or device.attribute(constraint.attribute) in values)
    ]
