"""Node groups, and the stack of the Trainium2 nodes, which costs most and changes most."""

from __future__ import annotations

import base64
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.stacks.experiment_stack import ExperimentStack, StackOfCluster, service_role
from infra.stacks.scale_to_zero import ScaleToZero
from trnspec.experiment import Experiment, naming
from trnspec.experiment.catalogue.prices import SYSTEM_INSTANCE_TYPE
from trnspec.experiment.catalogue.runtimes import images_of
from trnspec.experiment.cost import NEURON_VOLUME_GIB, SYSTEM_NODES, SYSTEM_VOLUME_GIB

POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly")
"""Policies that EKS requires for a node role (https://docs.aws.amazon.com/eks/latest/userguide/create-node-role.html). The network
plugin has its own role, and pods get their permissions through Pod Identity."""
_Template = ec2.CfnLaunchTemplate
_VOLUME_WITHOUT_NVME = {"gib": 500, "iops": 8000, "mib_s": 1000}
"""An estimate: images with the Neuron SDK unpack to tens of GiB, and compilation writes to the same disk. A node is billed from its
start, and without NVMe the image unpacks at the speed of this disk."""
_CAPACITY_TYPES = {"capacity-block": eks.CapacityType.CAPACITY_BLOCK, "spot": eks.CapacityType.SPOT}
"""A reservation is used by on-demand instances; a block is a kind of its own
(https://docs.aws.amazon.com/eks/latest/userguide/capacity-blocks-mng.html). Spot nodes are replaced on EC2's advice too, before it
takes them: EKS turns Capacity Rebalancing on, and drains the old node when the new one is ready or when the notice of two minutes
comes (https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html#managed-node-group-capacity-types)."""
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
"""The number of physical cores that the device plugin counts as one. Without resource claims it is a setting of the node
(https://awsdocs-neuron.readthedocs-hosted.com/en/latest/deploy/eks/prerequisites.html)."""


def metadata_options() -> ec2.CfnLaunchTemplate.MetadataOptionsProperty:
    """Allow IMDSv2 only, with one hop: only the node and pods in the host network reach it.

    With two hops every pod could take the node's credentials. No pod needs them: pods use Pod Identity, the Neuron DRA driver
    and the Pod Identity agent run in the host network, and Mountpoint gets the region from the mount options. It is assumed
    that vLLM on Neuron never calls IMDS. Not verified on AWS.
    """
    return _Template.MetadataOptionsProperty(
        http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
    )


def root_volume(
    *, gib: int, iops: int | None = None, mib_s: int | None = None
) -> ec2.CfnLaunchTemplate.BlockDeviceMappingProperty:
    """Return an encrypted gp3 volume that is deleted with its node; `/dev/xvda` is the root device of Amazon Linux 2023."""
    return _Template.BlockDeviceMappingProperty(
        device_name="/dev/xvda",
        ebs=_Template.EbsProperty(
            volume_size=gib,
            volume_type="gp3",
            iops=iops,
            throughput=mib_s,
            encrypted=True,
            delete_on_termination=True,
        ),
    )


def _node_group(
    scope: Construct,
    control: StackOfCluster,
    *,
    name: str,
    volume: ec2.CfnLaunchTemplate.BlockDeviceMappingProperty,
    launch: dict[str, Any],
    **more: Any,
) -> eks.Nodegroup:
    """Create a managed group with its launch template and role; `launch` is added to the template.

    Instances and disks do not inherit the tags of the stack, so they get their own tags for the bill.
    """
    named = {**control.settings.tags, "Name": name, "experiment": control.experiment.name}
    tags = [cdk.CfnTag(key=key, value=value) for key, value in named.items()]
    specifications = [
        _Template.TagSpecificationProperty(resource_type=kind, tags=tags) for kind in ("instance", "volume")
    ]
    template = _Template(
        scope,
        "Template",
        launch_template_data=_Template.LaunchTemplateDataProperty(
            metadata_options=metadata_options(),
            block_device_mappings=[volume],
            tag_specifications=specifications,
            **launch,
        ),
    )
    policies = [iam.ManagedPolicy.from_aws_managed_policy_name(one) for one in POLICIES]
    role = service_role(scope, "Role", "ec2", managed_policies=policies)
    group = eks.Nodegroup(
        scope,
        "Group",
        cluster=control.cluster,
        nodegroup_name=name,
        launch_template_spec=eks.LaunchTemplateSpec(
            id=template.ref, version=template.attr_latest_version_number
        ),
        node_role=role,  # pyrefly: ignore[bad-argument-type]  # jsii names parameters of interfaces otherwise
        **more,
    )
    # Both version and release are set: with the release alone EKS refuses to follow the cluster to the next version
    # (https://github.com/eksctl-io/eksctl/issues/7976).
    _resource(group).version = control.experiment.cluster.kubernetes
    return group


