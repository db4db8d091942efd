"""The cluster: version, node image, region, how Trn2 nodes are bought, and the networks that are let in."""

from __future__ import annotations

import calendar
import ipaddress
import re
from typing import TYPE_CHECKING

from core.findings import Finding
from experiment.catalogue.instances import INSTANCES, OFFERED_ON, REGION, ZONES
from experiment.catalogue.node_images import images_of, serving_image, versions_serving
from experiment.checks.treatments import known_runtimes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from experiment.sweeps import ExpandedFile

OLDEST_KUBERNETES = (1, 35)
"""DRA is generally available from 1.34, whose standard support on EKS ends on 2026-12-02."""
NEWEST_KUBERNETES = (1, 36)
"""The newest for which EKS publishes Neuron AMIs (amazon-eks-ami v20260714)."""
_TRN2_REGIONS = tuple(dict.fromkeys(region for instance in INSTANCES.values() for region in instance.zones))
_WIDEST_PREFIX = 8
"""No organisation's own networks are wider, nor all of them together."""
_RESERVED = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 "
    "192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4"
)
_NOT_PUBLIC = tuple(map(ipaddress.IPv4Network, _RESERVED.split()))
"""From which nobody comes over the internet: https://en.wikipedia.org/wiki/Reserved_IP_addresses, which EKS's
documentation names as what a public endpoint does not take
(https://docs.aws.amazon.com/eks/latest/userguide/config-cluster-endpoint.html)."""
_MOST_PUBLIC = 40
"""Networks of one public endpoint (https://docs.aws.amazon.com/general/latest/gr/eks.html)."""


def kubernetes_version(file: ExpandedFile) -> Iterator[Finding]:
    """Resource claims need a version that EKS still supports."""
    path, version = "cluster.kubernetes", file.cluster.kubernetes
    match = re.fullmatch(r"([1-9]\d?)\.(0|[1-9]\d{0,2})", version, re.ASCII)
    floor, top = (".".join(map(str, pair)) for pair in (OLDEST_KUBERNETES, NEWEST_KUBERNETES))
    either = f'use "{floor}" or "{top}"'
    if match is None:
        yield Finding(path, version, "is not a valid Kubernetes version", either)
    elif (parsed := (int(match[1]), int(match[2]))) < OLDEST_KUBERNETES:
        why = f"is below {floor}: Neuron resource claims need the GA API and a supported version"
        yield Finding(path, version, why, f'use "{floor}" or later')
    elif parsed > NEWEST_KUBERNETES:
        yield Finding(path, version, "has no Neuron AMI and no kubectl layer known to this release", either)


def node_driver(file: ExpandedFile) -> Iterator[Finding]:
    """Some node image must have a Neuron driver that every arm's runtime library takes: the arms share their nodes."""
    instance, wanted = file.instance, file.cluster.kubernetes
    bounded = {path: runtime for path, runtime in known_runtimes(file).items() if runtime.drivers}
    images, runtimes = images_of(wanted), list(bounded.values())
    if instance is None or not instance.neuron or not images or serving_image(wanted, runtimes):
        return
    paths = list(bounded)
    last = next(n for n in range(len(runtimes)) if serving_image(wanted, runtimes[: n + 1]) is None)
    bounds = ", ".join(f"{runtime.name} takes driver {runtime.drivers}" for runtime in runtimes[: last + 1])
    newer = [f'set cluster.kubernetes to "{other}"' for other in versions_serving(runtimes)]
    why = (
        f"no node image for Kubernetes {wanted} serves {'these runtimes' if last else 'it'}: {bounds}, the images have "
        f"{', '.join(image.neuron_driver for image in images)}"
    )
    otherwise = "give each runtime an experiment of its own" if last else "use another runtime"
    related = ("cluster.kubernetes", *paths[:last])
    yield Finding(paths[last], runtimes[last].name, why, ", or ".join([*newer, otherwise]), rests_on=related)


