"""What stands in a cluster that the experiment does not own, by name: listed before and after a teardown, so that the
difference is seen to be ours."""

from __future__ import annotations

from dataclasses import dataclass

from experiment import Experiment
from experiment.finding import Refusal
from experiment.model import INSTALLABLE
from experiment.naming import cluster_name
from operations.cloud import cloudformation
from operations.cloud.access import cluster_of
from operations.cloud.aws import Aws

_OF_EKS = {
    "node group": ("list_nodegroups", "nodegroups"),
    "add-on": ("list_addons", "addons"),
    "access entry": ("list_access_entries", "accessEntries"),
    "pod identity": ("list_pod_identity_associations", "associations"),
}
_OF_SERVER = ("namespaces", "priorityclasses", "persistentvolumes", "deviceclasses")


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Names, each after its kind; `untold` says what could not be listed."""

    names: frozenset[str]
    untold: tuple[str, ...]


def listed(experiment: Experiment, aws: Aws) -> Standing:
    """Everything that a deployment may make in the cluster, and the rules of the cluster's group, which none changes."""
    names: set[str] = set()
    untold = []
    for kind, (operation, key) in _OF_EKS.items():
        try:
            for one in aws.client("eks").every(operation, key, clusterName=cluster_name(experiment)):
                name = one if isinstance(one, str) else f"{one['namespace']}/{one['serviceAccount']}"
                names.add(f"{kind}: {name}")
        except Refusal as error:
            untold += error.lines
    group = [{"Name": "group-id", "Values": [experiment.cluster.security_group or ""]}]
    try:
        rules = aws.client("ec2").every("describe_security_group_rules", "SecurityGroupRules", Filters=group)
        names |= {f"rule: {one['SecurityGroupRuleId']}" for one in rules}
        with cluster_of(experiment, aws) as kubernetes:
            for kind in _OF_SERVER:
                names |= {f"{kind}: {one['metadata']['name']}" for one in kubernetes.list(kind)}
    except Refusal as error:
        untold += error.lines
    return Standing(names=frozenset(names), untold=tuple(untold))


def of_experiment(experiment: Experiment, names: frozenset[str], aws: Aws) -> set[str]:
    """Those that the experiment's deployment makes: by its name, or installed because the cluster lacked it."""
    own = experiment.name
    others = [f"{name}-" for name in cloudformation.by_experiment(aws) if name.startswith(f"{own}-")]
    brought = {f"add-on: {name}" for name in INSTALLABLE if experiment.cluster.brings(name)}
    if experiment.cluster.brings("neuron"):
        brought.add("deviceclasses: neuron.aws.com")
    found = set()
    for one in names:
        name = one.split(": ", 1)[1].rpartition(":role/")[2]
        begins = name == own or name.startswith((f"{own}-", f"{own}/"))
        if one in brought or (begins and not name.startswith(tuple(others))):
            found.add(one)
    return found
