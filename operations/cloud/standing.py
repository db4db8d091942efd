"""What stands in a cluster that the experiment does not own, by name: listed before and after a teardown, so that the
difference is seen to be ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from core.findings import Refusal
from experiment import Experiment
from experiment.naming import cluster_name, container_insights_log_groups, namespace
from operations.cloud import cloudformation
from operations.cloud.access import cluster_of
from operations.cloud.aws import Aws

_OF_EKS = {
    "node group": ("list_nodegroups", "nodegroups"),
    "add-on": ("list_addons", "addons"),
    "access entry": ("list_access_entries", "accessEntries"),
    "pod identity": ("list_pod_identity_associations", "associations"),
}
_TYPES = {
    "AWS::EKS::Nodegroup": "node group",
    "AWS::EKS::Addon": "add-on",
    "AWS::EKS::AccessEntry": "access entry",
    # EKS makes an entry for the role of a node group, and keeps it when both are gone
    # (https://github.com/aws/containers-roadmap/issues/2441).
    "AWS::IAM::Role": "access entry",
    "AWS::EKS::PodIdentityAssociation": "pod identity",
    "AWS::Logs::LogGroup": "log group",
}
_OF_SERVER = {
    "Namespace": "namespaces",
    "PriorityClass": "priorityclasses",
    "PersistentVolume": "persistentvolumes",
    "DeviceClass": "deviceclasses",
}
_RELEASE = "meta.helm.sh/release-name"
"""Helm's annotation on every object of a chart (https://helm.sh/docs/faq/changes_since_helm2/)."""


def release_of(item: Mapping[str, Any]) -> str | None:
    """The Helm release that an object belongs to."""
    found: str | None = item["metadata"].get("annotations", {}).get(_RELEASE)
    return found


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Names, each after its kind; `ours` are those that a stack of the experiment made, `untold` says what could not be listed."""

    names: frozenset[str]
    ours: frozenset[str]
    untold: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Made:
    """What the stacks of an experiment made, as CloudFormation and their templates say."""

    ids: frozenset[tuple[str, str]]
    """Kind and a part of a physical id: CloudFormation joins `cluster|add-on`, `cluster/group`, `role|cluster`."""
    objects: frozenset[str]
    releases: frozenset[str]

    def owns(self, kind: str, name: str) -> bool:
        """Whether a stack made it."""
        return (kind, name) in self.ids


def made(experiment: Experiment, aws: Aws) -> Made:
    """Of the stacks that exist; and the experiment's namespace, no matter who applied it."""
    client = aws.client("cloudformation")
    ids, objects, releases = set(), {f"namespaces: {namespace(experiment)}"}, set()
    for stack in cloudformation.deployed(experiment, aws):
        for one in client.every("list_stack_resources", "StackResourceSummaries", StackName=stack.name):
            if kind := _TYPES.get(one["ResourceType"]):
                id_ = one.get("PhysicalResourceId", "")
                ids |= {(kind, part) for part in (id_, *id_.split("|"), id_.partition("/")[2])}
        template = client.get_template(StackName=stack.name)["TemplateBody"]
        for resource in (template if isinstance(template, dict) else {}).get("Resources", {}).values():
            told = resource.get("Properties", {})
            if resource["Type"] == "Custom::AWSCDK-EKS-KubernetesResource":
                objects |= set(_named(told["Manifest"]))
            elif resource["Type"] == "Custom::AWSCDK-EKS-HelmChart":
                releases.add(told["Release"])
    return Made(ids=frozenset(ids), objects=frozenset(objects), releases=frozenset(releases))


def _named(manifest: Any) -> Iterator[str]:
    """Objects of a cluster's own in a manifest of the template, in which a reference may stand between pieces of text."""
    if isinstance(manifest, Mapping):
        manifest = "".join(one if isinstance(one, str) else "x" for one in manifest["Fn::Join"][1])
    objects: list[Any] = []
    with suppress(ValueError):
        objects = json.loads(manifest)
    for one in objects:
        if kind := _OF_SERVER.get(one["kind"]):
            yield f"{kind}: {one['metadata']['name']}"


def listed(experiment: Experiment, aws: Aws) -> Standing:
    """Everything that a deployment may make in the cluster, its log groups, and the rules of its group, which none changes."""
    by, cluster = made(experiment, aws), cluster_name(experiment)
    names: dict[str, bool] = {}
    untold = []
    for kind, (operation, key) in _OF_EKS.items():
        try:
            for one in aws.client("eks").every(operation, key, clusterName=cluster):
                if isinstance(one, str):
                    names[f"{kind}: {one}"] = by.owns(kind, one) or by.owns(kind, one.rpartition("/")[2])
                    continue
                owner = one.get("ownerArn", "").partition(f":addon/{cluster}/")[2].partition("/")[0]
                own = by.owns(kind, one.get("associationArn", "")) or by.owns("add-on", owner)
                names[f"{kind}: {one['namespace']}/{one['serviceAccount']}"] = own
        except Refusal as error:
            untold += error.lines
    group = [{"Name": "group-id", "Values": [experiment.cluster.security_group or ""]}]
    prefix = container_insights_log_groups(experiment)[0].rpartition("/")[0]
    try:
        for one in aws.client("logs").every(
            "describe_log_groups", "logGroups", logGroupNamePrefix=f"{prefix}/"
        ):
            names[f"log group: {one['logGroupName']}"] = by.owns("log group", one["logGroupName"])
        for one in aws.client("ec2").every(
            "describe_security_group_rules", "SecurityGroupRules", Filters=group
        ):
            names[f"rule: {one['SecurityGroupRuleId']}"] = False
        with cluster_of(experiment, aws) as kubernetes:
            for kind in _OF_SERVER.values():
                for one in kubernetes.list(kind):
                    name = f"{kind}: {one['metadata']['name']}"
                    names[name] = name in by.objects or release_of(one) in by.releases
        if by.owns("add-on", "amazon-cloudwatch-observability") and "namespaces: amazon-cloudwatch" in names:
            names["namespaces: amazon-cloudwatch"] = True  # the add-on makes and removes it
    except Refusal as error:
        untold += error.lines
    ours = frozenset(name for name, own in names.items() if own)
    return Standing(names=frozenset(names), ours=ours, untold=tuple(untold))
