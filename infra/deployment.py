"""The stacks of an experiment, the values that they pass to each other, and their order of deployment."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from constructs import Construct

from infra.deployment_file import DeployedExperiment
from infra.stacks.cluster import ClusterStack
from infra.stacks.experiment_stack import configure_log_groups, tag
from infra.stacks.identity import IdentityStack
from infra.stacks.network import NetworkStack
from infra.stacks.nodes import NodesStack
from infra.stacks.observability import ObservabilityStack
from infra.stacks.runner import RunnerStack
from infra.stacks.storage import StorageStack
from infra.stacks.workloads import WorkloadsStack


def add_stacks(
    scope: Construct, deployed: DeployedExperiment, *, runs: Mapping[str, Any] | None = MappingProxyType({})
) -> ClusterStack:
    """Add all stacks of the experiment to `scope`, an app or a stage of a pipeline. `runs` are the defaults of the CodeBuild project
    that runs it; None makes no such project."""
    experiment, settings = deployed.experiment, deployed.settings
    tag(scope, {**settings.tags, "experiment": experiment.name})
    vpc = None if experiment.cluster.network.vpc else NetworkStack(scope, deployed).vpc
    storage = StorageStack(scope, deployed)
    observability = ObservabilityStack(scope, deployed)
    control = ClusterStack(scope, deployed, vpc)
    nodes = NodesStack(scope, control)
    identity = IdentityStack(scope, control, storage.store)
    workloads = WorkloadsStack(scope, control)
    # A pod gets its role when it starts, so the associations come first; and `cdk destroy` takes the pods away
    # before the nodes under them and the buckets that they mount.
    for earlier in (storage, identity, nodes):
        workloads.add_stack_dependency(earlier)
    if runs is not None:
        RunnerStack(scope, control, store=storage.store.key, notices=observability.key, **runs)
    configure_log_groups(scope, settings)
    return control
