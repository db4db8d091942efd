"""What the APIs show after a rehearsal, as data.

What the APIs show after a rehearsal: read through boto3 where moto has the API, from the records where it has none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.aws.accounting import Outcome, Resource
from lab.aws.moto_models import HELM_CHART, KUBERNETES_RESOURCE


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


Record = tuple[str, str, str, Mapping[str, Any]]
"""Stack, logical id, type, resolved properties of a resource that was recorded only."""


def read_back(
    resources: Iterable[Resource], records: Iterable[Record], client_of: Callable[[str], Any]
) -> ReadBack:
    """Ask the APIs for what the stacks created. `client_of` makes a client from the name of a service."""
    made: dict[str, list[str]] = {}
    for one in resources:
        if one.outcome is Outcome.CREATED:
            made.setdefault(one.type, []).append(one.physical_id)
    records = tuple(records)
    eks, ec2, s3, cloudwatch = (client_of(service) for service in ("eks", "ec2", "s3", "cloudwatch"))
    for bucket in made.get("AWS::S3::Bucket", ()):
        s3.head_bucket(Bucket=bucket)
    return ReadBack(
        clusters=tuple(_cluster(eks, name) for name in made.get("AWS::EKS::Cluster", ())),
        node_groups=tuple(_node_group(eks, ec2, name) for name in made.get("AWS::EKS::Nodegroup", ())),
        buckets=tuple(made.get("AWS::S3::Bucket", ())),
        dashboards={
            name: cloudwatch.get_dashboard(DashboardName=name)["DashboardBody"]
            for name in made.get("AWS::CloudWatch::Dashboard", ())
        },
        alarms=_alarms(cloudwatch, made.get("AWS::CloudWatch::Alarm", [])),
        schedules=_schedules(client_of("scheduler")) if "AWS::Scheduler::Schedule" in made else {},
        manifests=tuple(_manifest(*record) for record in _of_type(records, KUBERNETES_RESOURCE)),
        helm_releases=tuple(_helm_release(*record) for record in _of_type(records, HELM_CHART)),
    )


def _of_type(records: tuple[Record, ...], wanted: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    return ((stack, name, properties) for stack, name, type_, properties in records if type_ == wanted)


def _cluster(eks: Any, name: str) -> Cluster:
    found = eks.describe_cluster(name=name)["cluster"]
    network = found["resourcesVpcConfig"]
    return Cluster(
        name=name,
        version=found["version"],
        public=network.get("endpointPublicAccess", True),
        private=network.get("endpointPrivateAccess", False),
        public_cidrs=tuple(network.get("publicAccessCidrs", ())),
    )


def _node_group(eks: Any, ec2: Any, physical_id: str) -> NodeGroup:
    cluster, name = physical_id.split("/")
    found = eks.describe_nodegroup(clusterName=cluster, nodegroupName=name)["nodegroup"]
    scaling, template = found["scalingConfig"], found.get("launchTemplate")
    return NodeGroup(
        name=name,
        cluster=cluster,
        ami_type=found["amiType"],
        capacity_type=found["capacityType"],
        desired=scaling["desiredSize"],
        minimum=scaling["minSize"],
        maximum=scaling["maxSize"],
        instance_types=tuple(found.get("instanceTypes", ())),
        labels=found.get("labels", {}),
        taints=tuple(
            f"{one['key']}={one.get('value', '')}:{one['effect']}" for one in found.get("taints", ())
        ),
        launch_template=_launch_template(ec2, template) if template else None,
    )


def _launch_template(ec2: Any, named: Mapping[str, str]) -> LaunchTemplate:
    answer = ec2.describe_launch_template_versions(
        LaunchTemplateId=named["id"], Versions=[named.get("version", "$Default")]
    )
    data = answer["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    return LaunchTemplate(
        id=named["id"],
        instance_type=data.get("InstanceType", ""),
        network_interfaces=len(data.get("NetworkInterfaces", ())),
    )


def _alarms(cloudwatch: Any, names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        return ()
    pages = cloudwatch.get_paginator("describe_alarms").paginate(AlarmNames=list(names))
    return tuple(alarm["AlarmName"] for page in pages for alarm in page["MetricAlarms"])


def _schedules(scheduler: Any) -> Mapping[str, str]:
    pages = scheduler.get_paginator("list_schedules").paginate()
    found = [(one["Name"], one["GroupName"]) for page in pages for one in page["Schedules"]]
    return {
        name: scheduler.get_schedule(Name=name, GroupName=group)["ScheduleExpression"]
        for name, group in found
    }


def _manifest(stack: str, logical_id: str, properties: Mapping[str, Any]) -> AppliedManifest:
    return AppliedManifest(
        stack=stack,
        logical_id=logical_id,
        cluster=properties["ClusterName"],
        objects=tuple(json.loads(properties["Manifest"])),
        prune_label=properties.get("PruneLabel", ""),
    )


def _helm_release(stack: str, logical_id: str, properties: Mapping[str, Any]) -> HelmRelease:
    return HelmRelease(
        stack=stack,
        logical_id=logical_id,
        release=properties["Release"],
        chart=properties.get("Chart", properties.get("ChartAssetURL", "")),
        repository=properties.get("Repository", ""),
        version=properties.get("Version", ""),
        namespace=properties.get("Namespace", ""),
        values=json.loads(properties.get("Values", "{}")),
    )
