"""Pinned images of the nodes, and whether the Neuron driver in them fits the runtime in an experiment's containers.

Release versions and driver: changelog of awslabs/amazon-eks-ami, release v20260714, which publishes the standard and
the Neuron variant together (https://github.com/awslabs/amazon-eks-ami/releases/tag/v20260714).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from infra.errors import InfraError

if TYPE_CHECKING:
    from experiment import Experiment

OLDEST_FOR_CLAIMS = (1, 34, 2)
"""1.34.0 and 1.34.1 have a regression in resource claims (kubernetes#133920)."""


@dataclass(frozen=True, kw_only=True)
class NodeImage:
    """One release of the EKS images for Amazon Linux 2023."""

    release: str
    """What a managed node group takes as its release version: kubelet and date."""
    neuron_driver: str
    """aws-neuronx-dkms in the Neuron variant."""


NODE_IMAGES = {
    "1.35": NodeImage(release="1.35.6-20260714", neuron_driver="2.29.0.0"),
    "1.36": NodeImage(release="1.36.2-20260714", neuron_driver="2.29.0.0"),
}


def node_image(kubernetes: str) -> NodeImage:
    """The image for nodes of a cluster. Raises `InfraError` where none is pinned."""
    if kubernetes not in NODE_IMAGES:
        raise InfraError(
            f"cluster.kubernetes = {kubernetes!r}: no node image is pinned for it; use {' or '.join(NODE_IMAGES)}"
        )
    return NODE_IMAGES[kubernetes]


def check_driver(experiment: Experiment) -> None:
    """Raises `InfraError` where a runtime of the experiment refuses the driver of the node image.

    A runtime library states the oldest driver that it works with; newer drivers keep serving older libraries.
    """
    driver = node_image(experiment.cluster.kubernetes).neuron_driver
    for arm in experiment.arms:
        oldest = arm.runtime.oldest_driver
        if oldest is not None and version(driver) < version(oldest):
            raise InfraError(
                f"runtime {arm.runtime.name} of arm {arm.name}: needs Neuron driver {oldest} or later, the node image "
                f"{node_image(experiment.cluster.kubernetes).release} has {driver}; choose an older runtime, or another "
                "cluster.kubernetes whose image has it"
            )


def version(text: str) -> tuple[int, ...]:
    """`2.29.0.0` or `1.35.6-20260714` as numbers that compare."""
    return tuple(int(part) for part in text.partition("-")[0].split("."))
