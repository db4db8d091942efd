"""What one Kubernetes service account may do on AWS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

if TYPE_CHECKING:
    from collections.abc import Sequence

POD_IDENTITY = "pods.eks.amazonaws.com"
"""Who assumes the roles of pods; it tags its sessions (https://docs.aws.amazon.com/eks/latest/userguide/pod-id-role.html)."""


class PodRole(Construct):
    """A role, and the Pod Identity association that hands it to the pods of a service account."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: eks.ICluster,
        namespace: str,
        service_account: str,
        statements: Sequence[iam.PolicyStatement],
    ) -> None:
        super().__init__(scope, construct_id)
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal(POD_IDENTITY).with_session_tags(),
        )
        for statement in statements:
            self.role.add_to_policy(statement)
        eks.CfnPodIdentityAssociation(
            self,
            "Association",
            cluster_name=cluster.cluster_name,
            namespace=namespace,
            service_account=service_account,
            role_arn=self.role.role_arn,
        )
