"""Networks that are let in: somebody's own, never everybody's."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from experiment.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WIDEST_PREFIX = 8
"""No organisation's own networks are wider."""


def own_networks(path: str, cidrs: Sequence[str], *, opens: str) -> Iterator[Problem]:
    """IPv4 networks as AWS writes them, none of which opens a thing to the world."""
    for number, cidr in enumerate(cidrs):
        where = f"{path}[{number}]"
        try:
            network = ipaddress.IPv4Network(cidr)
        except ValueError as error:
            yield Problem(where, cidr, f"is no IPv4 network ({error})", "write it as 203.0.113.7/32")
            continue
        if str(network) != cidr:
            yield Problem(where, cidr, "is not how EKS takes a network", f"write it as {network}")
        if network.prefixlen < WIDEST_PREFIX:
            yield Problem(
                where,
                cidr,
                f"opens {opens} to everybody, or to more than a /{WIDEST_PREFIX}",
                "list your own networks, or none for a private endpoint",
            )
