"""How Trn2 nodes are bought, how many, and the ways out of their subnets."""

from __future__ import annotations

import calendar
import re
from typing import TYPE_CHECKING

from experiment.catalogue.instances import INSTANCES
from experiment.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.schema import ExpandedFile

_CAPACITY = "cluster.capacity"
_INSTANT = re.compile(
    r"(20\d\d)-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?Z", re.ASCII
)
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


def purchase(file: ExpandedFile) -> Iterator[Finding]:
    """Each way of buying has its own fields, all of them and no other."""
    capacity = file.cluster.capacity
    for name, example in _EXAMPLES.items():
        value, path = getattr(capacity, name), f"{_CAPACITY}.{name}"
        needed = name in _NEEDS[capacity.kind]
        if needed and value is None:
            yield Finding(
                path,
                None,
                f"is missing: capacity of kind {capacity.kind} needs it",
                f"give {example}",
                rests_on=(f"{_CAPACITY}.kind",),
            )
        elif value is not None and not needed:
            yield Finding(
                path,
                value,
                _FORBIDDEN_WHY[capacity.kind],
                f"remove it, or say `kind: {' or '.join(kind for kind in _NEEDS if name in _NEEDS[kind])}`",
                rests_on=(f"{_CAPACITY}.kind",),
            )


def end(file: ExpandedFile) -> Iterator[Finding]:
    """The end of a block is an instant in UTC."""
    value = file.cluster.capacity.ends_at
    if value is not None and not _is_instant(value):
        yield Finding(
            f"{_CAPACITY}.ends_at", value, "is no instant in UTC", 'write it as "2026-12-05T11:30:00Z"'
        )


def _is_instant(text: str) -> bool:
    found = _INSTANT.fullmatch(text)
    return found is not None and int(found[3]) <= calendar.monthrange(int(found[1]), int(found[2]))[1]


def counts(file: ExpandedFile) -> Iterator[Finding]:
    """What starts at deploy time stays within what may ever run."""
    cluster, instance = file.cluster, INSTANCES.get(file.cluster.instance)
    if instance is not None and not instance.neuron and cluster.nodes:
        yield Finding(
            "cluster.nodes",
            cluster.nodes,
            f"{instance.name} is the lab's own machine, nothing is started for it",
            "use 0",
            rests_on=("cluster.instance",),
        )
    elif cluster.nodes > cluster.max_nodes:
        yield Finding(
            "cluster.nodes",
            cluster.nodes,
            f"is above cluster.max_nodes {cluster.max_nodes}",
            f"use {cluster.max_nodes} or less, or raise max_nodes",
            rests_on=("cluster.max_nodes",),
        )
    if cluster.network.nat_gateways > len(cluster.availability_zones):
        yield Finding(
            "cluster.network.nat_gateways",
            cluster.network.nat_gateways,
            f"there are {len(cluster.availability_zones)} zones, and one gateway a zone is the most",
            f"use 1 to {len(cluster.availability_zones)}",
            rests_on=("cluster.availability_zones",),
        )