def zones(file: ExpandedFile) -> Iterator[Finding]:
    """A region that offers the instance type, zones inside it, and nodes in one that offers it as well."""
    region, instance = file.cluster.region, file.instance
    regions = tuple(instance.zones) if instance else _TRN2_REGIONS
    if instance is not None and not instance.neuron:
        return
    if region not in regions and (region in ZONES or not REGION.fullmatch(region)):
        why = f"EC2 does not offer {instance.name if instance else 'Trn2'} there (read {OFFERED_ON})"
        why = why if region in ZONES else "is not the name of a region in the partition aws"
        remedy = f"use one of {', '.join(regions)}"
        yield Finding("cluster.region", region, why, remedy, rests_on=("cluster.instance",))
        return
    names = file.cluster.availability_zones
    for number, zone in enumerate(names):
        path = f"cluster.availability_zones[{number}]"
        if not _is_in(region, zone):
            yield _foreign(path, zone, region)
        elif zone in names[:number]:
            yield Finding(path, zone, "appears twice", "EKS needs two different zones")
    reserved = file.cluster.capacity.availability_zone
    if reserved is not None and not _is_in(region, reserved):
        yield _foreign("cluster.capacity.availability_zone", reserved, region)
    if instance is None or region not in regions:
        return
    chosen, path = names[0], "cluster.availability_zones[0]"
    if reserved is not None:
        chosen, path = reserved, "cluster.capacity.availability_zone"
    offers = instance.zones[region]
    if chosen in ZONES[region] and chosen not in offers:
        why = f"EC2 offers {instance.name} in {', '.join(offers)} only (read {OFFERED_ON}), and the Trn2 nodes start here"
        remedy = f"use {offers[0]} here, or another region"
        yield Finding(path, chosen, why, remedy, rests_on=("cluster.instance", "cluster.region"))


def _is_in(region: str, zone: str) -> bool:
    known = ZONES.get(region)
    return zone in known if known else re.fullmatch(rf"{re.escape(region)}[a-z]", zone) is not None


def _foreign(path: str, value: str, region: str, *, what: str = "is not a zone") -> Finding:
    known = ZONES.get(region)
    remedy = f"use one of {', '.join(known)}" if known else f"write it as {region}a"
    return Finding(path, value, f"{what} of {region}", remedy, rests_on=("cluster.region",))


def admin_access(file: ExpandedFile) -> Iterator[Finding]:
    """The public endpoint is for named networks only, and only for such as EKS takes."""
    path, cidrs = "cluster.admin_cidrs", file.cluster.admin_cidrs
    if len(cidrs) > _MOST_PUBLIC:
        why = f"has {len(cidrs)} networks, and EKS takes {_MOST_PUBLIC}"
        yield Finding(path, list(cidrs), why, "join neighbours, or list none for a private endpoint")
    yield from own_networks(path, cidrs, opens="the cluster's endpoint", public=True)


def own_networks(path: str, cidrs: Sequence[str], *, opens: str, public: bool = False) -> Iterator[Finding]:
    """IPv4 networks as AWS writes them, none twice, which do not open a thing to the world, alone or together; at a `public`
    endpoint, none that EKS refuses there."""
    wide = f"opens {opens} to everybody, or to more than a /{_WIDEST_PREFIX}"
    instead = "list your own networks, or none for a private endpoint"
    seen: list[ipaddress.IPv4Network] = []
    for number, cidr in enumerate(cidrs):
        where = f"{path}[{number}]"
        try:
            network = ipaddress.IPv4Network(cidr)
        except ValueError as error:
            yield Finding(where, cidr, *_no_network(cidr, error))
            continue
        if network.prefixlen < _WIDEST_PREFIX:
            yield Finding(where, cidr, wide, instead)
            continue
        if str(network) != cidr:
            yield Finding(
                where, cidr, "is not the network's own address, which EKS requires", f"write it as {network}"
            )
        elif (other := next((one for one in seen if one.overlaps(network)), None)) is not None:
            why = f"overlaps {other}, which is listed before it"
            yield Finding(where, cidr, why, "keep the wider of the two")
        seen.append(network)
        reserved = next((one for one in _NOT_PUBLIC if one.overlaps(network)), None)
        if public and reserved is not None:
            why = f"holds private or reserved addresses ({reserved}), which EKS refuses at a public endpoint"
            remedy = "name the public addresses that your users connect from, or none for a private endpoint"
            yield Finding(where, cidr, why, remedy)
    together = sum(network.num_addresses for network in ipaddress.collapse_addresses(seen))
    if together > 2 ** (32 - _WIDEST_PREFIX):
        yield Finding(path, list(cidrs), wide, instead)


