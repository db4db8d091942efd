"""What the launch templates, groups and roles of all nodes say alike, and the nodes that carry everything but the models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aws_cdk import CfnTag
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from experiment.catalogue.node_images import images_of
from experiment.naming import NODE_ROLE_LABEL, system_nodegroup

if TYPE_CHECKING:
    from constructs import Construct

if TYPE_CHECKING:
    from experiment import Experiment

if TYPE_CHECKING:
    from experiment import Experiment
    from infra.settings import Settings


POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly")
"""What EKS asks of a node role (https://docs.aws.amazon.com/eks/latest/userguide/create-node-role.html), without the
network plugin's rights: it has a role of its own. Pods get their rights through Pod Identity, never from here."""


def node_role(scope: Construct, construct_id: str) -> iam.Role:
    """A role that a node group can use."""
    return iam.Role(
        scope,
        construct_id,
        assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
        managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name(name) for name in POLICIES],
    )


_Template = ec2.CfnLaunchTemplate


def metadata_options() -> ec2.CfnLaunchTemplate.MetadataOptionsProperty:
    """IMDSv2 only, and one hop: the node itself and pods in its network reach it, other pods do not.

    With two hops every pod could take the node's credentials. Nothing here needs that: pods have Pod Identity, the
    Neuron DRA driver and the Pod Identity agent run in the node's network, and Mountpoint, which would ask for the
    region, is told it (`region` in the volumes' mount options). That vLLM on Neuron never asks is not run on AWS.
    """
    return _Template.MetadataOptionsProperty(
        http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
    )


def root_volume(
    *, gib: int, iops: int | None = None, mib_s: int | None = None
) -> ec2.CfnLaunchTemplate.BlockDeviceMappingProperty:
    """Encrypted gp3 that goes with its node; `/dev/xvda` is the root device of Amazon Linux 2023."""
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


def group_resource(group: eks.Nodegroup, kubernetes: str) -> eks.CfnNodegroup:
    """What CloudFormation sees of a group, told its version beside its release: by the release alone EKS would refuse
    to follow the cluster to the next version (https://github.com/eksctl-io/eksctl/issues/7976)."""
    resource = group.node.default_child
    assert isinstance(resource, eks.CfnNodegroup)
    resource.version = kubernetes
    return resource


def network(efa_interfaces: int, groups: list[str]) -> dict[str, Any]:
    """One EFA interface a network card, of which the first carries IP as well; or the groups alone where the instance
    has no EFA. EC2 takes the groups in one of the two places.

    The Neuron DRA driver publishes the groups of connected devices, from which the arms are placed, on instances
    with EFA only (Neuron DRA documentation).
    """
    if efa_interfaces == 0:
        return {"security_group_ids": groups}
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


def named(experiment: Experiment, name: str) -> list[ec2.CfnLaunchTemplate.TagSpecificationProperty]:
    """Instances and disks do not inherit the tags of the stack; without these nobody could tell whose bill it is."""
    tags = [CfnTag(key="Name", value=name), CfnTag(key="experiment", value=experiment.name)]
    return [
        _Template.TagSpecificationProperty(resource_type=kind, tags=tags) for kind in ("instance", "volume")
    ]


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
