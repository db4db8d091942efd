"""Pinned images of the nodes, and which of them serves the runtimes of an experiment.

Release versions and drivers: changelog of awslabs/amazon-eks-ami, whose releases publish the standard and the Neuron
variant together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trnspec.experiment.catalogue.runtimes import Runtime

OLDEST_FOR_CLAIMS = (1, 34, 2)
"""1.34.0 and 1.34.1 have a regression in resource claims (kubernetes#133920)."""
PANICS = frozenset({"20260930", "20261003"})
"""Releases whose kernel 6.12.110 can panic while it reclaims memory, on Kubernetes 1.31 to 1.35: the release notes say so, and
that 20261012 fixes it (https://github.com/awslabs/amazon-eks-ami/releases/tag/v20261012, issue 2845; read 2026-11-23)."""
PANICKING_KUBERNETES = (1, 31), (1, 35)


@dataclass(frozen=True, kw_only=True)
class NodeImage:
    """One release of the EKS images for Amazon Linux 2023."""

    kubernetes: str
    release: str
    """What a managed node group takes as its release version: kubelet and date."""
    neuron_driver: str
    """aws-neuronx-dkms in the Neuron variant."""

    def __post_init__(self) -> None:
        """Raises ValueError for a release that must never be pinned."""
        oldest, newest = PANICKING_KUBERNETES
        if self.date in PANICS and oldest <= tuple(map(int, self.kubernetes.split("."))) <= newest:
            raise ValueError(
                f"node image {self.release}: its kernel can panic on Kubernetes 1.31 to 1.35 (awslabs/amazon-eks-ami "
                "issue 2845); pin 20261012 or later, or a release before 20260930"
            )

    @property
    def date(self) -> str:
        """As the release is dated: year, month, day without separators."""
        return self.release.rpartition("-")[2]

    @property
    def source(self) -> str:
        """Where release and driver were read."""
        return f"https://github.com/awslabs/amazon-eks-ami/releases/tag/v{self.date}"

    @property
    def driver_line(self) -> str:
        """Major and minor version of the driver, which is what runtime libraries refuse by."""
        return ".".join(self.neuron_driver.split(".")[:2])


NODE_IMAGES = (
    NodeImage(kubernetes="1.35", release="1.35.6-20260714", neuron_driver="2.29.0.0"),
    NodeImage(kubernetes="1.35", release="1.35.6-20260625", neuron_driver="2.28.0.0"),
    NodeImage(kubernetes="1.36", release="1.36.2-20260714", neuron_driver="2.29.0.0"),
    NodeImage(kubernetes="1.36", release="1.36.2-20260625", neuron_driver="2.28.0.0"),
)
"""The newest first. Of each driver the last release whose contents could be read."""


def images_of(kubernetes: str) -> tuple[NodeImage, ...]:
    """The images for a Kubernetes version, the newest first; none where none is pinned."""
    return tuple(image for image in NODE_IMAGES if image.kubernetes == kubernetes)


def serving_image(kubernetes: str, runtimes: Iterable[Runtime]) -> NodeImage | None:
    """The newest image with a driver that every runtime takes; `None` where no image has one."""
    bounds = [runtime.drivers for runtime in runtimes]
    able = (image for image in images_of(kubernetes) if all(own.serve(image.neuron_driver) for own in bounds))
    return next(able, None)


def versions_serving(runtimes: Iterable[Runtime]) -> list[str]:
    """The Kubernetes versions with an image that serves every runtime."""
    needed = list(runtimes)
    return sorted({image.kubernetes for image in NODE_IMAGES if serving_image(image.kubernetes, needed)})
