"""How Trn2 nodes are bought, how many, and the ways out of their subnets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from experiment.catalogue.instances import INSTANCES
from experiment.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.schema import ExpandedFile

_CAPACITY = "cluster.capacity"
_INSTANT = re.compile(r"20\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?Z")
_NEEDS = {
    "on-demand": (),
    "reservation": ("reservation_id", "availability_zone"),
    "capacity-block": ("reservation_id", "availability_zone", "ends_at"),
}
_EXAMPLES = {
    "reservation_id": "the id that EC2 gave it, as in cr-0123456789abcdef0",
    "availability_zone": "its zone, for a reservation holds in one zone only",
    "ends_at": 'its end in UTC, as in "2026-12-05T11:30:00Z", so that the nodes are gone before EC2 takes them',
}
_FORBIDDEN_WHY = {
    "on-demand": "on-demand capacity has none",
    "reservation": "a reservation ends when it is cancelled; only a capacity block has an end",
}


def purchase(file: ExpandedFile) -> Iterator[Problem]:
    """Each way of buying has its own fields, all of them and no other."""
    capacity = file.cluster.capacity
    for name, example in _EXAMPLES.items():
        value, path = getattr(capacity, name), f"{_CAPACITY}.{name}"
        needed = name in _NEEDS[capacity.kind]
        if needed and value is None:
            yield Problem(
                path,
                None,
                f"is missing: capacity of kind {capacity.kind} needs it",
                f"give {example}",
                (f"{_CAPACITY}.kind",),
            )
        elif value is not None and not needed:
            yield Problem(
                path,
                value,
                _FORBIDDEN_WHY[capacity.kind],
                "remove it, or say `kind: capacity-block`",
                (f"{_CAPACITY}.kind",),
            )


def end(file: ExpandedFile) -> Iterator[Problem]:
    """The end of a block is an instant in UTC."""
    value = file.cluster.capacity.ends_at
    if value is not None and not _INSTANT.fullmatch(value):
        yield Problem(
            f"{_CAPACITY}.ends_at", value, "is no instant in UTC", 'write it as "2026-12-05T11:30:00Z"'
        )


def reserved_zone(file: ExpandedFile) -> Iterator[Problem]:
    """Nodes of a reservation start in its zone only, so the network must reach there."""
    zone, zones = file.cluster.capacity.availability_zone, file.cluster.availability_zones
    if zone is not None and zone not in zones:
        yield Problem(
            f"{_CAPACITY}.availability_zone",
            zone,
            "is not among cluster.availability_zones, so there would be no subnet for the nodes",
            f"use one of {', '.join(zones)}, or add it there",
            ("cluster.availability_zones",),
        )


def counts(file: ExpandedFile) -> Iterator[Problem]:
    """What starts at deploy time stays within what may ever run."""
    cluster, instance = file.cluster, INSTANCES.get(file.cluster.instance)
    if instance is not None and not instance.neuron and cluster.nodes:
        yield Problem(
            "cluster.nodes",
            cluster.nodes,
            f"{instance.name} is the lab's own machine, nothing is started for it",
            "use 0",
            ("cluster.instance",),
        )
    elif cluster.nodes > cluster.max_nodes:
        yield Problem(
            "cluster.nodes",
            cluster.nodes,
            f"is above cluster.max_nodes {cluster.max_nodes}",
            f"use {cluster.max_nodes} or less, or raise max_nodes",
            ("cluster.max_nodes",),
        )
    if cluster.network.nat_gateways > len(cluster.availability_zones):
        yield Problem(
            "cluster.network.nat_gateways",
            cluster.network.nat_gateways,
            f"there are {len(cluster.availability_zones)} zones, and one gateway a zone is the most",
            f"use 1 to {len(cluster.availability_zones)}",
            ("cluster.availability_zones",),
        )


RULES = (purchase, end, reserved_zone, counts)
