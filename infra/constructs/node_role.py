"""What an EC2 instance may do as a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_iam as iam

if TYPE_CHECKING:
    from constructs import Construct

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
