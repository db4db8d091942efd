"""The cluster: version, node image, region, how Trn2 nodes are bought, and the networks that are let in; and what stays up there
after the comparison: which arm, how many of it, who may call it."""

from __future__ import annotations

import calendar
import difflib
import ipaddress
import re
from collections.abc import Iterator, Sequence

from core.findings import Finding
from core.words import count
from experiment.catalogue.instances import INSTANCES, OFFERED_ON, REGION, ZONES
from experiment.catalogue.node_images import images_of, serving_image, versions_serving
from experiment.checks.treatments import known_runtimes, treated
from experiment.model import Serve
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
_CERTIFICATE = re.compile(r"arn:aws[-a-z]*:acm:(?P<region>[-a-z0-9]+):\d{12}:certificate/[-0-9a-zA-Z]+")
"""https://docs.aws.amazon.com/acm/latest/APIReference/API_CertificateDetail.html"""


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
    instance, version = file.instance, file.cluster.kubernetes
    bounded = {path: runtime for path, runtime in known_runtimes(file).items() if runtime.drivers}
    images, paths, runtimes = images_of(version), list(bounded), list(bounded.values())
    if instance is None or not instance.neuron or not images or serving_image(version, runtimes):
        return
    last = next(n for n in range(len(runtimes)) if serving_image(version, runtimes[: n + 1]) is None)
    bounds = ", ".join(f"{runtime.name} takes driver {runtime.drivers}" for runtime in runtimes[: last + 1])
    newer = [f'set cluster.kubernetes to "{other}"' for other in versions_serving(runtimes)]
    why = (
        f"no node image for Kubernetes {version} serves {'these runtimes' if last else 'it'}: {bounds}, the images have "
        f"{', '.join(image.neuron_driver for image in images)}"
    )
    otherwise = "give each runtime an experiment of its own" if last else "use another runtime"
    yield Finding(paths[last], runtimes[last].name, why, ", or ".join([*newer, otherwise]))


def zones(file: ExpandedFile) -> Iterator[Finding]:
    """A region that offers the instance type, zones inside it, and nodes in one that offers it as well."""
    region, instance, names = file.cluster.region, file.instance, file.cluster.availability_zones
    regions = tuple(instance.zones) if instance else _TRN2_REGIONS
    if instance is not None and not instance.neuron:
        return
    if region not in regions and (region in ZONES or not REGION.fullmatch(region)):
        why = f"EC2 does not offer {instance.name if instance else 'Trn2'} there (read {OFFERED_ON})"
        why = why if region in ZONES else "is not the name of a region in the partition aws"
        yield Finding("cluster.region", region, why, f"use one of {', '.join(regions)}")
        return
    chosen, path = names[0], "cluster.availability_zones[0]"
    for number, zone in enumerate(names):
        where = f"cluster.availability_zones[{number}]"
        if not _is_in(region, zone):
            yield _foreign(where, zone, region)
        elif zone in names[:number]:
            yield Finding(where, zone, "appears twice", "EKS needs two different zones")
    if (reserved := file.cluster.capacity.availability_zone) is not None:
        chosen, path = reserved, "cluster.capacity.availability_zone"
        if not _is_in(region, reserved):
            yield _foreign(path, reserved, region)
    if instance is None or region not in regions:
        return
    offers = instance.zones[region]
    if chosen in ZONES[region] and chosen not in offers:
        why = f"EC2 offers {instance.name} in {', '.join(offers)} only (read {OFFERED_ON}), and the Trn2 nodes start here"
        yield Finding(path, chosen, why, f"use {offers[0]} here, or another region")


def _is_in(region: str, zone: str) -> bool:
    known = ZONES.get(region)
    return zone in known if known else re.fullmatch(rf"{re.escape(region)}[a-z]", zone) is not None


def _foreign(path: str, value: str, region: str, *, what: str = "is not a zone") -> Finding:
    known = ZONES.get(region)
    remedy = f"use one of {', '.join(known)}" if known else f"write it as {region}a"
    return Finding(path, value, f"{what} of {region}", remedy)


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
            why = "is not the network's own address, which EKS requires"
            yield Finding(where, cidr, why, f"write it as {network}")
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
    for name, example in _EXAMPLES.items():
        value, path = getattr(capacity, name), f"cluster.capacity.{name}"
        needed = name in _NEEDS[capacity.kind]
        if needed and value is None:
            why = f"is missing: capacity of kind {capacity.kind} needs it"
            yield Finding(path, None, why, f"give {example}")
        elif value is not None and not needed:
            kinds = " or ".join(kind for kind in _NEEDS if name in _NEEDS[kind])
            remedy = f"remove it, or say `kind: {kinds}`"
            yield Finding(path, value, _FORBIDDEN_WHY[capacity.kind], remedy)


