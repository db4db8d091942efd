"""Which stacks there are, what each takes from the others, and in which order they are deployed."""

from __future__ import annotations

from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from cdk8s_charts.manifests import ManifestFile
from experiment import Experiment
from infra.deployment_file import Lasting
from infra.stacks.cluster import ClusterStack
from infra.stacks.identity import IdentityStack
from infra.stacks.network import NetworkStack
from infra.stacks.nodes import NodesStack
from infra.stacks.observability import ObservabilityStack
from infra.stacks.storage import StorageStack
from infra.stacks.workloads import WorkloadsStack


def add_stacks(
    scope: Construct, *, experiment: Experiment, files: tuple[ManifestFile, ...], lasting: Lasting
) -> tuple[ec2.IVpc | None, StorageStack, ClusterStack]:
    """Put every stack of the experiment into `scope`, an app or a stage of a pipeline; `files` are its manifests.

    Returns what a delivery works with: the VPC that is made, nothing where the experiment names one, and two stacks.
    """
    existing = experiment.cluster.network.vpc
    made = None if existing else NetworkStack(scope, experiment=experiment).vpc
    storage = StorageStack(scope, experiment=experiment)
    ObservabilityStack(scope, experiment=experiment, alarm_email=lasting.alarm_email)
    control = ClusterStack(
        scope,
        experiment=experiment,
        made=made,
        admins=lasting.admins,
        pipeline_role=lasting.pipeline_role,
    )
    nodes = NodesStack(scope, experiment=experiment, cluster=control.cluster, made=made)
    identity = IdentityStack(scope, experiment=experiment, cluster=control.cluster, store=storage.store)
    workloads = WorkloadsStack(
        scope,
        experiment=experiment,
        files=files,
        cluster=control.cluster,
        made=made,
        build_images=lasting.build_images,
        gitops=lasting.workloads == "gitops",
    )
    # A pod gets its role when it starts, so the associations come first; and `cdk destroy` takes the pods away
    # before the nodes under them and the buckets that they mount.
    for earlier in (storage, identity, nodes):
        workloads.add_stack_dependency(earlier)
    return made, storage, control
