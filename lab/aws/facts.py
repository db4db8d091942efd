"""What the APIs show after a rehearsal, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """`eks describe-cluster`."""

    name: str
    version: str
    """Kubernetes minor version."""
    public: bool
    private: bool
    public_cidrs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LaunchTemplate:
    """`ec2 describe-launch-template-versions`, the version that the node group names."""

    id: str
    instance_type: str
    """Empty where the node group names the types."""
    network_interfaces: int


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """`eks describe-nodegroup`."""

    name: str
    cluster: str
    ami_type: str
    capacity_type: str
    desired: int
    minimum: int
    maximum: int
    instance_types: tuple[str, ...]
    """Empty where the launch template names the type."""
    labels: Mapping[str, str]
    taints: tuple[str, ...]
    """Each as `key=value:EFFECT`."""
    launch_template: LaunchTemplate | None


@dataclass(frozen=True, kw_only=True)
class AppliedManifest:
    """What the kubectl provider would have applied."""

    stack: str
    logical_id: str
    cluster: str
    objects: tuple[Mapping[str, Any], ...]
    """Kubernetes objects with every token resolved, otherwise verbatim."""
    prune_label: str
    """Label that the CDK adds to each object, to find what to delete later; empty when pruning is off."""


@dataclass(frozen=True, kw_only=True)
class HelmRelease:
    """What the kubectl provider would have installed."""

    stack: str
    logical_id: str
    release: str
    chart: str
    repository: str
    version: str
    namespace: str
    values: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ReadBack:
    """Everything that was read back."""

    clusters: tuple[Cluster, ...]
    node_groups: tuple[NodeGroup, ...]
    buckets: tuple[str, ...]
    """Names; of a bucket's properties moto keeps the encryption only, so templates have to prove the rest."""
    dashboards: Mapping[str, str]
    """Name -> body, as `get-dashboard` returns it."""
    alarms: tuple[str, ...]
    """Names, as `describe-alarms` returns them; composite ones are recorded only."""
    schedules: Mapping[str, str]
    """Name -> expression, as `get-schedule` returns it."""
    manifests: tuple[AppliedManifest, ...]
    helm_releases: tuple[HelmRelease, ...]

    @property
    def objects(self) -> tuple[Mapping[str, Any], ...]:
        """All Kubernetes objects, in the order of the stacks."""
        return tuple(one for manifest in self.manifests for one in manifest.objects)
