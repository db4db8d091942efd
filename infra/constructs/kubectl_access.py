"""How CloudFormation reaches into the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_eks_v2 as eks
from aws_cdk.lambda_layer_kubectl_v35 import KubectlV35Layer
from constructs import Construct

from infra.constructs.kept_logs import keep_logs

if TYPE_CHECKING:
    from aws_cdk import aws_ec2 as ec2


class KubectlAccess(Construct):
    """A Lambda with kubectl and Helm in the private subnets, administrator of the cluster, and the cluster seen
    through it.

    kubectl 1.35 talks to 1.34 up to 1.36 (https://kubernetes.io/releases/version-skew-policy/#kubectl). That the access
    entry suffices and is in force when the first manifest comes is not run on AWS.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: eks.ICluster,
        vpc: ec2.Vpc,
        log_days: int,
    ) -> None:
        super().__init__(scope, construct_id)
        self._provider = eks.KubectlProvider(
            self,
            "Provider",
            cluster=cluster,
            kubectl_layer=KubectlV35Layer(self, "Kubectl"),
            private_subnets=vpc.private_subnets,
        )
        keep_logs(self._provider, days=log_days)
        self._entry = eks.AccessEntry(
            self,
            "Entry",
            cluster=cluster,
            principal=self._role_arn(),
            access_policies=[
                eks.AccessPolicy.from_access_policy_name(
                    "AmazonEKSClusterAdminPolicy", access_scope_type=eks.AccessScopeType.CLUSTER
                )
            ],
        )
        self.cluster = eks.Cluster.from_cluster_attributes(
            self, "Cluster", cluster_name=cluster.cluster_name, kubectl_provider=self._provider
        )
        """What is applied to it goes through this access."""

    def _role_arn(self) -> str:
        role = self._provider.role
        assert role is not None, "only an imported provider may lack its role"
        return role.role_arn

    def admit(self, applied: Construct) -> None:
        """Let `applied` wait for the access, and be removed before it."""
        applied.node.add_dependency(self._entry)
