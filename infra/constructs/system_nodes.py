"""The nodes that carry everything but the models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from experiment.catalogue.node_images import images_of
from experiment.naming import NODE_ROLE_LABEL, system_nodegroup
from infra.constructs.node_launch import group_resource, metadata_options, named, root_volume
from infra.constructs.node_role import node_role

if TYPE_CHECKING:
    from experiment import Experiment
    from infra.settings import Settings


class SystemNodes(Construct):
    """A managed node group over all zones; `cluster` places it into its private subnets."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        experiment: Experiment,
        cluster: eks.ICluster,
        settings: Settings,
    ) -> None:
        super().__init__(scope, construct_id)
        template = ec2.CfnLaunchTemplate(
            self,
            "Template",
            launch_template_data=ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(
                metadata_options=metadata_options(),
                block_device_mappings=[root_volume(gib=settings.system_volume_gib)],
                tag_specifications=named(experiment, system_nodegroup(experiment)),
            ),
        )
        group = eks.Nodegroup(
            self,
            "Group",
            nodegroup_name=system_nodegroup(experiment),
            cluster=cluster,
            release_version=images_of(experiment.cluster.kubernetes)[0].release,
            ami_type=eks.NodegroupAmiType.AL2023_X86_64_STANDARD,
            instance_types=[ec2.InstanceType(settings.system_instance_type)],
            launch_template_spec=eks.LaunchTemplateSpec(
                id=template.ref, version=template.attr_latest_version_number
            ),
            min_size=settings.system_nodes,
            desired_size=settings.system_nodes,
            max_size=settings.system_nodes + 1,
            node_role=node_role(self, "Role"),
            subnets=ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS),
            labels={NODE_ROLE_LABEL: "system"},
        )
        group_resource(group, experiment.cluster.kubernetes)