def _resource(group: eks.Nodegroup) -> eks.CfnNodegroup:
    resource = group.node.default_child
    assert isinstance(resource, eks.CfnNodegroup)
    return resource


def add_system_nodes(control: StackOfCluster) -> Construct:
    """Create a managed node group over all zones for everything except the models; the cluster places it into its private subnets.

    4 vCPU and 16 GiB carry CoreDNS, the add-ons' agents and controllers, the fetch Job and the benchmark's pod; on an m7i.large the
    agents alone leave the benchmark no room.
    """
    experiment, nodes = control.experiment, Construct(control, "SystemNodes")
    image = eks.NodegroupAmiType.AL2023_X86_64_STANDARD
    subnets = experiment.cluster.network.private_subnets.values() or experiment.zones
    _node_group(
        nodes,
        control,
        name=naming.system_nodegroup(experiment, SYSTEM_INSTANCE_TYPE, image.value, *subnets),
        volume=root_volume(gib=SYSTEM_VOLUME_GIB),
        launch={},
        release_version=images_of(experiment.cluster.kubernetes)[0].release,
        ami_type=image,
        instance_types=[ec2.InstanceType(SYSTEM_INSTANCE_TYPE)],
        min_size=SYSTEM_NODES,
        desired_size=SYSTEM_NODES,
        max_size=SYSTEM_NODES + 1,
        subnets=ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS),
        labels={naming.NODE_ROLE_LABEL: "system"},
    )
    return nodes


