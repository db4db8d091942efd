"""Which stacks there are, what each gets from the others, and in which order they are deployed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.settings import Settings
from infra.stacks.cluster import ClusterStack
from infra.stacks.identity import IdentityStack
from infra.stacks.network import NetworkStack
from infra.stacks.nodes import NodesStack
from infra.stacks.observability import ObservabilityStack
from infra.stacks.storage import StorageStack
from infra.stacks.workloads import WorkloadsStack

if TYPE_CHECKING:
    from constructs import Construct

    from cdk8s_charts.manifests import ManifestFile
    from experiment import Experiment
    from infra.deployment_file import Lasting


def add_stacks(
    scope: Construct,
    *,
    experiment: Experiment,
    files: tuple[ManifestFile, ...],
    lasting: Lasting,
    settings: Settings | None = None,
) -> None:
    """Put every stack of the experiment into `scope`, an app or a stage of a pipeline; `files` are its manifests."""
    settings = settings or Settings()
    network = NetworkStack(scope, "network", experiment=experiment, settings=settings)
    storage = StorageStack(scope, "storage", experiment=experiment, settings=settings)
    ObservabilityStack(
        scope, "observability", experiment=experiment, settings=settings, alarm_email=lasting.alarm_email
    )
    cluster = ClusterStack(
        scope,
        "cluster",
        experiment=experiment,
        settings=settings,
        vpc=network.vpc,
        admins=lasting.admins,
        pipeline_role=lasting.pipeline_role,
    )
    nodes = NodesStack(
        scope, "nodes", experiment=experiment, settings=settings, cluster=cluster.cluster, vpc=network.vpc
    )
    identity = IdentityStack(
        scope, "identity", experiment=experiment, cluster=cluster.cluster, store=storage.store
    )
    workloads = WorkloadsStack(
        scope,
        "workloads",
        experiment=experiment,
        files=files,
        settings=settings,
        cluster=cluster.cluster,
        vpc=network.vpc,
        build_images=lasting.build_images,
    )
    # A pod gets its role when it starts, so the associations come first; and `cdk destroy` takes the pods away
    # before the nodes under them and the buckets that they mount.
    for earlier in (storage, identity, nodes):
        workloads.add_stack_dependency(earlier)
