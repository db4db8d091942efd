"""The stacks of an experiment, the values that they pass to each other, and their order of deployment."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from constructs import Construct

from cdk8s_charts.manifests import ManifestFile
from infra.deployment_file import Settings
from infra.stacks.cluster import ClusterStack
from infra.stacks.experiment_stack import configure_log_groups, tag
from infra.stacks.identity import IdentityStack
from infra.stacks.network import NetworkStack
from infra.stacks.nodes import NodesStack
from infra.stacks.observability import ObservabilityStack
from infra.stacks.runner import RunnerStack
from infra.stacks.storage import StorageStack
from infra.stacks.workloads import WorkloadsStack
from trnspec.experiment import Experiment


def add_stacks(
    scope: Construct,
    *,
    experiment: Experiment,
    files: tuple[ManifestFile, ...],
    settings: Settings,
    runs: Mapping[str, Any] | None = MappingProxyType({}),
) -> ClusterStack:
    """Add all stacks of the experiment to `scope`, an app or a stage of a pipeline; `files` are its manifests. `runs` are the
    defaults of the CodeBuild project that runs it; None makes no such project."""
    common: dict[str, Any] = {"experiment": experiment, "settings": settings}
    tag(scope, {**settings.tags, "experiment": experiment.name})
    vpc = None if experiment.cluster.network.vpc else NetworkStack(scope, **common).vpc
    storage = StorageStack(scope, **common)
    observability = ObservabilityStack(scope, **common)
    control = ClusterStack(scope, **common, vpc=vpc)
    where: dict[str, Any] = {"cluster": control.cluster, "vpc": control.vpc}
    nodes = NodesStack(scope, **common, **where)
    identity = IdentityStack(scope, **common, cluster=control.cluster, store=storage.store)
    workloads = WorkloadsStack(scope, **common, **where, files=files)
    # A pod gets its role when it starts, so the associations come first; and `cdk destroy` takes the pods away
    # before the nodes under them and the buckets that they mount.
    for earlier in (storage, identity, nodes):
        workloads.add_stack_dependency(earlier)
    if runs is not None:
        keys = {"store": storage.store.key, "notices": observability.key}
        RunnerStack(scope, **common, **where, **keys, **runs)
    configure_log_groups(scope, settings)
    return control
