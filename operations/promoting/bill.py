"""What a promoted arm costs while it stands. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiment.catalogue.prices import TRN2_ON_DEMAND

if TYPE_CHECKING:
    from experiment import Experiment
    from experiment.schema import Serve


@dataclass(frozen=True, kw_only=True)
class Bill:
    """Trn2 nodes, which bill whole whatever part of them is used, at list price."""

    nodes: int
    most_nodes: int
    usd_per_hour: float
    most_usd_per_hour: float

    def line(self) -> str:
        """One line for people."""
        first = f"{_nodes(self.nodes)}, ${self.usd_per_hour:.2f} an hour"
        if self.most_nodes == self.nodes:
            return first
        return f"{first}; with all replicas {_nodes(self.most_nodes)}, ${self.most_usd_per_hour:.2f} an hour"


def bill(experiment: Experiment, serve: Serve) -> Bill:
    """Nodes for the least and the most replicas."""
    arm = next(arm for arm in experiment.arms if arm.name == serve.arm)
    on_a_node = experiment.instance.devices // arm.serving.devices
    price = TRN2_ON_DEMAND[experiment.instance.name].usd_per_hour
    nodes, most = (math.ceil(count / on_a_node) for count in (serve.replicas, serve.max_replicas))
    return Bill(nodes=nodes, most_nodes=most, usd_per_hour=nodes * price, most_usd_per_hour=most * price)


def _nodes(count: int) -> str:
    return f"{count} Trn2 node{'' if count == 1 else 's'}"
