"""What an experiment costs, an hour and a run, from dated list prices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiment.catalogue.prices import EKS_CONTROL_PLANE, LAB, NAT_GATEWAY, SYSTEM_NODE, TRN2_ON_DEMAND
from experiment.catalogue.published import PLAIN_TPOT_S
from experiment.placement import compilations_at_once, nodes_needed, rounds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from experiment.arms import Arm, Experiment
    from experiment.catalogue.prices import Price

SYSTEM_NODES = 2
"""One a zone, so that DNS outlives a node."""
NODE_START_H = 0.25
VERIFY_H = 0.05
LOAD_H = 0.25
COMPILE_H = 1.0


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
    if not experiment.instance.neuron:
        return (Item(LAB, 1),)
    network = experiment.cluster.network
    gateways = () if network.vpc else (Item(NAT_GATEWAY, network.nat_gateways),)
    return (Item(EKS_CONTROL_PLANE, 1), *gateways, Item(SYSTEM_NODE, SYSTEM_NODES))


def running(experiment: Experiment) -> tuple[Item, ...]:
    """What is billed while the largest batch of arms stands."""
    if not experiment.instance.neuron:
        return idle(experiment)
    trn2 = TRN2_ON_DEMAND[experiment.instance.name]
    return (Item(trn2, nodes_needed(experiment)), *idle(experiment))


def arm_usd_per_hour(experiment: Experiment, arm: Arm) -> float:
    """An arm's part of its Trn2 node, in proportion to its devices."""
    if not experiment.instance.neuron:
        return 0.0
    node = TRN2_ON_DEMAND[experiment.instance.name].usd_per_hour
    return node * arm.serving.devices / experiment.instance.devices


def per_hour(items: Iterable[Item]) -> float:
    """Dollars an hour."""
    return sum(item.usd_per_hour for item in items)


@dataclass(frozen=True)
class Part:
    """One part of a run with Trn2 nodes up."""

    step: str
    hours: float
    assumption: str


@dataclass(frozen=True)
class RunPrice:
    """What a run takes from the first Trn2 node to the last, and everything that is billed in that time."""

    parts: tuple[Part, ...]
    """Empty where the hours were given."""
    hours: float
    usd: float


def run_price(
    experiment: Experiment,
    *,
    to_compile: int | None = None,
    hours: float | None = None,
    items: Iterable[Item] | None = None,
) -> RunPrice:
    """Of a run in which `to_compile` artifacts do not exist yet (default: none of its arms' exists).

    Predicted from assumptions that the parts name; `hours` replaces the prediction, `items` the prices of the list.
    """
    parts = () if hours is not None else _parts(experiment, to_compile)
    length = sum(part.hours for part in parts) if hours is None else hours
    usd_per_hour = per_hour(running(experiment) if items is None else items)
    return RunPrice(parts=parts, hours=length, usd=length * usd_per_hour)


def _parts(experiment: Experiment, to_compile: int | None) -> tuple[Part, ...]:
    settings, standing = experiment.benchmark, rounds(experiment)
    missing = len(experiment.served_arms) if to_compile is None else to_compile
    requests = settings.requests * len(experiment.classes) + settings.warmup
    # A speculating arm is taken for no faster than plain decoding, so this is the most.
    seconds = sum(requests * settings.max_tokens * PLAIN_TPOT_S / level for level in settings.concurrency)
    loads = sum(map(len, standing))
    at_once = compilations_at_once(experiment)
    compiling = Part(
        "compile",
        COMPILE_H * -(-missing // at_once),
        f"assumed: {COMPILE_H:g} h for {min(missing, at_once)} artifacts at once, {missing} in all; no time is published",
    )
    return (
        Part("nodes start", NODE_START_H, "assumed: start, join, image pull"),
        Part("verify", VERIFY_H, "assumed: one short Job"),
        *([compiling] if missing else []),
        Part("load", LOAD_H * len(standing), f"assumed: {LOAD_H:g} h a round of arms"),
        Part(
            "benchmark",
            seconds * loads / 3600,
            f"{loads} arms{' in all rounds' if len(standing) > 1 else ''}, {requests} requests a level, at most "
            f"{settings.max_tokens} tokens of {PLAIN_TPOT_S * 1000:.0f} ms (quoted)",
        ),
    )
