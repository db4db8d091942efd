"""What an experiment costs an hour, from dated list prices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiment.catalogue.prices import EKS_CONTROL_PLANE, LAB, NAT_GATEWAY, SYSTEM_NODE, TRN2_ON_DEMAND
from experiment.placement import nodes_needed

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment
    from experiment.catalogue.prices import Price

SYSTEM_NODES = 2


@dataclass(frozen=True)
class Item:
    """Units of one priced thing."""

    price: Price
    units: int

    @property
    def usd_per_hour(self) -> float:
        """Dollars an hour for all units."""
        return self.price.usd_per_hour * self.units


def idle(experiment: Experiment) -> tuple[Item, ...]:
    """What is billed while no Trn2 node runs; storage, interface endpoints and traffic come on top."""
    if not experiment.cluster.instance.neuron:
        return (Item(LAB, 1),)
    return (
        Item(EKS_CONTROL_PLANE, 1),
        Item(NAT_GATEWAY, experiment.cluster.network.nat_gateways),
        Item(SYSTEM_NODE, SYSTEM_NODES),
    )


def running(experiment: Experiment) -> tuple[Item, ...]:
    """What is billed while the largest batch of arms stands."""
    if not experiment.cluster.instance.neuron:
        return idle(experiment)
    trn2 = TRN2_ON_DEMAND[experiment.cluster.instance.name]
    return (Item(trn2, nodes_needed(experiment)), *idle(experiment))


def arm_usd_per_hour(experiment: Experiment, arm: Arm) -> float:
    """An arm's part of its Trn2 node, in proportion to its devices."""
    if not experiment.cluster.instance.neuron:
        return 0.0
    node = TRN2_ON_DEMAND[experiment.cluster.instance.name].usd_per_hour
    return node * arm.serving.devices / experiment.cluster.instance.devices


def per_hour(items: tuple[Item, ...]) -> float:
    """Dollars an hour."""
    return sum(item.usd_per_hour for item in items)
