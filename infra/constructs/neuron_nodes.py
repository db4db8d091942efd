"""The Trainium2 nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from experiment.naming import NEURON_TAINT_KEY, NODE_ROLE_LABEL
from experiment.placement import nodes_needed
from infra.constructs.node_launch import metadata_options, root_volume
from infra.constructs.node_role import node_role

if TYPE_CHECKING:
    from experiment import Experiment
    from infra.settings import Settings

_Template = ec2.CfnLaunchTemplate


class NeuronNodes(Construct):
    """A managed node group of the experiment's instance type in one zone, empty unless the experiment asks for nodes.

    The instance type stands in the launch template, not in the group: aws_eks_v2 2.275 takes trn2 for no accelerator
    and refuses the Neuron image with it, and a capacity block wants it there as well. Not run on AWS.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        experiment: Experiment,
        settings: Settings,
        cluster: eks.ICluster,
        vpc: ec2.Vpc,
    ) -> None:
        super().__init__(scope, construct_id)
        wanted = experiment.cluster.nodes
        groups = [cluster.cluster_security_group_id, self._efa_group(vpc).security_group_id]
        template = _Template(
            self,
            "Template",
            launch_template_data=_Template.LaunchTemplateDataProperty(
                instance_type=experiment.cluster.instance.name,
                network_interfaces=_interfaces(experiment.cluster.instance.efa_interfaces, groups),
                metadata_options=metadata_options(),
                block_device_mappings=[
                    root_volume(
                        gib=settings.neuron_volume_gib,
                        iops=settings.neuron_volume_iops,
                        mib_s=settings.neuron_volume_mib_s,
                    )
                ],
            ),
        )
        eks.Nodegroup(
            self,
            "Group",
            cluster=cluster,
            ami_type=eks.NodegroupAmiType.AL2023_X86_64_NEURON,
            launch_template_spec=eks.LaunchTemplateSpec(
                id=template.ref, version=template.attr_latest_version_number
            ),
            min_size=0,
            desired_size=wanted,
            max_size=max(wanted, nodes_needed(experiment)),
            node_role=node_role(self, "Role"),
            # One zone: capacity blocks and EFA live in one.
            subnets=ec2.SubnetSelection(subnets=[vpc.private_subnets[0]]),
            labels={NODE_ROLE_LABEL: "neuron"},
            taints=[eks.TaintSpec(key=NEURON_TAINT_KEY, value="true", effect=eks.TaintEffect.NO_SCHEDULE)],
        )

    def _efa_group(self, vpc: ec2.Vpc) -> ec2.SecurityGroup:
        """EFA passes only between members of a group that allows all traffic to and from itself, by name.

        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html
        """
        group = ec2.SecurityGroup(
            self,
            "Efa",
            vpc=vpc,
            description="EFA traffic between Neuron nodes",
            allow_all_outbound=False,
        )
        group.add_ingress_rule(group, ec2.Port.all_traffic(), "EFA from the group itself")
        group.add_egress_rule(group, ec2.Port.all_traffic(), "EFA to the group itself")
        return group


def _interfaces(count: int, groups: list[str]) -> list[ec2.CfnLaunchTemplate.NetworkInterfaceProperty]:
    """One EFA interface a network card; the first carries IP as well.

    The Neuron DRA driver publishes the groups of connected devices, from which the arms are placed, on instances
    with EFA only (Neuron DRA documentation).
    """
    return [
        _Template.NetworkInterfaceProperty(
            network_card_index=card,
            device_index=0 if card == 0 else 1,
            interface_type="efa" if card == 0 else "efa-only",
            groups=groups,
            delete_on_termination=True,
        )
        for card in range(count)
    ]
