"""The Trainium2 nodes: how they are bought, and how they are configured when they start."""

from __future__ import annotations

import base64
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from experiment import Experiment
from experiment.cost import NEURON_VOLUME_GIB
from experiment.naming import (
    NEURON_TAINT_KEY,
    NODE_ROLE_LABEL,
    driver_label,
    neuron_nodegroup,
    role_label,
)
from infra import settings
from infra.constructs.logical_ids import logical_id
from infra.constructs.node_launch import group_resource, launch_template, node_role, root_volume

_Template = ec2.CfnLaunchTemplate
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
"""The local NVMe disks become one, and kubelet and containerd live on it: images, logs and every emptyDir
(https://awslabs.github.io/amazon-eks-ami/nodeadm/doc/api/)."""
_LOGICAL_CORES = """\
#!/usr/bin/env bash
set -euo pipefail
mkdir -p /opt/aws/neuron
echo NEURON_LOGICAL_NC_CONFIG={size} > /opt/aws/neuron/logical_nc_config
"""
"""How many physical cores the device plugin counts as one: without claims that is a fact of the node
(https://awsdocs-neuron.readthedocs-hosted.com/en/latest/deploy/eks/prerequisites.html)."""


class NeuronNodes(Construct):
    """A managed node group of the experiment's instance type in one zone, empty unless the experiment asks for nodes.

    The instance type is in the launch template, not in the group: aws_eks_v2 2.275 takes trn2 for no accelerator
    and refuses the Neuron image with it, and a capacity block wants it there as well. Not run on AWS.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        experiment: Experiment,
        cluster: eks.ICluster,
        vpc: ec2.IVpc,
    ) -> None:
        super().__init__(scope, construct_id)
        wanted, image = experiment.cluster.nodes, experiment.node_image
        assert image is not None, "experiments without Neuron devices are not deployed"
        name = neuron_nodegroup(experiment)
        zone = experiment.cluster.trn2_zone
        in_zone = [subnet for subnet in vpc.private_subnets if subnet.availability_zone == zone]
        self.group = eks.Nodegroup(
            self,
            "Group",
            nodegroup_name=name,
            cluster=cluster,
            ami_type=eks.NodegroupAmiType.AL2023_X86_64_NEURON,
            release_version=image.release,
            # A reservation is used by on-demand instances; a block is a kind of its own
            # (https://docs.aws.amazon.com/eks/latest/userguide/capacity-blocks-mng.html).
            capacity_type=(
                eks.CapacityType.CAPACITY_BLOCK
                if experiment.cluster.capacity.kind == "capacity-block"
                else eks.CapacityType.ON_DEMAND
            ),
            launch_template_spec=launch_template(
                self,
                experiment,
                name,
                _volume(experiment),
                instance_type=experiment.instance.name,
                user_data=_user_data(experiment),
                **self._network(experiment.instance.efa_attached, cluster, vpc),
                **self._purchase(experiment),
            ),
            min_size=0,
            desired_size=wanted,
            max_size=max(wanted, experiment.cluster.max_nodes),
            node_role=node_role(self, experiment),
            # One zone: reservations and EFA live in one.
            subnets=ec2.SubnetSelection(subnets=in_zone),
            labels={
                NODE_ROLE_LABEL: role_label(experiment, "neuron"),
                **driver_label(experiment.baseline.serving.allocation),
            },
            taints=[eks.TaintSpec(key=NEURON_TAINT_KEY, value="true", effect=eks.TaintEffect.NO_SCHEDULE)],
            # EKS replaces a node ten minutes after the monitoring agent reports a hardware fault of a Neuron device, and
            # after half an hour without a ready kubelet; else it would bill on. In groups of up to five nodes no share of
            # unhealthy ones stops this (https://docs.aws.amazon.com/eks/latest/userguide/node-repair.html).
            enable_node_auto_repair=True,
        )
        # A changed template replaces running nodes: the old one goes first, because EC2 seldom has a second, and a
        # reservation may hold one only.
        group_resource(self.group, experiment).update_config = eks.CfnNodegroup.UpdateConfigProperty(
            max_unavailable=1, update_strategy="MINIMAL"
        )

    def _network(self, efa_interfaces: int, cluster: eks.ICluster, vpc: ec2.IVpc) -> dict[str, Any]:
        """One EFA interface a network card, of which the first carries IP as well; or the cluster's group alone where no
        EFA is attached. EC2 takes the groups in one of the two places.

        The Neuron DRA driver publishes the groups of connected devices, from which the arms are placed, on instances
        with EFA only (Neuron DRA documentation). EFA passes only between members of a group that allows all traffic to
        and from itself, by name (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html).
        """
        groups = [cluster.cluster_security_group_id]
        if efa_interfaces == 0:
            return {"security_group_ids": groups}
        efa = ec2.SecurityGroup(
            self,
            "Efa",
            vpc=vpc,
            description="EFA traffic between Neuron nodes",
            allow_all_outbound=False,
        )
        efa.add_ingress_rule(efa, ec2.Port.all_traffic(), "EFA from the group itself")
        efa.add_egress_rule(efa, ec2.Port.all_traffic(), "EFA to the group itself")
        # CDK names a rule after the path of its group, in which the stack was once called `nodes`.
        stack = self.node.scopes.index(cdk.Stack.of(self))
        outer = [scope.node.id for scope in self.node.scopes[1:stack]]
        group = logical_id(*outer, "nodes", self.node.id, efa.node.id)
        for kind, way in ((ec2.CfnSecurityGroupIngress, "from"), (ec2.CfnSecurityGroupEgress, "to")):
            (rule,) = (one for one in efa.node.children if isinstance(one, kind))
            rule.override_logical_id(logical_id(self.node.id, efa.node.id, f"{way} {group}:ALL TRAFFIC"))
        groups.append(efa.security_group_id)
        return {
            "network_interfaces": [
                _Template.NetworkInterfaceProperty(
                    network_card_index=card,
                    device_index=0 if card == 0 else 1,
                    interface_type="efa" if card == 0 else "efa-only",
                    groups=groups,
                    delete_on_termination=True,
                )
                for card in range(efa_interfaces)
            ]
        }

    def _purchase(self, experiment: Experiment) -> dict[str, Any]:
        """What the launch template adds for this capacity."""
        options: dict[str, Any] = {}
        capacity = experiment.cluster.capacity
        if capacity.kind == "capacity-block":
            options["instance_market_options"] = _Template.InstanceMarketOptionsProperty(
                market_type="capacity-block"
            )
        if capacity.reservation_id is not None:
            options["capacity_reservation_specification"] = (
                _Template.CapacityReservationSpecificationProperty(
                    capacity_reservation_target=_Template.CapacityReservationTargetProperty(
                        capacity_reservation_id=capacity.reservation_id
                    )
                )
            )
        # Several on-demand nodes are faster close together where EFA connects them. A capacity block is close
        # already, and a reservation that was not made inside the same placement group could not be used from it
        # (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/cr-cpg.html).
        joined = experiment.cluster.max_nodes > 1 and experiment.instance.efa_attached > 0
        if joined and capacity.kind == "on-demand":
            group = ec2.CfnPlacementGroup(self, "Placement", strategy="cluster")
            options["placement"] = _Template.PlacementProperty(group_name=group.ref)
        return options


def _volume(experiment: Experiment) -> ec2.CfnLaunchTemplate.BlockDeviceMappingProperty:
    if experiment.instance.scratch_gib > 0:
        return root_volume(gib=NEURON_VOLUME_GIB)
    return root_volume(
        gib=settings.NEURON_VOLUME_WITHOUT_NVME_GIB,
        iops=settings.NEURON_VOLUME_IOPS,
        mib_s=settings.NEURON_VOLUME_MIB_S,
    )


def _user_data(experiment: Experiment) -> str | None:
    """User data of this experiment, as MIME for Amazon Linux 2023 on EKS, which merges it with its own part
    (https://docs.aws.amazon.com/eks/latest/userguide/launch-templates.html)."""
    serving = experiment.baseline.serving
    parts = []
    if experiment.instance.scratch_gib > 0:
        parts.append(("application/node.eks.aws", _NODE_CONFIG))
    if serving.allocation == "device-plugin":
        script = _LOGICAL_CORES.format(size=serving.logical_nc_config)
        parts.append(('text/x-shellscript; charset="us-ascii"', script))
    if not parts:
        return None
    head = f'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="{_BOUNDARY}"\n'
    bodies = "".join(f"\n--{_BOUNDARY}\nContent-Type: {kind}\n\n{body}" for kind, body in parts)
    return base64.b64encode(f"{head}{bodies}\n--{_BOUNDARY}--\n".encode()).decode()
