"""Checks of the nodes and of what stands on them: version, region, purchase and access of the cluster, then devices, memory and images."""

from __future__ import annotations

import calendar
import difflib
import ipaddress
import re
from collections.abc import Iterator

from trnspec.core.findings import Finding
from trnspec.core.words import count
from trnspec.experiment.arms import Experiment
from trnspec.experiment.catalogue.instances import GROUP_SIZES, INSTANCES, OFFERED_ON, REGION, ZONES
from trnspec.experiment.catalogue.models import BYTES_PER_VALUE, Model, memory_bytes
from trnspec.experiment.catalogue.runtimes import RUNTIMES, images_of, serving_image, versions_serving
from trnspec.experiment.model import Cluster
from trnspec.experiment.placement import GIB
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
    """The public endpoint is only for the listed networks. They must be IPv4 in AWS's notation, distinct and accepted by EKS. They must
    not open it to the world, alone or together."""
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


_INSTANT = r"(20\d\d)-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?Z"
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
    found = None if value is None else re.fullmatch(_INSTANT, value, re.ASCII)
    real = found and int(found[3]) <= calendar.monthrange(int(found[1]), int(found[2]))[1]
    if value is not None and not real:
        yield refused("cluster.capacity.ends_at malformed", value)


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


CLUSTER_RULES = (kubernetes_version, zones, admin_access, purchase, end, existing_vpc)
"""They need no arm."""


def groups(experiment: Experiment) -> Iterator[Finding]:
    """An arm's devices must be a connected set, as the driver publishes and the scheduler extension allocates them."""
    devices, instance = experiment.baseline.serving.devices, experiment.instance
    sizes = [size for size in GROUP_SIZES if size <= instance.devices]
    if devices not in sizes:
        yield refused("serving.devices no-group", devices, sizes=" or ".join(map(str, sizes)))


def memory(experiment: Experiment) -> Iterator[Finding]:
    """Weights of target and largest draft, and their KV caches, must fit the high-bandwidth memory of the claim."""
    serving, models = experiment.baseline.serving, _largest_models(experiment)
    sequences = max(arm.serving.max_num_seqs for arm in experiment.arms)
    need = memory_bytes(models, serving.tensor_parallel, sequences, serving.max_model_len) / GIB
    have = serving.devices * experiment.instance.hbm_gib_per_device
    if need > have:
        yield refused(
            "serving.devices memory",
            serving.devices,
            models=" and ".join(model.name for model in models),
            need=need,
            have=have,
            size=BYTES_PER_VALUE,
        )


def context_length(experiment: Experiment) -> Iterator[Finding]:
    """The context length is limited by the positions of the model and by the runtime."""
    length = experiment.baseline.serving.max_model_len
    for runtime in experiment.runtimes:
        if runtime.longest_context and length > runtime.longest_context:
            yield refused("serving.max_model_len runtime", length, runtime=runtime)
    shortest = min(_largest_models(experiment), key=lambda model: model.max_positions)
    if length > shortest.max_positions:
        yield refused("serving.max_model_len positions", length, model=shortest)


def _largest_models(experiment: Experiment) -> list[Model]:
    """Return the target and the largest draft."""
    drafts = [arm.speculation.draft.model for arm in experiment.arms if arm.speculation]
    largest = max(drafts, key=lambda model: model.parameters, default=None)
    return [experiment.baseline.target.model, *([largest] if largest else [])]


def runtime_fits(experiment: Experiment) -> Iterator[Finding]:
    """Every image must support the model's class."""
    target = experiment.baseline.target.model
    for runtime in experiment.runtimes:
        if target.architecture not in runtime.architectures | runtime.plain_only:
            remedy = f"use a model of: {', '.join(sorted(runtime.architectures))}"
            if able := [one.name for one in RUNTIMES.values() if target.architecture in one.plain_only]:
                remedy += f", or runtime {' or '.join(able)}, which serves it without drafts"
            yield refused("target.model no-code", target.name, runtime=runtime, target=target, remedy=remedy)


def claims(experiment: Experiment) -> Iterator[Finding]:
    """A claim needs a connected group, which the driver does not publish for all instance types: a pod would wait forever.

    Source: the Neuron DRA guide (https://awsdocs-neuron.readthedocs-hosted.com/en/latest/deploy/eks/dra.html).
    """
    instance = experiment.instance
    if experiment.baseline.serving.allocation == "dra" and instance.devices == 1:
        yield refused("serving.allocation no-claims", "dra", instance=instance)


def parsers(experiment: Experiment) -> Iterator[Finding]:
    """The vLLM of every arm must have the parsers of tool calls and reasoning."""
    serving = experiment.baseline.serving
    for key in ("tool_call_parser", "reasoning_parser"):
        for runtime in experiment.runtimes:
            name, known = getattr(serving, key), getattr(runtime, f"{key}s")
            if name is not None and name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}"
                yield refused(
                    "parser unknown", name, at=f"serving.advanced.{key}", runtime=runtime, hint=hint
                )


def node_driver(experiment: Experiment) -> Iterator[Finding]:
    """A node image must have a Neuron driver that supports the runtime libraries of all arms, because the arms share their nodes."""
    version, runtimes = experiment.cluster.kubernetes, experiment.runtimes
    images = images_of(version)
    if not images or serving_image(version, runtimes):
        return
    last = next(n for n in range(len(runtimes)) if serving_image(version, runtimes[: n + 1]) is None)
    newer = [f'set cluster.kubernetes to "{other}"' for other in versions_serving(runtimes)]
    otherwise = "give each runtime an experiment of its own" if last else "use another runtime"
    yield refused(
        "runtime without-image",
        runtimes[last].name,
        at=next(arm.paths.runtime for arm in experiment.arms if arm.runtime is runtimes[last]),
        version=version,
        what="these runtimes" if last else "it",
        bounds=", ".join(f"{one.name} takes driver {one.drivers}" for one in runtimes[: last + 1]),
        drivers=", ".join(image.neuron_driver for image in images),
        remedy=", or ".join([*newer, otherwise]),
    )


def served_arm(experiment: Experiment) -> Iterator[Finding]:
    """The served arm must be an arm of the experiment."""
    served = [arm.name for arm in experiment.arms]
    if (serve := experiment.serve) and serve.arm not in served:
        close = difflib.get_close_matches(serve.arm, served, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(served[:8])}"
        yield refused("serve.arm unknown", serve.arm, hint=hint)


def replicas(experiment: Experiment) -> Iterator[Finding]:
    """The promoted arm must fit on the nodes with its replicas."""
    instance, devices = experiment.instance, experiment.baseline.serving.devices
    maximum = instance.devices // devices * experiment.cluster.max_nodes
    if (serve := experiment.serve) and serve.replicas > maximum:
        yield refused(
            "serve.replicas too-many",
            serve.replicas,
            instance=instance,
            nodes=experiment.cluster.max_nodes,
            arms=count(maximum, "arm"),
            devices=count(devices, "device"),
            maximum=maximum,
        )


RULES = (
    *(groups, memory, context_length, runtime_fits, claims),
    *(parsers, node_driver, served_arm, replicas),
)
