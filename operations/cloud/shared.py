"""Clusters that several experiments share, or that have another owner: what belongs to an experiment, and who uses it. A list before and after a
teardown shows that only the experiment's objects were removed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from core.findings import Refusal
from experiment import Experiment
from experiment.forms import INSTALLABLE
from experiment.naming import cluster_name, container_insights_log_groups, namespace, neuron_release
from operations.cloud import cloudformation
from operations.cloud.access import cluster_of
from operations.cloud.aws import Aws, AwsError
from operations.cloud.kubernetes import release_of

_IN_EKS = {
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
_IN_SERVER = {
    "Namespace": "namespaces",
    "PriorityClass": "priorityclasses",
    "PersistentVolume": "persistentvolumes",
    "DeviceClass": "deviceclasses",
}
_AGENTS = "namespaces: amazon-cloudwatch"
_USING = ("nodes", "identity", "workloads")
"""Stacks that are deployed into a cluster. An experiment that has only its buckets left does not use a cluster."""


@dataclass(frozen=True)
class Listing:
    """The contents of a cluster."""

    names: dict[str, bool] = field(default_factory=dict)
    """Kinds and names, and whether a stack of the experiment created the object."""
    unknown: list[str] = field(default_factory=list)
    """One line for each list that could not be read."""

    @property
    def ours(self) -> set[str]:
        return {name for name, own in self.names.items() if own}


@dataclass(frozen=True, kw_only=True)
class StackResources:
    """The resources that the stacks of an experiment created, from CloudFormation and their templates."""

    ids: frozenset[tuple[str, str]]
    """Kind and part of a physical id: CloudFormation joins `cluster|add-on`, `cluster/group`, `role|cluster`."""
    objects: frozenset[str]
    releases: frozenset[str]

    def owns(self, kind: str, name: str) -> bool:
        return (kind, name) in self.ids


def made(experiment: Experiment, aws: Aws) -> StackResources:
    """Return what the existing stacks created, and the experiment's namespace, no matter who applied it."""
    client = aws.client("cloudformation")
    ids, objects, releases = set(), {f"namespaces: {namespace(experiment)}"}, set()
    for stack in cloudformation.deployed(experiment, aws):
        for one in client.every("list_stack_resources", "StackResourceSummaries", StackName=stack.name):
            if kind := _TYPES.get(one["ResourceType"]):
                id_ = one.get("PhysicalResourceId", "")
                ids |= {(kind, part) for part in (id_, *id_.split("|"), id_.partition("/")[2])}
        template = client.get_template(StackName=stack.name)["TemplateBody"]
        for resource in (template if isinstance(template, dict) else {}).get("Resources", {}).values():
            properties = resource.get("Properties", {})
            if resource["Type"] == "Custom::AWSCDK-EKS-KubernetesResource":
                objects |= set(_named(properties["Manifest"]))
            elif resource["Type"] == "Custom::AWSCDK-EKS-HelmChart":
                releases.add(properties["Release"])
    return StackResources(ids=frozenset(ids), objects=frozenset(objects), releases=frozenset(releases))


def _named(manifest: Any) -> Iterator[str]:
    """Return objects outside namespaces in a manifest of the template, which may have references between pieces of text."""
    if isinstance(manifest, Mapping):
        manifest = "".join(piece if isinstance(piece, str) else "x" for piece in manifest["Fn::Join"][1])
    with suppress(ValueError):
        for item in json.loads(manifest):
            if kind := _IN_SERVER.get(item["kind"]):
                yield f"{kind}: {item['metadata']['name']}"


def listed(experiment: Experiment, aws: Aws) -> Listing:
    """List everything that a deployment may create in the cluster, its log groups, and the rules of its security group, which no
    deployment changes."""
    by, listing = made(experiment, aws), Listing()
    sources = [_in_eks(kind, experiment, aws, by) for kind in _IN_EKS] + [_beside_eks(experiment, aws, by)]
    for source in sources:
        try:
            listing.names.update(source)
        except Refusal as error:
            listing.unknown.extend(error.lines)
    if by.owns("add-on", "amazon-cloudwatch-observability") and _AGENTS in listing.names:
        listing.names[_AGENTS] = True  # the add-on makes and removes it
    return listing