def end(file: ExpandedFile) -> Iterator[Finding]:
    """The end of a block is an instant in UTC."""
    value = file.cluster.capacity.ends_at
    found = None if value is None else _INSTANT.fullmatch(value)
    real = found and int(found[3]) <= calendar.monthrange(int(found[1]), int(found[2]))[1]
    if value is not None and not real:
        remedy = 'write it as "2026-12-05T11:30:00Z"'
        yield Finding("cluster.capacity.ends_at", value, "is not a time in UTC", remedy)


def counts(file: ExpandedFile) -> Iterator[Finding]:
    """What starts at deploy time stays within what may ever run."""
    cluster, instance = file.cluster, file.instance
    if instance is not None and not instance.neuron and cluster.nodes:
        why = f"{instance.name} is the lab's own machine; no nodes are started for it"
        yield Finding("cluster.nodes", cluster.nodes, why, "use 0")
    elif cluster.nodes > cluster.max_nodes:
        why = f"is above cluster.max_nodes {cluster.max_nodes}"
        yield Finding(
            "cluster.nodes", cluster.nodes, why, f"use {cluster.max_nodes} or less, or raise max_nodes"
        )


def own_network(file: ExpandedFile) -> Iterator[Finding]:
    """Ways out are made in the experiment's own network alone."""
    network, path, most = file.cluster.network, "cluster.network", len(file.cluster.availability_zones)
    if network.vpc:
        for name in network.model_fields_set & {"nat_gateways", "interface_endpoints"}:
            why = "applies only to a network that this deployment creates"
            remedy = "remove it, or remove cluster.network.vpc and private_subnets"
            yield Finding(f"{path}.{name}", getattr(network, name), why, remedy)
        return
    if network.nat_gateways > most:
        why = f"there are {most} zones, so at most one gateway in each"
        yield Finding(f"{path}.nat_gateways", network.nat_gateways, why, f"use 1 to {most}")
    if network.private_subnets:
        remedy = "write its id as cluster.network.vpc, or remove the subnets"
        yield Finding(f"{path}.private_subnets", None, "needs cluster.network.vpc", remedy)


def existing_vpc(file: ExpandedFile) -> Iterator[Finding]:
    """An existing VPC gives a subnet in each zone where nodes may stand, which are two at least."""
    cluster, path = file.cluster, "cluster.network.private_subnets"
    subnets = cluster.network.private_subnets
    if not cluster.network.vpc or not REGION.fullmatch(cluster.region):
        return
    for place, (zone, subnet) in enumerate(subnets.items()):
        if not _is_in(cluster.region, zone):
            yield _foreign(f"{path}.{zone}", subnet, cluster.region, what=f"{zone} is not a zone")
        elif subnet in list(subnets.values())[:place]:
            why = "appears twice, and a subnet is in one zone"
            yield Finding(f"{path}.{zone}", subnet, why, f"write the subnet of {zone}")
    if len(subnets) < 2:
        why = f"has a subnet in {', '.join(subnets) or 'no zone'}, and EKS needs subnets in two zones"
        remedy = "write a private subnet for each of cluster.availability_zones"
        yield Finding(path, subnets or None, why, remedy)
        return
    needed = dict.fromkeys(cluster.availability_zones, "cluster.availability_zones")
    if cluster.capacity.availability_zone:
        needed[cluster.capacity.availability_zone] = "cluster.capacity.availability_zone"
    for zone, key in needed.items():
        if zone not in subnets and _is_in(cluster.region, zone):
            why = f"has no subnet in {zone}, which {key} names"
            yield Finding(path, None, why, f"add the private subnet of {zone}, or change {key}")


def existing_cluster(file: ExpandedFile) -> Iterator[Finding]:
    """What is said of an existing cluster, all of it and nothing that is its owner's."""
    cluster = file.cluster
    if not cluster.existing:
        for name in ("security_group", "provided", "nodes_of"):
            if value := getattr(cluster, name):
                remedy = "write its name as cluster.existing, or remove this"
                shown = list(value) if isinstance(value, tuple) else value
                yield Finding(f"cluster.{name}", shown, "needs cluster.existing", remedy)
        return
    why = "is missing: an existing cluster is joined in its own VPC"
    remedy = "`aws eks describe-cluster --query cluster.resourcesVpcConfig` and ./trnspec preflight name it"
    for path, value in (("network.vpc", cluster.network.vpc), ("security_group", cluster.security_group)):
        if value is None:
            yield Finding(f"cluster.{path}", None, why, remedy)
    if cluster.admin_cidrs:
        why = "applies only to a cluster that this deployment creates"
        yield Finding("cluster.admin_cidrs", list(cluster.admin_cidrs), why, "remove it")
    if cluster.existing == file.name:
        why = "is the experiment's own name, which the cluster of its own would have"
        yield Finding("cluster.existing", file.name, why, "give the experiment another name")