def _no_network(cidr: str, error: ValueError) -> tuple[str, str]:
    """Why, and what to do."""
    try:
        meant = ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        return f"is not a valid IPv4 network ({error})", "write ADDRESS/PREFIX, and one address with /32"
    if meant.version == 6:
        return "is IPv6, and only IPv4 is supported here", "name the IPv4 networks"
    return f"is not a valid IPv4 network ({error})", f"write it as {meant}"


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
    "availability_zone": "its zone, because a reservation belongs to one zone",
    "ends_at": 'its end in UTC, as in "2026-12-05T11:30:00Z", so that the nodes stop before EC2 takes them',
}
_FORBIDDEN_WHY = {
    "on-demand": "on-demand capacity has none",
    "reservation": "a reservation ends when it is cancelled; only a capacity block has an end",
}


def purchase(file: ExpandedFile) -> Iterator[Finding]:
    """Each way of buying has its own fields, all of them and no other."""
    capacity = file.cluster.capacity
    related = ("cluster.capacity.kind",)
    for name, example in _EXAMPLES.items():
        value, path = getattr(capacity, name), f"cluster.capacity.{name}"
        needed = name in _NEEDS[capacity.kind]
        if needed and value is None:
            why = f"is missing: capacity of kind {capacity.kind} needs it"
            yield Finding(path, None, why, f"give {example}", rests_on=related)
        elif value is not None and not needed:
            kinds = " or ".join(kind for kind in _NEEDS if name in _NEEDS[kind])
            remedy = f"remove it, or say `kind: {kinds}`"
            yield Finding(path, value, _FORBIDDEN_WHY[capacity.kind], remedy, rests_on=related)


def end(file: ExpandedFile) -> Iterator[Finding]:
    """The end of a block is an instant in UTC."""
    value = file.cluster.capacity.ends_at
    if value is None:
        return
    found = _INSTANT.fullmatch(value)
    if found is None or int(found[3]) > calendar.monthrange(int(found[1]), int(found[2]))[1]:
        remedy = 'write it as "2026-12-05T11:30:00Z"'
        yield Finding("cluster.capacity.ends_at", value, "is not a time in UTC", remedy)


def counts(file: ExpandedFile) -> Iterator[Finding]:
    """What starts at deploy time stays within what may ever run."""
    cluster, instance = file.cluster, file.instance
    if instance is not None and not instance.neuron and cluster.nodes:
        why = f"{instance.name} is the lab's own machine; no nodes are started for it"
        yield Finding("cluster.nodes", cluster.nodes, why, "use 0", rests_on=("cluster.instance",))
    elif cluster.nodes > cluster.max_nodes:
        why = f"is above cluster.max_nodes {cluster.max_nodes}"
        remedy = f"use {cluster.max_nodes} or less, or raise max_nodes"
        yield Finding("cluster.nodes", cluster.nodes, why, remedy, rests_on=("cluster.max_nodes",))


def own_network(file: ExpandedFile) -> Iterator[Finding]:
    """Ways out are made in the experiment's own network alone."""
    network, zones = file.cluster.network, len(file.cluster.availability_zones)
    if network.vpc is None:
        if network.nat_gateways > zones:
            path, related = "cluster.network.nat_gateways", ("cluster.availability_zones",)
            why = f"there are {zones} zones, so at most one gateway in each"
            yield Finding(path, network.nat_gateways, why, f"use 1 to {zones}", rests_on=related)
        if network.private_subnets:
            path, why = "cluster.network.private_subnets", "needs cluster.network.vpc"
            remedy = "write its id as cluster.network.vpc, or remove the subnets"
            yield Finding(path, None, why, remedy, rests_on=("cluster.network.vpc",))
        return
    for name in ("nat_gateways", "interface_endpoints"):
        if name in network.model_fields_set:
            why = "applies only to a network that this deployment creates"
            remedy = "remove it, or remove cluster.network.vpc and private_subnets"
            yield Finding(f"cluster.network.{name}", getattr(network, name), why, remedy)


