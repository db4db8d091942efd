"""What stays up after the comparison: which arm, how many of it, who may call it."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from experiment.catalogue.instances import INSTANCES
from experiment.catalogue.runtimes import RUNTIMES
from experiment.checks.cluster_section import own_networks
from experiment.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiment.model import ExpandedFile, SingleArm


_CERTIFICATE = re.compile(r"arn:aws[-a-z]*:acm:(?P<region>[-a-z0-9]+):\d{12}:certificate/[-0-9a-zA-Z]+")
"""https://docs.aws.amazon.com/acm/latest/APIReference/API_CertificateDetail.html"""


def served_arm(file: ExpandedFile) -> Iterator[Finding]:
    """It must be an arm that answers requests."""
    if file.serve is None:
        return
    served = [arm.name for arm in file.arms if not _batch_only(file, arm)]
    if file.serve.arm not in served:
        close = difflib.get_close_matches(file.serve.arm, served, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(served[:8])}"
        yield Finding(
            "serve.arm",
            file.serve.arm,
            "is no arm of this experiment that serves requests",
            hint,
            rests_on=("arms",),
        )


def replicas(file: ExpandedFile) -> Iterator[Finding]:
    """The promoted arm stands alone, the others at 0, and must fit all the same: with all the replicas it may get."""
    instance, devices, serve = INSTANCES.get(file.cluster.instance), file.serving.devices, file.serve
    if serve is None or instance is None or not instance.neuron or not devices:
        return
    most = instance.devices // devices * file.cluster.max_nodes
    for name in ("replicas", "max_replicas"):
        value = getattr(serve, name)
        if value > most and (name == "replicas" or name in serve.model_fields_set):
            yield Finding(
                f"serve.{name}",
                value,
                f"{file.cluster.max_nodes} x {instance.name} hold {most} arms of {devices} devices, the others at 0",
                f"use {most} or less, or raise cluster.max_nodes",
                rests_on=("cluster.max_nodes", "cluster.instance", "serving.devices"),
            )


def bounds(file: ExpandedFile) -> Iterator[Finding]:
    """`replicas` is the least, `max_replicas` the most."""
    serve = file.serve
    if serve is not None and serve.max_replicas < serve.replicas:
        yield Finding(
            "serve.max_replicas",
            serve.max_replicas,
            f"is below serve.replicas {serve.replicas}, the least that stand",
            f"use {serve.replicas} or more, or leave it out",
            rests_on=("serve.replicas",),
        )


def certificate(file: ExpandedFile) -> Iterator[Finding]:
    """A load balancer takes certificates of its own region only."""
    if file.serve is None or file.serve.certificate_arn is None:
        return
    arn, region = file.serve.certificate_arn, file.cluster.region
    match = _CERTIFICATE.fullmatch(arn)
    if match is None:
        yield Finding(
            "serve.certificate_arn",
            arn,
            "is no ARN of a certificate in ACM",
            f"write it as arn:aws:acm:{region}:123456789012:certificate/...",
        )
    elif match["region"] != region:
        yield Finding(
            "serve.certificate_arn",
            arn,
            f"is of {match['region']}, and a load balancer in {region} takes certificates of {region} only",
            f"request or import one in {region}",
            rests_on=("cluster.region",),
        )


def callers(file: ExpandedFile) -> Iterator[Finding]:
    """Beyond the cluster only named networks call it, with TLS and a key."""
    serve = file.serve
    if serve is None:
        return
    yield from own_networks("serve.client_cidrs", serve.client_cidrs, opens="the load balancer")
    related = ("serve.certificate_arn",)
    if serve.certificate_arn is None and serve.client_cidrs:
        yield Finding(
            "serve.client_cidrs",
            list(serve.client_cidrs),
            "names callers from beyond the cluster, and without a certificate there is no load balancer for them",
            "give serve.certificate_arn, or remove it",
            rests_on=related,
        )
    if serve.certificate_arn is not None and not serve.client_cidrs:
        yield Finding(
            "serve.client_cidrs",
            None,
            "is missing: the load balancer would let nobody in",
            'list the networks of its callers, as in ["10.20.0.0/16"]',
            rests_on=related,
        )
    if serve.certificate_arn is not None and file.serving.api_key_secret is None:
        yield Finding(
            "serving.api_key_secret",
            None,
            "is missing: behind a load balancer `/v1` would answer anybody on those networks",
            "name a Secret of the namespace whose key `api-key` holds the key",
            rests_on=related,
        )


def _batch_only(file: ExpandedFile, arm: SingleArm) -> bool:
    runtime = RUNTIMES.get(arm.runtime or file.runtime)
    mode = runtime.modes.get(arm.speculation.mode) if runtime and arm.speculation else None
    return mode is not None and mode.batch_only