def shared_nodes(file: ExpandedFile) -> Iterator[Finding]:
    """Nodes of another experiment are started as that one says."""
    cluster, owner = file.cluster, file.cluster.nodes_of
    if owner is None or not cluster.existing:
        return
    if owner == file.name:
        remedy = "write the name of the one whose nodes it uses, or remove this"
        yield Finding("cluster.nodes_of", owner, "is this experiment", remedy)
    if cluster.nodes:
        why = f"the nodes belong to {owner} and are started with its stacks"
        yield Finding("cluster.nodes", cluster.nodes, why, "remove it")
    if "off_at_utc" in cluster.model_fields_set:
        why = f"{owner} turns its nodes off every day, at the hour that its file sets"
        yield Finding("cluster.off_at_utc", cluster.off_at_utc, why, "remove it")
    if file.serving.allocation == "device-plugin":
        why = "the size of a logical core was then set when the node's owner started it"
        remedy = "use allocation: dra, or remove cluster.nodes_of"
        yield Finding("serving.allocation", "device-plugin", why, remedy)


def served_arm(file: ExpandedFile, serve: Serve) -> Iterator[Finding]:
    """It must be an arm that answers requests."""
    batch = {one.arm.name for one in treated(file) if one.mode and one.mode.batch_only}
    served = [arm.name for arm in file.arms if arm.name not in batch]
    if serve.arm not in served:
        close = difflib.get_close_matches(serve.arm, served, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(served[:8])}"
        why = "is not an arm of this experiment that serves requests"
        yield Finding("serve.arm", serve.arm, why, hint)


def replicas(file: ExpandedFile, serve: Serve) -> Iterator[Finding]:
    """The promoted arm stands alone, the others at 0, and must fit all the same: with all the replicas it may get."""
    instance, devices, nodes = file.instance, file.serving.devices, file.cluster.max_nodes
    if instance is None or not instance.neuron or not devices:
        return
    most = instance.devices // devices * nodes
    for name in ("replicas", "max_replicas"):
        value = getattr(serve, name)
        if value > most and (name == "replicas" or name in serve.model_fields_set):
            why = f"{nodes} x {instance.name} hold {count(most, 'arm')} of {count(devices, 'device')}, the others at 0"
            yield Finding(f"serve.{name}", value, why, f"use {most} or less, or raise cluster.max_nodes")


def bounds(_: ExpandedFile, serve: Serve) -> Iterator[Finding]:
    """`replicas` is the least, `max_replicas` the most."""
    if serve.max_replicas < serve.replicas:
        why = f"is below serve.replicas {serve.replicas}, the minimum"
        remedy = f"use {serve.replicas} or more, or leave it out"
        yield Finding("serve.max_replicas", serve.max_replicas, why, remedy)


def autoscaler(file: ExpandedFile, serve: Serve) -> Iterator[Finding]:
    """KEDA serves the external metrics of a whole cluster, so it runs there once: an existing cluster has its owner's."""
    if serve.scales and file.cluster.existing and "keda" not in file.cluster.provided:
        why = (
            "needs KEDA, which runs once in a cluster, so a deployment does not install it in an existing one"
        )
        install = "let the cluster's owner install KEDA and write keda into cluster.provided"
        yield Finding("serve.max_replicas", serve.max_replicas, why, f"{install}, or remove max_replicas")


def certificate(file: ExpandedFile, serve: Serve) -> Iterator[Finding]:
    """A load balancer takes certificates of its own region only."""
    path, arn, region = "serve.certificate_arn", serve.certificate_arn, file.cluster.region
    if arn is None:
        return
    match = _CERTIFICATE.fullmatch(arn)
    if match is None:
        remedy = f"write it as arn:aws:acm:{region}:123456789012:certificate/..."
        yield Finding(path, arn, "is not a valid ARN of a certificate in ACM", remedy)
    elif match["region"] != region:
        why = f"is in {match['region']}; a load balancer in {region} needs a certificate in {region}"
        yield Finding(path, arn, why, f"request or import one in {region}")


def callers(file: ExpandedFile, serve: Serve) -> Iterator[Finding]:
    """Beyond the cluster only named networks call it, with TLS and a key."""
    path, cidrs = "serve.client_cidrs", serve.client_cidrs
    yield from own_networks(path, cidrs, opens="the load balancer")
    if serve.certificate_arn in (None, ""):
        if cidrs:
            why = "lists callers outside the cluster; they need a load balancer, which needs a certificate"
            yield Finding(path, list(cidrs), why, "give serve.certificate_arn, or remove it")
        return
    if not cidrs:
        why = "is missing: the load balancer would admit nobody"
        yield Finding(path, None, why, 'list the networks of its callers, as in ["10.20.0.0/16"]')
    if file.serving.api_key_secret is None:
        why = "is missing: behind a load balancer `/v1` would answer anybody on those networks"
        remedy = "name a Secret of the namespace whose key `api-key` holds the key"
        yield Finding("serving.api_key_secret", None, why, remedy)


RULES = (
    *(kubernetes_version, node_driver, zones, admin_access, purchase, end, counts),
    *(own_network, existing_vpc, existing_cluster, shared_nodes),
)
SERVICE_RULES = (served_arm, replicas, bounds, autoscaler, certificate, callers)
"""Of a file with the section `serve`."""
