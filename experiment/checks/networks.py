"""Networks that are let in: somebody's own, never everybody's."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from experiment.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WIDEST_PREFIX = 8
"""No organisation's own networks are wider, nor all of them together."""
NOT_PUBLIC = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
"""From which nobody comes over the internet: https://en.wikipedia.org/wiki/Reserved_IP_addresses, which EKS's
documentation names as what a public endpoint does not take
(https://docs.aws.amazon.com/eks/latest/userguide/config-cluster-endpoint.html)."""
MOST_PUBLIC = 40
"""Networks of one public endpoint (https://docs.aws.amazon.com/general/latest/gr/eks.html)."""


def own_networks(path: str, cidrs: Sequence[str], *, opens: str) -> Iterator[Finding]:
    """IPv4 networks as AWS writes them, none twice, which do not open a thing to the world, alone or together."""
    seen: list[ipaddress.IPv4Network] = []
    for number, cidr in enumerate(cidrs):
        where = f"{path}[{number}]"
        try:
            network = ipaddress.IPv4Network(cidr)
        except ValueError as error:
            yield _no_network(where, cidr, error)
            continue
        if network.prefixlen < WIDEST_PREFIX:
            yield _too_wide(where, cidr, opens)
            continue
        if str(network) != cidr:
            yield Finding(where, cidr, "is not how EKS takes a network", f"write it as {network}")
        elif (other := next((one for one in seen if one.overlaps(network)), None)) is not None:
            yield Finding(
                where, cidr, f"overlaps {other}, which stands before it", "keep the wider of the two"
            )
        seen.append(network)
    together = sum(network.num_addresses for network in ipaddress.collapse_addresses(seen))
    if together > 2 ** (32 - WIDEST_PREFIX):
        yield _too_wide(path, list(cidrs), opens)


def public_networks(path: str, cidrs: Sequence[str]) -> Iterator[Finding]:
    """What EKS takes at a public endpoint; what is no network at all is left to `own_networks`."""
    if len(cidrs) > MOST_PUBLIC:
        yield Finding(
            path,
            list(cidrs),
            f"has {len(cidrs)} networks, and EKS takes {MOST_PUBLIC}",
            "join neighbours, or list none for a private endpoint",
        )
    for number, cidr in enumerate(cidrs):
        try:
            network = ipaddress.IPv4Network(cidr)
        except ValueError:
            continue
        reserved = next((one for one in NOT_PUBLIC if one.overlaps(network)), None)
        if reserved is not None and network.prefixlen >= WIDEST_PREFIX:
            yield Finding(
                f"{path}[{number}]",
                cidr,
                f"holds private or reserved addresses ({reserved}), which EKS refuses at a public endpoint",
                "name the public addresses that your people come from, or none for a private endpoint",
            )


def _no_network(where: str, cidr: str, error: ValueError) -> Finding:
    try:
        meant = ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        return Finding(
            where, cidr, f"is no IPv4 network ({error})", "write ADDRESS/PREFIX, and one address with /32"
        )
    if meant.version == 6:
        return Finding(where, cidr, "is IPv6, and these networks speak IPv4 only", "name the IPv4 networks")
    return Finding(where, cidr, f"is no IPv4 network ({error})", f"write it as {meant}")


def _too_wide(where: str, value: object, opens: str) -> Finding:
    return Finding(
        where,
        value,
        f"opens {opens} to everybody, or to more than a /{WIDEST_PREFIX}",
        "list your own networks, or none for a private endpoint",
    )
