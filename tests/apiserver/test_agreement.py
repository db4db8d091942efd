"""The placement check against the real scheduler on random nodes and pods: fits or does not, where, on which devices."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cdk8s_charts.scheduling.cluster import Cluster, Placement, Surroundings
from cdk8s_charts.scheduling.errors import NotModelled, SchedulingError
from cdk8s_charts.scheduling.workloads import Workload
from tests.apiserver.objects import erase, make_namespace
from tests.apiserver.standing import devices_of, unplaced
from tests.apiserver.trials import trial
from tests.apiserver.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cdk8s_charts.scheduling.nodes import Node
    from cdk8s_charts.scheduling.workloads import Object
    from tests.apiserver.control_plane import ControlPlane
    from tests.apiserver.kubectl import Kubectl

TRIALS = 40
NAMESPACE = "agreement"
WHERE = ("-n", NAMESPACE)


@pytest.fixture
def kubectl(scheduling: ControlPlane) -> Iterator[Kubectl]:
    """A namespace that goes away again."""
    make_namespace(
        scheduling.kubectl, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}]
    )
    wait_until(
        lambda: scheduling.kubectl.run("get", "serviceaccount", "default", *WHERE).returncode == 0,
        "the namespace has its service account",
    )
    yield scheduling.kubectl
    erase(scheduling.kubectl, NAMESPACE)


def _decided(kubectl: Kubectl, fits: Mapping[str, bool]) -> dict[str, Object]:
    """The pods, once each has a node, or was looked at without one where the check gives it none.

    One that the check would place has time: the scheduler may hear of nodes and devices after it hears of the pod.
    """
    found: dict[str, Object] = {}

    def looked() -> bool:
        found.update({pod["metadata"]["name"]: pod for pod in kubectl.items("pods", NAMESPACE)})
        return all(
            "nodeName" in found[name]["spec"] or (unplaced(found[name]) and not fit)
            for name, fit in fits.items()
        )

    with suppress(
        AssertionError
    ):  # who is still waiting then is a difference, told with what the scheduler says
        wait_until(looked, "the scheduler has looked at all pods")
    return found


def _held(kubectl: Kubectl) -> dict[str, tuple[str, ...]]:
    claims = kubectl.items("resourceclaims", NAMESPACE)
    return {claim["metadata"]["ownerReferences"][0]["name"]: devices_of(claim) for claim in claims}


def _options(cluster: Cluster, pod: Object) -> dict[str, Placement]:
    """What the check would do with a pod on each of the nodes that take it."""
    found: dict[str, Placement] = {}
    for node in cluster.nodes:
        try:
            found[node.name] = replace(cluster, nodes=(node,)).schedule(Workload(pod))[1]
        except NotModelled:
            raise
        except SchedulingError:
            continue
    return found


def _number(device: str) -> int:
    return int(device.rpartition("-")[2])


def test_check_and_scheduler_agree_pod_by_pod(
    kubectl: Kubectl, nodes_of: Callable[[Sequence[Node]], None]
) -> None:
    """Pods come one at a time in every trial; what the scheduler did with one is what the check then starts from."""
    trials = [trial(number, namespace=NAMESPACE) for number in range(TRIALS)]
    nodes_of([node for each in trials for node in each.nodes])
    assert kubectl.apply(template for each in trials for template in each.templates) == []
    states = {each.name: Cluster(each.nodes, Surroundings.of(each.templates)) for each in trials}
    fitted, differences = list[bool](), list[str]()
    for turn in range(max(len(each.pods) for each in trials)):
        here = [(each, each.pods[turn]) for each in trials if turn < len(each.pods)]
        assert kubectl.feed([pod for _, pod in here], "create") == []
        predicted = {pod["metadata"]["name"]: _options(states[each.name], pod) for each, pod in here}
        pods = _decided(kubectl, {name: bool(options) for name, options in predicted.items()})
        held = _held(kubectl)
        for each, pod in here:
            name = pod["metadata"]["name"]
            options = predicted[name]
            node = pods[name]["spec"].get("nodeName")
            fitted.append(node is not None)
            difference = _difference(node, held.get(name, ()), options)
            if difference:
                differences.append(f"{name}: {difference}; {_said(pods[name])}")
            if node is not None and node in options:
                states[each.name] = _with(states[each.name], options[node], held[name])
    assert differences == []
    assert 0.25 < sum(fitted) / len(fitted) < 0.75, "both answers are tried"
    late = {name for name, pod in _decided(kubectl, {}).items() if "nodeName" in pod["spec"]}
    assert len(late) == sum(fitted), "a pod that did not fit still does not"


def _difference(node: str | None, devices: tuple[str, ...], options: dict[str, Placement]) -> str | None:
    if node is None:
        return f"the check would put it on {sorted(options)}" if options else None
    if node not in options:
        return f"the scheduler put it on {node}, the check {sorted(options) or 'nowhere'}"
    expected = tuple(sorted(options[node].devices, key=_number))
    return None if devices == expected else f"has {devices}, the check {expected}"


def _with(cluster: Cluster, placement: Placement, devices: tuple[str, ...]) -> Cluster:
    return replace(cluster, placed=(*cluster.placed, replace(placement, devices=devices)))


def _said(pod: dict[str, Any]) -> str:
    return " ".join(unplaced(pod)) or "placed"
