"""The Trainium2 nodes, in a stack of their own: it is the one that costs, and the one that changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.constructs.neuron_nodes import NeuronNodes
from infra.constructs.time_to_live import TimeToLive
from infra.stacks.experiment_stack import ExperimentStack

if TYPE_CHECKING:
    from aws_cdk import aws_ec2 as ec2
    from aws_cdk import aws_eks_v2 as eks
    from constructs import Construct

    from experiment import Experiment
    from infra.settings import Settings


class NodesStack(ExperimentStack):
    """The group of Neuron nodes, and what empties it."""

    def __init__(
        self,
        scope: Construct,
        part: str,
        *,
        experiment: Experiment,
        settings: Settings,
        cluster: eks.ICluster,
        vpc: ec2.Vpc,
    ) -> None:
        super().__init__(scope, part, experiment=experiment, description="Trainium2 nodes")
        end = TimeToLive(self, "TimeToLive", experiment=experiment)
        nodes = NeuronNodes(
            self, "NeuronNodes", experiment=experiment, settings=settings, cluster=cluster, vpc=vpc
        )
        # A group that waits for its first node may take hours to be made, and what ends it is there before.
        nodes.group.node.add_dependency(end)
