"""What the APIs show after a rehearsal: read through boto3 where moto has the API, from the records where it has none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lab.aws.accounting import Resource
from lab.aws.moto_models import HELM_CHART, KUBERNETES_RESOURCE, Outcome, Properties


@dataclass(frozen=True, kw_only=True)
class ReadBack:
    """Everything that was read back; what is read by people only is in words."""

    clusters: tuple[str, ...]
    """`eks describe-cluster`: name, minor version of Kubernetes, who reaches it."""
    node_groups: tuple[str, ...]
    """`eks describe-nodegroup`: name, instance types, sizes, network interfaces, taints, labels."""
    buckets: tuple[str, ...]
    """Names; of a bucket's properties moto keeps the encryption only, so templates have to prove the rest."""
    dashboards: Mapping[str, str]
    """Name -> body, as `get-dashboard` returns it."""
    alarms: tuple[str, ...]
    """Names, as `describe-alarms` returns them; composite ones are recorded only."""
    schedules: Mapping[str, str]
    """Name -> expression, as `get-schedule` returns it."""
    objects: tuple[Mapping[str, Any], ...]
    """Kubernetes objects that the kubectl provider would have applied, every token resolved, in the order of the stacks."""
    helm_releases: tuple[str, ...]
    """Charts that the same provider would have installed, with version and namespace."""


def read_back(
    resources: Iterable[Resource],
    records: Iterable[tuple[str, Properties]],
    client_of: Callable[[str], Any],
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
        objects=tuple(
            one
            for type_, properties in records
            if type_ == KUBERNETES_RESOURCE
            for one in json.loads(properties["Manifest"])
        ),
        helm_releases=tuple(_release(properties) for type_, properties in records if type_ == HELM_CHART),
    )


def _cluster(eks: Any, name: str) -> str:
    found = eks.describe_cluster(name=name)["cluster"]
    network = found["resourcesVpcConfig"]
    cidrs = ", ".join(network.get("publicAccessCidrs", ())) or "everyone"
    public = f"public for {cidrs}" if network.get("endpointPublicAccess", True) else "not public"
    private = "private" if network.get("endpointPrivateAccess", False) else "not private"
    return f"{name}: Kubernetes {found['version']}, {public}, {private}"


def _node_group(eks: Any, ec2: Any, physical_id: str) -> str:
    cluster, name = physical_id.split("/")
    found = eks.describe_nodegroup(clusterName=cluster, nodegroupName=name)["nodegroup"]
    scaling, template = found["scalingConfig"], {}
    if named := found.get("launchTemplate"):
        answer = ec2.describe_launch_template_versions(
            LaunchTemplateId=named["id"], Versions=[named.get("version", "$Default")]
        )
        template = answer["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    # Either names the type in EKS, never both; moto makes one up for the node group.
    types = template.get("InstanceType") or "/".join(found["instanceTypes"])
    sizes = f"desired {scaling['desiredSize']} ({scaling['minSize']} to {scaling['maxSize']})"
    parts = [f"{name}: {types}, {sizes}"]
    if interfaces := template.get("NetworkInterfaces"):
        parts.append(f"{len(interfaces)} network interfaces")
    parts += [f"taint {one['key']}={one.get('value', '')}:{one['effect']}" for one in found.get("taints", ())]
    parts += [f"label {key}={value}" for key, value in found.get("labels", {}).items()]
    return ", ".join(parts)


def _alarms(cloudwatch: Any, names: list[str]) -> tuple[str, ...]:
    if not names:
        return ()
    pages = cloudwatch.get_paginator("describe_alarms").paginate(AlarmNames=names)
    return tuple(alarm["AlarmName"] for page in pages for alarm in page["MetricAlarms"])


def _schedules(scheduler: Any) -> Mapping[str, str]:
    pages = scheduler.get_paginator("list_schedules").paginate()
    found = [(one["Name"], one["GroupName"]) for page in pages for one in page["Schedules"]]
    return {
        name: scheduler.get_schedule(Name=name, GroupName=group)["ScheduleExpression"]
        for name, group in found
    }


def _release(properties: Properties) -> str:
    chart = properties.get("Chart", properties.get("ChartAssetURL", ""))
    return f"{chart} {properties.get('Version') or '(no version)'} into {properties.get('Namespace', '')}"