class NeuronNodes(Construct):
    """A managed node group of the experiment's instance type in one zone. A deployment leaves it at 0 nodes.

    The instance type is in the launch template, not in the group: aws_eks_v2 2.275 does not treat trn2 as an accelerator
    and refuses the Neuron image with it, and a capacity block also requires it there. Not verified on AWS.
    """

    def __init__(self, scope: Construct, construct_id: str, control: StackOfCluster) -> None:
        super().__init__(scope, construct_id)
        experiment = control.experiment
        image, instance = experiment.node_image, experiment.instance
        assert image is not None, "experiments without Neuron devices are not deployed"
        zone = experiment.cluster.trn2_zone
        taint = eks.TaintSpec(key=naming.NEURON_TAINT_KEY, value="true", effect=eks.TaintEffect.NO_SCHEDULE)
        in_zone = [subnet for subnet in control.vpc.private_subnets if subnet.availability_zone == zone]
        self.group = _node_group(
            self,
            control,
            name=naming.neuron_nodegroup(experiment),
            volume=root_volume(
                **{"gib": NEURON_VOLUME_GIB} if instance.scratch_gib > 0 else _VOLUME_WITHOUT_NVME
            ),
            launch={
                "instance_type": instance.name,
                "user_data": _user_data(experiment),
                **self._network(instance.efa_attached, control),
                **self._purchase(experiment),
            },
            ami_type=eks.NodegroupAmiType.AL2023_X86_64_NEURON,
            release_version=image.release,
            capacity_type=_CAPACITY_TYPES.get(experiment.cluster.capacity.kind, eks.CapacityType.ON_DEMAND),
            min_size=0,
            desired_size=0,
            max_size=experiment.cluster.max_nodes,
            # Reservations and EFA are limited to one zone.
            subnets=ec2.SubnetSelection(subnets=in_zone),
            labels={
                naming.NODE_ROLE_LABEL: "neuron",
                **naming.driver_label(experiment.baseline.serving.allocation),
            },
            taints=[taint],
            # EKS replaces a node ten minutes after the monitoring agent reports a hardware fault of a Neuron device, and
            # 30 minutes without a ready kubelet; otherwise the node would still be billed. In groups of up to five nodes no number
            # of unhealthy nodes stops the repair (https://docs.aws.amazon.com/eks/latest/userguide/node-repair.html).
            enable_node_auto_repair=True,
        )
        # A changed template replaces running nodes. The old node is removed first, because EC2 seldom has a second one, and a
        # reservation may hold only one.
        _resource(self.group).update_config = eks.CfnNodegroup.UpdateConfigProperty(
            max_unavailable=1, update_strategy="MINIMAL"
        )

    def _network(self, efa_interfaces: int, control: StackOfCluster) -> dict[str, Any]:
        """Return one EFA interface per network card, the first also for IP; or only the cluster's security group if no EFA is
        attached. EC2 accepts the groups in one of the two places only.

        The Neuron DRA driver publishes the groups of connected devices, from which the arms are placed, on instances
        with EFA only (Neuron DRA documentation). EFA passes only between members of a group that allows all traffic to
        and from itself, by name (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html).
        """
        groups = [control.cluster.cluster_security_group_id]
        if efa_interfaces == 0:
            return {"security_group_ids": groups}
        described = "EFA traffic between Neuron nodes"
        efa = ec2.SecurityGroup(self, "Efa", vpc=control.vpc, description=described, allow_all_outbound=False)
        efa.add_ingress_rule(efa, ec2.Port.all_traffic(), "EFA from the group itself")
        efa.add_egress_rule(efa, ec2.Port.all_traffic(), "EFA to the group itself")
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
        """Return the part of the launch template for the purchase option. It is empty for spot: the type of the group sets it, and
        EKS refuses market options in the template, a maximum price too (https://github.com/aws/aws-cdk/issues/24730)."""
        options: dict[str, Any] = {}
        capacity = experiment.cluster.capacity
        if capacity.kind == "capacity-block":
            block = _Template.InstanceMarketOptionsProperty(market_type="capacity-block")
            options["instance_market_options"] = block
        if capacity.reservation_id is not None:
            target = _Template.CapacityReservationTargetProperty(
                capacity_reservation_id=capacity.reservation_id
            )
            options["capacity_reservation_specification"] = (
                _Template.CapacityReservationSpecificationProperty(capacity_reservation_target=target)
            )
        # Several on-demand nodes with EFA are faster close together. Nodes of a capacity block already are, and a reservation
        # that was not made in the same placement group cannot be used from it
        # (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/cr-cpg.html). Spot nodes are rare even without this
        # condition, and no arm spans two nodes.
        joined = experiment.cluster.max_nodes > 1 and experiment.instance.efa_attached > 0
        if joined and capacity.kind == "on-demand":
            group = ec2.PlacementGroup(self, "Placement", strategy=ec2.PlacementGroupStrategy.CLUSTER)
            options["placement"] = _Template.PlacementProperty(group_name=group.placement_group_name)
        return options


def _user_data(experiment: Experiment) -> str | None:
    """Return MIME parts for Amazon Linux 2023 on EKS, which merges them with its own part
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


class NodesStack(ExperimentStack):
    """The group of Neuron nodes, and what empties it."""

    def __init__(self, scope: Construct, control: StackOfCluster) -> None:
        super().__init__(scope, "nodes", "Trainium2 nodes", control.deployed)
        end = ScaleToZero(self, "TimeToLive", experiment=self.experiment)
        nodes = NeuronNodes(self, "NeuronNodes", control)
        # A group that waits for its first node may take hours to be made, and what ends it is there before.
        nodes.group.node.add_dependency(end)
