"""What stays up after the comparison: which arm, how many of it, who may call it."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from core.findings import Finding
from core.words import count
from experiment.checks.cluster_section import own_networks
from experiment.checks.treatments import treated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.model import Serve
    from experiment.sweeps import ExpandedFile

_CERTIFICATE = re.compile(r"arn:aws[-a-z]*:acm:(?P<region>[-a-z0-9]+):\d{12}:certificate/[-0-9a-zA-Z]+")
"""https://docs.aws.amazon.com/acm/latest/APIReference/API_CertificateDetail.html"""


def served_arm(file: ExpandedFile, serve: Serve) -> Iterator[Finding]:
    """It must be an arm that answers requests."""
    batch = {one.arm.name for one in treated(file) if one.mode and one.mode.batch_only}
    served = [arm.name for arm in file.arms if arm.name not in batch]
    if serve.arm not in served:
        close = difflib.get_close_matches(serve.arm, served, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(served[:8])}"
        why = "is not an arm of this experiment that serves requests"
        yield Finding("serve.arm", serve.arm, why, hint, rests_on=("arms",))


def replicas(file: ExpandedFile, serve: Serve) -> Iterator[Finding]:
    """The promoted arm stands alone, the others at 0, and must fit all the same: with all the replicas it may get."""
    instance, devices = file.instance, file.serving.devices
    if instance is None or not instance.neuron or not devices:
        return
    nodes = file.cluster.max_nodes
    most = instance.devices // devices * nodes
    for name in ("replicas", "max_replicas"):
        value = getattr(serve, name)
        if value > most and (name == "replicas" or name in serve.model_fields_set):
            why = f"{nodes} x {instance.name} hold {count(most, 'arm')} of {count(devices, 'device')}, the others at 0"
            remedy = f"use {most} or less, or raise cluster.max_nodes"
            related = ("cluster.max_nodes", "cluster.instance", "serving.devices")
            yield Finding(f"serve.{name}", value, why, remedy, rests_on=related)


def bounds(_: ExpandedFile, serve: Serve) -> Iterator[Finding]:
    """`replicas` is the least, `max_replicas` the most."""
    if serve.max_replicas < serve.replicas:
        why = f"is below serve.replicas {serve.replicas}, the minimum"
        remedy = f"use {serve.replicas} or more, or leave it out"
        yield Finding("serve.max_replicas", serve.max_replicas, why, remedy, rests_on=("serve.replicas",))


def autoscaler(file: ExpandedFile, serve: Serve) -> Iterator[Finding]:
    """KEDA serves the external metrics of a whole cluster, so it runs there once: an existing cluster has its owner's."""
    cluster = file.cluster
    if not serve.scales or cluster.existing is None or "keda" in cluster.provided:
        return
    why = "needs KEDA, which runs once in a cluster, so a deployment does not install it in an existing one"
    remedy = (
        "let the cluster's owner install KEDA and write keda into cluster.provided, or remove max_replicas"
    )
    related = ("cluster.existing", "cluster.provided")
    yield Finding("serve.max_replicas", serve.max_replicas, why, remedy, rests_on=related)


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
        yield Finding(path, arn, why, f"request or import one in {region}", rests_on=("cluster.region",))


def callers(file: ExpandedFile, serve: Serve) -> Iterator[Finding]:
    """Beyond the cluster only named networks call it, with TLS and a key."""
    path, related = "serve.client_cidrs", ("serve.certificate_arn",)
    yield from own_networks(path, serve.client_cidrs, opens="the load balancer")
    if serve.certificate_arn is None:
        if serve.client_cidrs:
            why = "lists callers outside the cluster; they need a load balancer, which needs a certificate"
            remedy = "give serve.certificate_arn, or remove it"
            yield Finding(path, list(serve.client_cidrs), why, remedy, rests_on=related)
        return
    if not serve.client_cidrs:
        why = "is missing: the load balancer would admit nobody"
        remedy = 'list the networks of its callers, as in ["10.20.0.0/16"]'
        yield Finding(path, None, why, remedy, rests_on=related)
    if file.serving.api_key_secret is None:
        why = "is missing: behind a load balancer `/v1` would answer anybody on those networks"
        remedy = "name a Secret of the namespace whose key `api-key` holds the key"
        yield Finding("serving.api_key_secret", None, why, remedy, rests_on=related)


RULES = (served_arm, replicas, bounds, autoscaler, certificate, callers)
