"""The Trainium2 nodes: how they are bought, and what they are told when they start.

EKS merges the user data with its own part (https://docs.aws.amazon.com/eks/latest/userguide/launch-templates.html); `NodeConfig`
is nodeadm's (https://awslabs.github.io/amazon-eks-ami/nodeadm/doc/api/).
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from experiment.catalogue.instances import ZONES
from experiment.naming import NEURON_TAINT_KEY, NODE_ROLE_LABEL, neuron_nodegroup
from infra.constructs.node_launch import (
    group_resource,
    metadata_options,
    named,
    network,
    node_role,
    root_volume,
)

if TYPE_CHECKING:
    from experiment import Experiment

if TYPE_CHECKING:
    from constructs import Construct

    from experiment import Experiment

if TYPE_CHECKING:
    from experiment import Experiment
    from infra.settings import Settings


_BOUNDARY = "==part=="
_NODE_CONFIG = """\
---
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  instance:
    localStorage:
      strategy: RAID0
"""
"""The local NVMe disks become one, and kubelet and containerd live on it: images, logs and every emptyDir."""
_LOGICAL_CORES = """\
#!/usr/bin/env bash
set -euo pipefail
mkdir -p /opt/aws/neuron
echo NEURON_LOGICAL_NC_CONFIG={size} > /opt/aws/neuron/logical_nc_config
"""
"""How many physical cores the device plugin counts as one: without claims that is a fact of the node
(https://awsdocs-neuron.readthedocs-hosted.com/en/latest/deploy/eks/prerequisites.html)."""


def user_data(experiment: Experiment) -> str | None:
    """The parts that this experiment needs; nothing where there is none."""
    serving = experiment.baseline.serving
    parts = []
    if experiment.instance.scratch_gib > 0:
        parts.append(("application/node.eks.aws", _NODE_CONFIG))
    if serving.allocation == "device-plugin":
        script = _LOGICAL_CORES.format(size=serving.logical_nc_config)
        parts.append(('text/x-shellscript; charset="us-ascii"', script))
    return _mime(parts) if parts else None


def encoded(text: str) -> str:
    """As a launch template takes it."""
    return base64.b64encode(text.encode()).decode()


def _mime(parts: list[tuple[str, str]]) -> str:
    head = f'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="{_BOUNDARY}"\n'
    bodies = "".join(f"\n--{_BOUNDARY}\nContent-Type: {kind}\n\n{body}" for kind, body in parts)
    return f"{head}{bodies}\n--{_BOUNDARY}--\n"


_LaunchTemplate = ec2.CfnLaunchTemplate


def capacity_type(experiment: Experiment) -> eks.CapacityType:
    """A reservation is used by on-demand instances; a block is a kind of its own
    (https://docs.aws.amazon.com/eks/latest/userguide/capacity-blocks-mng.html)."""
    if experiment.cluster.capacity.kind == "capacity-block":
        return eks.CapacityType.CAPACITY_BLOCK
    return eks.CapacityType.ON_DEMAND


def launch_options(scope: Construct, experiment: Experiment) -> dict[str, Any]:
    """What the launch template adds for this capacity."""
    options: dict[str, Any] = {}
    capacity = experiment.cluster.capacity
    if capacity.kind == "capacity-block":
        options["instance_market_options"] = _LaunchTemplate.InstanceMarketOptionsProperty(
            market_type="capacity-block"
        )
    if capacity.reservation_id is not None:
        options["capacity_reservation_specification"] = (
            _LaunchTemplate.CapacityReservationSpecificationProperty(
                capacity_reservation_target=_LaunchTemplate.CapacityReservationTargetProperty(
                    capacity_reservation_id=capacity.reservation_id
                )
            )
        )
    if needs_placement_group(experiment):
        group = ec2.CfnPlacementGroup(scope, "Placement", strategy="cluster")
        options["placement"] = _LaunchTemplate.PlacementProperty(group_name=group.ref)
    return options


def needs_placement_group(experiment: Experiment) -> bool:
    """Several nodes on demand profit from standing close together where EFA joins them. A capacity block is close
    already, and a reservation that was not made inside the same placement group could not be used from it
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/cr-cpg.html)."""
    cluster = experiment.cluster
    joined = cluster.max_nodes > 1 and experiment.instance.efa_interfaces > 0
    return joined and cluster.capacity.kind == "on-demand"


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
        wanted, image = experiment.cluster.nodes, experiment.node_image
        assert image is not None, "experiments without Neuron devices are not deployed"
        template = self._template(experiment, settings, cluster, vpc)
        zone = ZONES[experiment.cluster.region].index(experiment.cluster.trn2_zone)
        self.group = eks.Nodegroup(
            self,
            "Group",
            nodegroup_name=neuron_nodegroup(experiment),
            cluster=cluster,
            ami_type=eks.NodegroupAmiType.AL2023_X86_64_NEURON,
            release_version=image.release,
            capacity_type=capacity_type(experiment),
            launch_template_spec=eks.LaunchTemplateSpec(
                id=template.ref, version=template.attr_latest_version_number
            ),
            min_size=0,
            desired_size=wanted,
            max_size=max(wanted, experiment.cluster.max_nodes),
            node_role=node_role(self, "Role"),
            # One zone: reservations and EFA live in one.
            subnets=ec2.SubnetSelection(subnets=[vpc.private_subnets[zone]]),
            labels={NODE_ROLE_LABEL: "neuron"},
            taints=[eks.TaintSpec(key=NEURON_TAINT_KEY, value="true", effect=eks.TaintEffect.NO_SCHEDULE)],
            # EKS replaces a node ten minutes after the monitoring agent reports a hardware fault of a Neuron device, and
            # after half an hour without a ready kubelet; else it would bill on. In groups of up to five nodes no share of
            # unhealthy ones stops this (https://docs.aws.amazon.com/eks/latest/userguide/node-repair.html).
            enable_node_auto_repair=True,
        )
        # A changed template replaces running nodes: the old one goes first, because EC2 seldom has a second, and a
        # reservation may hold one only.
        resource = group_resource(self.group, experiment.cluster.kubernetes)
        resource.update_config = eks.CfnNodegroup.UpdateConfigProperty(
            max_unavailable=1, update_strategy="MINIMAL"
        )

    def _template(
        self, experiment: Experiment, settings: Settings, cluster: eks.ICluster, vpc: ec2.Vpc
    ) -> ec2.CfnLaunchTemplate:
        instance = experiment.instance
        groups = [cluster.cluster_security_group_id]
        if instance.efa_interfaces > 0:
            groups.append(self._efa_group(vpc).security_group_id)
        said = user_data(experiment)
        return _Template(
            self,
            "Template",
            launch_template_data=_Template.LaunchTemplateDataProperty(
                instance_type=instance.name,
                metadata_options=metadata_options(),
                block_device_mappings=[_volume(experiment, settings)],
                user_data=encoded(said) if said else None,
                tag_specifications=named(experiment, neuron_nodegroup(experiment)),
                **network(instance.efa_interfaces, groups),
                **launch_options(self, experiment),
            ),
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


def _volume(experiment: Experiment, settings: Settings) -> ec2.CfnLaunchTemplate.BlockDeviceMappingProperty:
    if experiment.instance.scratch_gib > 0:
        return root_volume(gib=settings.neuron_volume_gib)
    return root_volume(
        gib=settings.neuron_volume_without_nvme_gib,
        iops=settings.neuron_volume_iops,
        mib_s=settings.neuron_volume_mib_s,
    )
