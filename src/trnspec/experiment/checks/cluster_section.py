"""Checks of the cluster: version, region, purchase option of Trn2 nodes, and networks with access. They need no arm."""

from __future__ import annotations

import calendar
import ipaddress
import re
from collections.abc import Iterator

from trnspec.core.findings import Finding
from trnspec.experiment.catalogue.instances import INSTANCES, OFFERED_ON, REGION, ZONES
from trnspec.experiment.model import Cluster
from trnspec.experiment.refusals import refused

OLDEST_KUBERNETES = (1, 35)
"""DRA is generally available from 1.34, whose standard support on EKS ends on 2026-12-02."""
NEWEST_KUBERNETES = (1, 36)
"""The newest for which EKS publishes Neuron AMIs (amazon-eks-ami v20260714)."""
_TRN2_REGIONS = tuple(dict.fromkeys(region for instance in INSTANCES.values() for region in instance.zones))
_WIDEST_PREFIX = 8
"""Networks of one organisation are not wider, alone or together."""
_RESERVED = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 "
    "192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4"
)
_NOT_PUBLIC = tuple(map(ipaddress.IPv4Network, _RESERVED.split()))
"""Addresses that do not exist on the internet: https://en.wikipedia.org/wiki/Reserved_IP_addresses, which EKS's
documentation names as what a public endpoint does not take
(https://docs.aws.amazon.com/eks/latest/userguide/config-cluster-endpoint.html)."""
_MAX_PUBLIC_NETWORKS = 40
"""Networks of one public endpoint (https://docs.aws.amazon.com/general/latest/gr/eks.html)."""


def kubernetes_version(cluster: Cluster) -> Iterator[Finding]:
    """Resource claims need a version that EKS still supports."""
    version = cluster.kubernetes
    match = re.fullmatch(r"([1-9]\d?)\.(0|[1-9]\d{0,2})", version, re.ASCII)
    floor, top = (".".join(map(str, pair)) for pair in (OLDEST_KUBERNETES, NEWEST_KUBERNETES))
    if match is None:
        yield refused("cluster.kubernetes malformed", version, floor=floor, top=top)
    elif (parsed := (int(match[1]), int(match[2]))) < OLDEST_KUBERNETES:
        yield refused("cluster.kubernetes too-old", version, floor=floor)
    elif parsed > NEWEST_KUBERNETES:
        yield refused("cluster.kubernetes too-new", version, floor=floor, top=top)


def zones(cluster: Cluster) -> Iterator[Finding]:
    """The region must offer the instance type, the zones must be in it, and the zone of the nodes must offer it too."""
    region, instance, names = cluster.region, INSTANCES.get(cluster.instance), cluster.availability_zones
    regions = tuple(instance.zones) if instance else _TRN2_REGIONS
    if region not in regions and (region in ZONES or not REGION.fullmatch(region)):
        name = "cluster.region not-offered" if region in ZONES else "cluster.region unknown"
        what = instance.name if instance else "Trn2"
        yield refused(name, region, what=what, date=OFFERED_ON, regions=", ".join(regions))
        return
    for number, zone in enumerate(names):
        where = f"cluster.availability_zones[{number}]"
        if not _is_in(region, zone):
            yield _foreign(where, zone, region)
        elif zone in names[:number]:
            yield refused("zone twice", zone, at=where)
    offers = instance.zones.get(region, ()) if instance is not None else ()
    if offers and names[0] in ZONES[region] and names[0] not in offers:
        words = {"offered": ", ".join(offers), "first": offers[0], "date": OFFERED_ON}
        at = "cluster.availability_zones[0]"
        yield refused("zone not-offered", names[0], at=at, instance=instance, **words)


def _is_in(region: str, zone: str) -> bool:
    known = ZONES.get(region)
    return zone in known if known else re.fullmatch(rf"{re.escape(region)}[a-z]", zone) is not None


def _foreign(path: str, value: str, region: str, *, what: str = "is not a zone") -> Finding:
    known = ZONES.get(region)
    remedy = f"use one of {', '.join(known)}" if known else f"write it as {region}a"
    return refused("zone foreign", value, at=path, what=what, region=region, remedy=remedy)


