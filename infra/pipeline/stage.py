"""One account's share of the pipeline: the experiment's stacks as everybody deploys them, and the delivery's own two."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import aws_cdk as cdk

from infra.deployment import add_stacks
from infra.pipeline.delivery import DeliveryRoleStack, DeliveryStack
from infra.settings import Settings

if TYPE_CHECKING:
    from constructs import Construct

    from infra.pipeline.configuration import PipelineConfiguration, StageConfiguration
    from infra.pipeline.steps import ClusterStep
    from infra.stacks.cluster import ClusterStack
    from infra.stacks.network import NetworkStack
    from infra.stacks.storage import StorageStack


class DeliveredStage(cdk.Stage):
    """Every role in it carries the permissions boundary, without which the execution policy makes none."""

    def __init__(
        self,
        scope: Construct,
        *,
        configuration: PipelineConfiguration,
        stage: StageConfiguration,
        steps: tuple[ClusterStep, ...],
    ) -> None:
        super().__init__(
            scope,
            stage.name,
            env=cdk.Environment(account=stage.account, region=stage.experiment.cluster.region),
            permissions_boundary=cdk.PermissionsBoundary.from_name(configuration.boundary),
        )
        settings = Settings()
        add_stacks(
            self,
            experiment=stage.experiment,
            files=stage.files,
            lasting=stage.lasting,
            settings=settings,
        )
        network = cast("NetworkStack", self.node.find_child("network"))
        storage = cast("StorageStack", self.node.find_child("storage"))
        cluster = cast("ClusterStack", self.node.find_child("cluster"))
        role = DeliveryRoleStack(self, "delivery-role", stage=stage, steps=steps, key=storage.store.key)
        cluster.add_stack_dependency(role)
        delivery = DeliveryStack(
            self,
            "delivery",
            configuration=configuration,
            stage=stage,
            steps=steps,
            settings=settings,
            cluster=cluster.cluster,
            vpc=network.vpc,
        )
        delivery.add_stack_dependency(role)
