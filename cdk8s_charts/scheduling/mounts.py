"""Pods that nobody renders: the S3 CSI driver starts one for each mount, on the node of the pod that mounts.

Mountpoint CSI driver 2.x runs one pod a volume, node and identity, with the requests that the volume's attributes name,
and the workload waits in its creation until that pod runs (docs/MOUNTPOINT_POD_SHARING.md and docs/CONFIGURATION.md of
https://github.com/awslabs/mountpoint-s3-csi-driver).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdk8s_charts.scheduling.quantities import Amounts
from cdk8s_charts.scheduling.workloads import named

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cdk8s_charts.scheduling.workloads import Object, Workload

_DRIVER = "s3.csi.aws.com"
_REQUESTS = "mountpointContainerResourcesRequests"


@dataclass(frozen=True)
class Volume:
    """A PersistentVolume of the driver."""

    name: str
    asks: Amounts
    """Of the pod that mounts it."""


@dataclass(frozen=True)
class Mount:
    """A Mountpoint pod, which all pods of one service account share."""

    volume: Volume
    account: str


def s3_volumes(objects: Iterable[Object]) -> dict[str, Volume]:
    """The driver's volumes by the name of the claim that is bound to them."""
    known = tuple(objects)
    volumes = {
        name: Volume(name, _asks((item["spec"]["csi"]).get("volumeAttributes") or {}))
        for name, item in named(known, "PersistentVolume").items()
        if (item["spec"].get("csi") or {}).get("driver") == _DRIVER
    }
    claims = named(known, "PersistentVolumeClaim").items()
    return {
        name: volumes[volume]
        for name, claim in claims
        if (volume := claim["spec"].get("volumeName", "")) in volumes
    }


def needed(workload: Workload, volumes: Mapping[str, Volume]) -> frozenset[Mount]:
    """Mountpoint pods that a pod waits for."""
    account = workload.spec.get("serviceAccountName", "default")
    names = (
        (volume.get("persistentVolumeClaim") or {}).get("claimName", "")
        for volume in workload.spec.get("volumes") or ()
    )
    return frozenset(Mount(volumes[name], account) for name in names if name in volumes)


def total(mounts: Iterable[Mount]) -> Amounts:
    """What Mountpoint pods request together."""
    return sum((mount.volume.asks for mount in mounts), Amounts())


def _asks(attributes: Mapping[str, str]) -> Amounts:
    given = {
        "cpu": attributes.get(f"{_REQUESTS}Cpu", 0),
        "memory": attributes.get(f"{_REQUESTS}Memory", 0),
    }
    return Amounts.of(given, pods=1)
