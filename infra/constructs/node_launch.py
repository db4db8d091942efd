"""What launch templates, groups and roles of all nodes have in common, and the nodes that run everything but the models."""

from __future__ import annotations

from typing import Any

from aws_cdk import CfnTag
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from experiment import Experiment
from experiment.catalogue.node_images import images_of
from experiment.catalogue.prices import SYSTEM_INSTANCE_TYPE
from experiment.cost import SYSTEM_NODES, SYSTEM_VOLUME_GIB
from experiment.naming import NODE_ROLE_LABEL, role_label, system_nodegroup
from infra.constructs.acknowledged import EKS_POLICY, acknowledge
from infra.constructs.conventions import conventions

POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly")
"""What EKS asks of a node role (https://docs.aws.amazon.com/eks/latest/userguide/create-node-role.html), without the
network plugin's rights: it has a role of its own. Pods get their rights through Pod Identity, never from here."""
OF_NETWORK_PLUGIN = "AmazonEKS_CNI_Policy"
"""For nodes of an existing cluster, whose network plugin may have no role but the node's: without these rights a node there
never becomes ready."""
_Template = ec2.CfnLaunchTemplate


def node_role(scope: Construct, experiment: Experiment) -> iam.Role:
    """A role that a node group can use."""
    policies = (*POLICIES, *([OF_NETWORK_PLUGIN] if experiment.cluster.existing else ()))
    role = iam.Role(
        scope,
        "Role",
        assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
        managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name(name) for name in policies],
    )
    acknowledge(role, "IAM4", EKS_POLICY, *(f".*/{name}" for name in policies))
    return role


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


def launch_template(
    scope: Construct, experiment: Experiment, name: str, volume: Any, **more: Any
) -> eks.LaunchTemplateSpec:
    """What a group starts its nodes from; `more` beside what all nodes have.

    Instances and disks do not inherit the tags of the stack; without these tags a bill could not be assigned.
    """
    named = {**conventions(scope).tags, "Name": name, "experiment": experiment.name}
    tags = [CfnTag(key=key, value=value) for key, value in named.items()]
    template = _Template(
        scope,
        "Template",
        launch_template_data=_Template.LaunchTemplateDataProperty(
            metadata_options=metadata_options(),
            block_device_mappings=[volume],
            tag_specifications=[
                _Template.TagSpecificationProperty(resource_type=kind, tags=tags)
                for kind in ("instance", "volume")
            ],
            **more,
        ),
    )
    return eks.LaunchTemplateSpec(id=template.ref, version=template.attr_latest_version_number)


def group_resource(group: eks.Nodegroup, experiment: Experiment) -> eks.CfnNodegroup:
    """What CloudFormation sees of a group, told its version beside its release: by the release alone EKS would refuse
    to follow the cluster to the next version (https://github.com/eksctl-io/eksctl/issues/7976)."""
    resource = group.node.default_child
    assert isinstance(resource, eks.CfnNodegroup)
    resource.version = experiment.cluster.kubernetes
    return resource


def add_system_nodes(scope: Construct, *, experiment: Experiment, cluster: eks.ICluster) -> Construct:
    """A managed node group over all zones; `cluster` places it into its private subnets.

    4 vCPU and 16 GiB carry CoreDNS, the add-ons' agents and controllers, the fetch Job and the benchmark's pod, never a
    model; on an m7i.large the agents alone leave the benchmark no room.
    """
    nodes = Construct(scope, "SystemNodes")
    name = system_nodegroup(experiment)
    group = eks.Nodegroup(
        nodes,
        "Group",
        nodegroup_name=name,
        cluster=cluster,
        release_version=images_of(experiment.cluster.kubernetes)[0].release,
        ami_type=eks.NodegroupAmiType.AL2023_X86_64_STANDARD,
        instance_types=[ec2.InstanceType(SYSTEM_INSTANCE_TYPE)],
        launch_template_spec=launch_template(nodes, experiment, name, root_volume(gib=SYSTEM_VOLUME_GIB)),
        min_size=SYSTEM_NODES,
        desired_size=SYSTEM_NODES,
        max_size=SYSTEM_NODES + 1,
        node_role=node_role(nodes, experiment),
        subnets=ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS),
        labels={NODE_ROLE_LABEL: role_label(experiment, "system")},
    )
    group_resource(group, experiment)
    return nodes
