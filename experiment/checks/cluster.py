"""The cluster: version, region, who may reach it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from experiment.catalogue.instances import INSTANCES
from experiment.catalogue.node_images import images_of, serving_image, versions_serving
from experiment.catalogue.regions import ZONES
from experiment.checks.networks import own_networks, public_networks
from experiment.checks.subjects import known_runtimes
from experiment.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.schema import ExpandedFile

OLDEST_KUBERNETES = (1, 35)
"""DRA is generally available from 1.34, whose standard support on EKS ends on 2026-12-02."""
NEWEST_KUBERNETES = (1, 36)
"""The newest for which EKS publishes Neuron AMIs (amazon-eks-ami v20260714)."""
TRN2_REGIONS = {name: seen for instance in INSTANCES.values() for name, seen in instance.regions.items()}


def kubernetes_version(file: ExpandedFile) -> Iterator[Finding]:
    """Resource claims need a version that EKS still supports."""
    version = file.cluster.kubernetes
    match = re.fullmatch(r"([1-9]\d?)\.(0|[1-9]\d{0,2})", version, re.ASCII)
    floor, top = (".".join(map(str, pair)) for pair in (OLDEST_KUBERNETES, NEWEST_KUBERNETES))
    if match is None:
        yield Finding("cluster.kubernetes", version, "is no Kubernetes version", f'use "{floor}" or "{top}"')
    elif (parsed := (int(match[1]), int(match[2]))) < OLDEST_KUBERNETES:
        yield Finding(
            "cluster.kubernetes",
            version,
            f"is below {floor}: Neuron resource claims need the GA API and a supported version",
            f'use "{floor}" or later',
        )
    elif parsed > NEWEST_KUBERNETES:
        yield Finding(
            "cluster.kubernetes",
            version,
            "has no Neuron AMI and no kubectl layer known to this release",
            f'use "{floor}" or "{top}"',
        )


def node_driver(file: ExpandedFile) -> Iterator[Finding]:
    """Some node image must have a Neuron driver that every arm's runtime library takes: the arms share their nodes."""
    instance, wanted = INSTANCES.get(file.cluster.instance), file.cluster.kubernetes
    bounded = {path: runtime for path, runtime in known_runtimes(file).items() if runtime.drivers}
    images, runtimes = images_of(wanted), list(bounded.values())
    if instance is None or not instance.neuron or not images or serving_image(wanted, runtimes):
        return
    paths = list(bounded)
    last = next(n for n in range(len(runtimes)) if serving_image(wanted, runtimes[: n + 1]) is None)
    bounds = ", ".join(f"{runtime.name} takes driver {runtime.drivers}" for runtime in runtimes[: last + 1])
    newer = [f'set cluster.kubernetes to "{other}"' for other in versions_serving(runtimes)]
    yield Finding(
        paths[last],
        runtimes[last].name,
        f"no node image for Kubernetes {wanted} serves {'these runtimes' if last else 'it'}: {bounds}, the images have "
        f"{', '.join(image.neuron_driver for image in images)}",
        ", or ".join(
            [*newer, "give each runtime an experiment of its own" if last else "use another runtime"]
        ),
        rests_on=("cluster.kubernetes", *paths[:last]),
    )


def zones(file: ExpandedFile) -> Iterator[Finding]:
    """A region with Trn2, and zones inside it."""
    region, instance = file.cluster.region, INSTANCES.get(file.cluster.instance)
    regions = instance.regions if instance else TRN2_REGIONS
    if instance is not None and not instance.neuron:
        return
    if region not in regions:
        known = ", ".join(f"{name} (seen {seen})" for name, seen in regions.items())
        what = instance.name if instance else "Trn2"
        yield Finding(
            "cluster.region",
            region,
            f"{what} was not seen there",
            f"known: {known}",
            rests_on=("cluster.instance",),
        )
        return
    names = file.cluster.availability_zones
    for number, zone in enumerate(names):
        path = f"cluster.availability_zones[{number}]"
        if zone not in ZONES[region]:
            yield _foreign(path, zone, region)
        elif zone in names[:number]:
            yield Finding(path, zone, "stands twice", "EKS needs two different zones")
    reserved = file.cluster.capacity.availability_zone
    if reserved is not None and reserved not in ZONES[region]:
        yield _foreign("cluster.capacity.availability_zone", reserved, region)


def _foreign(path: str, zone: str, region: str) -> Finding:
    return Finding(
        path,
        zone,
        f"is no zone of {region}",
        f"use one of {', '.join(ZONES[region])}",
        rests_on=("cluster.region",),
    )


def admin_access(file: ExpandedFile) -> Iterator[Finding]:
    """The public endpoint is for named networks only, and only for such as EKS takes."""
    path, cidrs = "cluster.admin_cidrs", file.cluster.admin_cidrs
    yield from own_networks(path, cidrs, opens="the cluster's endpoint")
    yield from public_networks(path, cidrs)