def admin_access(cluster: Cluster) -> Iterator[Finding]:
    """The public endpoint is only for the listed networks, which must be IPv4 in AWS's notation, distinct, accepted by EKS, and not
    open to the world, alone or together."""
    cidrs, path = cluster.admin_cidrs, "cluster.admin_cidrs"
    if len(cidrs) > _MAX_PUBLIC_NETWORKS:
        yield refused(f"{path} too-many", list(cidrs), number=len(cidrs), maximum=_MAX_PUBLIC_NETWORKS)
    seen: list[ipaddress.IPv4Network] = []
    for number, cidr in enumerate(cidrs):
        where = f"{path}[{number}]"
        try:
            network = ipaddress.IPv4Network(cidr)
        except ValueError as error:
            yield _no_network(where, cidr, error)
            continue
        if network.prefixlen < _WIDEST_PREFIX:
            yield refused("network too-wide", cidr, at=where, widest=_WIDEST_PREFIX)
            continue
        if str(network) != cidr:
            yield refused("network host-bits", cidr, at=where, network=network)
        elif (other := next((earlier for earlier in seen if earlier.overlaps(network)), None)) is not None:
            yield refused("network overlap", cidr, at=where, other=other)
        seen.append(network)
        reserved = next((earlier for earlier in _NOT_PUBLIC if earlier.overlaps(network)), None)
        if reserved is not None:
            yield refused("network reserved", cidr, at=where, reserved=reserved)
    together = sum(network.num_addresses for network in ipaddress.collapse_addresses(seen))
    if together > 2 ** (32 - _WIDEST_PREFIX):
        yield refused("network too-wide", list(cidrs), at=path, widest=_WIDEST_PREFIX)


def _no_network(where: str, cidr: str, error: ValueError) -> Finding:
    try:
        meant = ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        remedy = "write ADDRESS/PREFIX, and one address with /32"
        return refused("network malformed", cidr, at=where, error=error, remedy=remedy)
    if meant.version == 6:
        return refused("network ipv6", cidr, at=where)
    return refused("network malformed", cidr, at=where, error=error, remedy=f"write it as {meant}")


_INSTANT = re.compile(
    r"(20\d\d)-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?Z", re.ASCII
)
_NEEDS = {
    "on-demand": (),
    "spot": (),
    "reservation": ("reservation_id",),
    "capacity-block": ("reservation_id", "ends_at"),
}
_EXAMPLES = {
    "reservation_id": "the id that EC2 gave it, as in cr-0123456789abcdef0",
    "ends_at": 'its end in UTC, as in "2026-12-05T11:30:00Z", so that the nodes stop before EC2 takes them',
}


def purchase(cluster: Cluster) -> Iterator[Finding]:
    """Each purchase option requires all of its own fields and no others."""
    capacity = cluster.capacity
    for key, example in _EXAMPLES.items():
        value, path = getattr(capacity, key), f"cluster.capacity.{key}"
        needed = key in _NEEDS[capacity.kind]
        if needed and value is None:
            yield refused("capacity missing", None, at=path, kind=capacity.kind, example=example)
        elif value is not None and not needed:
            kinds = " or ".join(kind for kind in _NEEDS if key in _NEEDS[kind])
            yield refused(f"capacity {capacity.kind}", value, at=path, kinds=kinds)
    if capacity.max_usd_per_hour is not None and capacity.kind != "spot":
        yield refused("cluster.capacity.max_usd_per_hour not-spot", capacity.max_usd_per_hour)


def end(cluster: Cluster) -> Iterator[Finding]:
    """The end of a block is an instant in UTC."""
    value = cluster.capacity.ends_at
    found = None if value is None else _INSTANT.fullmatch(value)
    real = found and int(found[3]) <= calendar.monthrange(int(found[1]), int(found[2]))[1]
    if value is not None and not real:
        yield refused("cluster.capacity.ends_at malformed", value)


def counts(cluster: Cluster) -> Iterator[Finding]:
    """The nodes at deploy time are limited by the maximum."""
    nodes, maximum = cluster.nodes, cluster.max_nodes
    if nodes > maximum:
        yield refused("cluster.nodes too-many", nodes, maximum=maximum)


def existing_vpc(cluster: Cluster) -> Iterator[Finding]:
    """An existing VPC needs a subnet in each zone of the nodes, and at least two zones."""
    subnets, path = cluster.network.private_subnets, "cluster.network.private_subnets"
    if subnets and not cluster.network.vpc:
        yield refused(f"{path} without-vpc", None)
    if not cluster.network.vpc or not REGION.fullmatch(cluster.region):
        return
    for place, (zone, subnet) in enumerate(subnets.items()):
        if not _is_in(cluster.region, zone):
            yield _foreign(f"{path}.{zone}", subnet, cluster.region, what=f"{zone} is not a zone")
        elif subnet in list(subnets.values())[:place]:
            yield refused("subnet twice", subnet, at=f"{path}.{zone}", zone=zone)
    if len(subnets) < 2:
        yield refused(f"{path} too-few", subnets or None, zones=", ".join(subnets) or "no zone")
        return
    for zone in cluster.availability_zones:
        if zone not in subnets and _is_in(cluster.region, zone):
            yield refused(f"{path} incomplete", None, zone=zone)


RULES = (kubernetes_version, zones, admin_access, purchase, end, counts, existing_vpc)