def _in_eks(kind: str, experiment: Experiment, aws: Aws, by: StackResources) -> Iterator[tuple[str, bool]]:
    cluster = cluster_name(experiment)
    for entry in aws.client("eks").every(*_IN_EKS[kind], clusterName=cluster):
        if isinstance(entry, str):
            yield f"{kind}: {entry}", by.owns(kind, entry) or by.owns(kind, entry.rpartition("/")[2])
        else:
            owner = entry.get("ownerArn", "").partition(f":addon/{cluster}/")[2].partition("/")[0]
            own = by.owns(kind, entry.get("associationArn", "")) or by.owns("add-on", owner)
            yield f"{kind}: {entry['namespace']}/{entry['serviceAccount']}", own


def _beside_eks(experiment: Experiment, aws: Aws, by: StackResources) -> Iterator[tuple[str, bool]]:
    prefix = f"{container_insights_log_groups(experiment)[0].rpartition('/')[0]}/"
    for group in aws.client("logs").every("describe_log_groups", "logGroups", logGroupNamePrefix=prefix):
        yield f"log group: {group['logGroupName']}", by.owns("log group", group["logGroupName"])
    of_cluster = [{"Name": "group-id", "Values": [experiment.cluster.security_group or ""]}]
    asked = "describe_security_group_rules", "SecurityGroupRules"
    for rule in aws.client("ec2").every(*asked, Filters=of_cluster):
        yield f"rule: {rule['SecurityGroupRuleId']}", False
    with cluster_of(experiment, aws) as kubernetes:
        for kind in _IN_SERVER.values():
            for item in kubernetes.list(kind):
                name = f"{kind}: {item['metadata']['name']}"
                yield name, name in by.objects or release_of(item) in by.releases


def used_by_others(experiment: Experiment, aws: Aws) -> str:
    """Return why experiments that use this one's cluster or nodes must be deleted first, or an empty string.

    They are known by their files here, and by the namespaces to whose pods EKS gives roles: the identity stack of each
    experiment says so of its own. What this one installed in an existing cluster is there once: others use it that do not bring
    it, and those without a file here.
    """
    own, existing, brought = experiment.name, experiment.cluster.existing, list[str]()
    if existing:
        by = made(experiment, aws)
        brought = [
            name for name in INSTALLABLE if by.owns("add-on", name) or (name == "neuron" and by.releases)
        ]
    others = {
        name
        for name, stacks in cloudformation.by_experiment(aws).items()
        if name not in (own, existing) and {f"{name}-{part}" for part in _USING} & {*stacks}
    }
    files = cloudformation.neighbours(experiment)
    known = {other.name for other in files}
    on_nodes = {other.name for other in files if other.cluster.nodes_of == own}
    near = on_nodes | {
        other.name
        for other in files
        if not existing or not all(other.cluster.brings(name) for name in INSTALLABLE if name in brought)
    }
    if others - known and (brought or not existing):
        near |= _namespaces(experiment, aws) - known
    if not (names := ", ".join(sorted(others & near))):
        return ""
    remedy = "take that down first (./trnspec teardown with its file), then run this again"
    if not existing:
        return f"{own}: {names} is deployed into its cluster, and would lose it; {remedy}"
    what = ", ".join([*(["its nodes"] if others & on_nodes else []), *brought])
    return f"{own}: {names} in cluster {existing} uses {what}, which this would remove; {remedy}"


def _namespaces(experiment: Experiment, aws: Aws) -> set[str]:
    """Return the namespaces whose pods get roles from EKS in the cluster, if it exists."""
    entries = aws.client("eks").every(*_IN_EKS["pod identity"], clusterName=cluster_name(experiment))
    try:
        return {entry["namespace"] for entry in entries}
    except AwsError as error:
        if error.code == "ResourceNotFoundException":
            return set()
        raise


def unmarked(experiment: Experiment, aws: Aws) -> str:
    """Return why a Neuron driver must not be deleted with the stacks: in an existing cluster its release has the experiment's name, and one that
    does not may have another owner."""
    existing = experiment.cluster.existing
    others = made(experiment, aws).releases - {neuron_release(experiment)} if existing else frozenset()
    if not others:
        return ""
    with cluster_of(experiment, aws) as cluster:
        items = [*cluster.list("deviceclasses"), *cluster.list("daemonsets", everywhere=True)]
    if not (name := ", ".join(sorted(others & {release_of(item) for item in items}))):
        return ""
    return (
        f"{experiment.name}: its workloads stack would uninstall Helm release {name} of namespace kube-system, which version 0.2 may "
        f"have taken over from another owner; ask the cluster's owner, run helm uninstall {name} --namespace kube-system if it "
        "is not used, then run this again"
    )
