"""Random nodes and pods, each trial on nodes of its own, so that many can be scheduled at once without meeting."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdk8s_charts.scheduling.devices import GROUP_SIZES, published
from cdk8s_charts.scheduling.nodes import Node
from cdk8s_charts.scheduling.quantities import Amounts

if TYPE_CHECKING:
    from cdk8s_charts.scheduling.workloads import Object

LABEL = "speculation.trn2/trial"
_TAINT = "aws.amazon.com/neuron"
_GIB = 2**30
_OF_NEURON = "device.attributes['neuron.aws.com']"


@dataclass(frozen=True)
class Trial:
    """Nodes, and pods that come one after the other."""

    name: str
    nodes: tuple[Node, ...]
    pods: tuple[Object, ...]
    templates: tuple[Object, ...]


def trial(number: int, *, namespace: str) -> Trial:
    """Always the same for a number."""
    dice, name = random.Random(number), f"trial-{number}"
    nodes = tuple(_node(dice, name, index) for index in range(dice.choice((1, 1, 2, 3))))
    pods, templates = [], []
    for index in range(dice.randint(2, 6)):
        metadata = {"name": f"{name}-{index}", "namespace": namespace}
        templates.append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": metadata,
                "spec": {"spec": {"devices": _devices(dice)}},
            }
        )
        pods.append(_pod(dice, name, metadata))
    return Trial(name, nodes, tuple(pods), tuple(templates))


def _node(dice: random.Random, trial_name: str, index: int) -> Node:
    name, devices = f"{trial_name}-node-{index}", dice.choice((4, 8, 16, 16, 16))
    free = Amounts(
        cpu_m=dice.choice((16_000, 190_000, 190_000, 190_000)),
        memory=dice.choice((256, 1800, 1800, 1800)) * _GIB,
        ephemeral=dice.choice((40, 400, 400, 400)) * _GIB,
        pods=dice.choice((2, 100, 100)),
    )
    taints = ((_TAINT, "NoSchedule"),) if dice.random() < 0.7 else ()
    published_here = published("trn2.48xlarge", node=name, devices=devices, efa=dice.random() < 0.9)
    return Node(name, {LABEL: trial_name}, taints, free, published_here)


def _devices(dice: random.Random) -> Object:
    requests = [_request(dice, "first")]
    if dice.random() < 0.25:
        requests.append(_request(dice, "second"))
    claim: Object = {"requests": requests}
    if dice.random() < 0.7:
        size = dice.choice(GROUP_SIZES)
        over = [requests[0]["name"]] if dice.random() < 0.3 else [one["name"] for one in requests]
        attribute = f"resource.aws.com/devicegroup{size}_id"
        if dice.random() < 0.1:
            attribute = "resource.aws.com/devicegroup_id"
        claim["constraints"] = [{"requests": over, "matchAttribute": attribute}]
    return claim


def _request(dice: random.Random, name: str) -> Object:
    exactly: Object = {"deviceClassName": "neuron.aws.com"}
    if dice.random() < 0.1:
        exactly["allocationMode"] = "All"
    else:
        exactly |= {"allocationMode": "ExactCount", "count": dice.choice((1, 1, 2, 3, 4, 4, 5, 8, 9))}
    if dice.random() < 0.3:
        expression = dice.choice(
            (
                f"{_OF_NEURON}.deviceId < {dice.randint(0, 16)}",
                f"{_OF_NEURON}.topology_x == {dice.randint(0, 3)}",
                f"{_OF_NEURON}.deviceId >= 4 && {_OF_NEURON}.deviceId < 12",
                f"{_OF_NEURON}.instanceType in ['trn2.48xlarge']",
                f"!({_OF_NEURON}.deviceId == 0)",
                # Not every node publishes groups of sixteen: there the expression fails.
                "device.attributes['resource.aws.com'].devicegroup16_id != ''",
            )
        )
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    return {"name": name, "exactly": exactly}


def _pod(dice: random.Random, trial_name: str, metadata: dict[str, Any]) -> Object:
    amounts = {
        "cpu": dice.choice(("100m", "2", "3900m", "60")),
        "memory": dice.choice(("1Gi", "15Gi", "127Gi", "500Gi")),
        "ephemeral-storage": dice.choice(("1Gi", "1Gi", "12Gi", "120Gi")),
    }
    init = {"cpu": dice.choice(("50m", "8", "60"))}
    spec: Object = {
        "automountServiceAccountToken": False,
        "nodeSelector": {LABEL: trial_name},
        "initContainers": [{"name": "before", "image": "none", "resources": {"requests": init}}],
        "containers": [
            {
                "name": "only",
                "image": "none",
                "resources": {"requests": amounts, "claims": [{"name": "neurons"}]},
            }
        ],
        "resourceClaims": [{"name": "neurons", "resourceClaimTemplateName": metadata["name"]}],
    }
    if dice.random() < 0.9:
        spec["tolerations"] = [{"key": _TAINT, "operator": "Exists", "effect": "NoSchedule"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