def existing_vpc(file: ExpandedFile) -> Iterator[Finding]:
    """An existing VPC gives a subnet in each zone where nodes may stand, which are two at least."""
    cluster, path = file.cluster, "cluster.network.private_subnets"
    subnets = cluster.network.private_subnets
    if cluster.network.vpc is None or not REGION.fullmatch(cluster.region):
        return
    for place, (zone, subnet) in enumerate(subnets.items()):
        if not _is_in(cluster.region, zone):
            yield _foreign(f"{path}.{zone}", subnet, cluster.region, what=f"{zone} is not a zone")
        elif subnet in list(subnets.values())[:place]:
            why = "appears twice, and a subnet is in one zone"
            yield Finding(f"{path}.{zone}", subnet, why, f"write the subnet of {zone}")
    if len(subnets) < 2:
        named = ", ".join(subnets) or "no zone"
        why = f"has a subnet in {named}, and EKS needs subnets in two zones"
        yield Finding(
            path, subnets or None, why, "write a private subnet for each of cluster.availability_zones"
        )
        return
    reserved = cluster.capacity.availability_zone
    wanted = dict.fromkeys(cluster.availability_zones, "cluster.availability_zones")
    wanted |= {reserved: "cluster.capacity.availability_zone"} if reserved else {}
    for zone, said in wanted.items():
        if zone not in subnets and _is_in(cluster.region, zone):
            why = f"has no subnet in {zone}, which {said} names"
            remedy = f"add the private subnet of {zone}, or change {said}"
            yield Finding(path, None, why, remedy, rests_on=(said,))


_OF_EXISTING = ("security_group", "provided", "nodes_of")


def existing_cluster(file: ExpandedFile) -> Iterator[Finding]:
    """What is said of an existing cluster, all of it and nothing that is its owner's."""
    cluster, rests = file.cluster, ("cluster.existing",)
    if cluster.existing is None:
        for name in _OF_EXISTING:
            if value := getattr(cluster, name):
                why = "needs cluster.existing"
                remedy = "write its name as cluster.existing, or remove this"
                said = list(value) if isinstance(value, tuple) else value
                yield Finding(f"cluster.{name}", said, why, remedy, rests_on=rests)
        return
    why = "is missing: an existing cluster is joined in its own VPC"
    remedy = "`aws eks describe-cluster --query cluster.resourcesVpcConfig` and ./trnspec preflight name it"
    for path, value in (("network.vpc", cluster.network.vpc), ("security_group", cluster.security_group)):
        if value is None:
            yield Finding(f"cluster.{path}", None, why, remedy, rests_on=rests)
    if cluster.admin_cidrs:
        why = "applies only to a cluster that this deployment creates"
        yield Finding("cluster.admin_cidrs", list(cluster.admin_cidrs), why, "remove it", rests_on=rests)
    if cluster.existing == file.name:
        why = "is the experiment's own name, which the cluster of its own would have"
        yield Finding(
            "cluster.existing", file.name, why, "give the experiment another name", rests_on=("name",)
        )
    yield from _shared_nodes(file)


def _shared_nodes(file: ExpandedFile) -> Iterator[Finding]:
    """Nodes of another experiment are started as that one says."""
    cluster, path, owner = file.cluster, "cluster.nodes_of", file.cluster.nodes_of
    if owner is None:
        return
    if owner == file.name:
        why, remedy = "is this experiment", "write the name of the one whose nodes it uses, or remove this"
        yield Finding(path, owner, why, remedy, rests_on=("name",))
    if cluster.nodes:
        why = f"the nodes belong to {owner} and are started with its stacks"
        yield Finding("cluster.nodes", cluster.nodes, why, "remove it", rests_on=(path,))
    if "off_at_utc" in cluster.model_fields_set:
        why = f"{owner} turns its nodes off every day, at the hour that its file sets"
        yield Finding("cluster.off_at_utc", cluster.off_at_utc, why, "remove it", rests_on=(path,))
    if file.serving.allocation == "device-plugin":
        why = "the size of a logical core was then set when the node's owner started it"
        remedy = "use allocation: dra, or remove cluster.nodes_of"
        yield Finding("serving.allocation", "device-plugin", why, remedy, rests_on=(path,))


RULES = (
    kubernetes_version,
    node_driver,
    zones,
    admin_access,
    purchase,
    end,
    counts,
    own_network,
    existing_vpc,
    existing_cluster,
)
