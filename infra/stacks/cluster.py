"""The EKS cluster with its add-ons and system nodes, and a bastion if its endpoint is private."""

from __future__ import annotations

import hashlib
from typing import cast

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.deployment_file import DeployedExperiment
from infra.stacks.bastion import Bastion
from infra.stacks.experiment_stack import StackOfCluster, encryption_key
from infra.stacks.network import existing_vpc
from infra.stacks.nodes import add_system_nodes
from infra.stacks.software import ManagedAddons
from trnspec.experiment.naming import cluster_name, control_plane_log_group


class ClusterStack(StackOfCluster):
    """Control plane, add-ons, system nodes, access of the named administrators, and a bastion where the
    endpoint is private."""

    def __init__(self, scope: Construct, deployed: DeployedExperiment, vpc: ec2.IVpc | None) -> None:
        super().__init__(scope, "cluster", "EKS cluster", deployed)
        self.vpc = vpc or existing_vpc(self)
        control_plane = self._control_plane()
        for principal in self.settings.admins:
            # Named after its principal: EKS has one entry for each, and positions in a list change.
            digest = hashlib.sha256(principal.encode()).hexdigest()[:8]
            control_plane.grant_cluster_admin(f"Admin{digest}", principal)
        # It implements the interface; the Python types of aws-cdk-lib 2.275 lack one of its properties.
        self.cluster = cast("eks.ICluster", control_plane)
        ManagedAddons(self, "Addons", nodes=add_system_nodes(self))
        cidrs = self.experiment.cluster.admin_cidrs
        if not cidrs:
            Bastion(self, "WayIn")
        cdk.CfnOutput(self, "ClusterName", value=self.cluster.cluster_name)
        from_where = (
            "for the admins of deployment.yaml or of the pipeline's stage, from the networks in cluster.admin_cidrs"
            if cidrs
            else "the endpoint is private: ./trnspec kubectl reaches it through the bastion"
        )
        name, region = cluster_name(self.experiment), self.experiment.cluster.region
        command = f"aws eks update-kubeconfig --name {name} --region {region}"
        cdk.CfnOutput(self, "KubeconfigCommand", value=command, description=from_where)

    def _control_plane(self) -> eks.Cluster:
        experiment = self.experiment
        # EKS would make this group itself, without a limit on how long it keeps logs.
        group = logs.LogGroup(self, "ControlPlaneLogs", log_group_name=control_plane_log_group(experiment))
        access, kinds, cidrs = eks.EndpointAccess, eks.ClusterLoggingTypes, experiment.cluster.admin_cidrs
        subnets = ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS)
        if experiment.cluster.network.vpc:
            # EKS keeps a control plane to the zones that it was created in, so that a third one, for nodes, must not be here
            # (https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html).
            subnets = ec2.SubnetSelection(subnets=self.vpc.private_subnets[:2])
        control_plane = eks.Cluster(
            self,
            "Cluster",
            cluster_name=cluster_name(experiment),
            version=eks.KubernetesVersion.of(experiment.cluster.kubernetes),
            vpc=self.vpc,
            vpc_subnets=[subnets],
            endpoint_access=access.PUBLIC_AND_PRIVATE.only_from(*cidrs) if cidrs else access.PRIVATE,
            secrets_encryption_key=encryption_key(
                self,
                "SecretsKey",
                self.settings,
                description=f"Kubernetes secrets of {experiment.name}",
                removal_policy=cdk.RemovalPolicy.DESTROY,  # it opens nothing once the cluster is gone
            ),
            cluster_logging=[
                kinds.API,
                kinds.AUDIT,
                kinds.AUTHENTICATOR,
                kinds.CONTROLLER_MANAGER,
                kinds.SCHEDULER,
            ],
            default_capacity_type=eks.DefaultCapacityType.NODEGROUP,
            default_capacity=0,
            # Deploying does not make an administrator of the cluster: those are named.
            bootstrap_cluster_creator_admin_permissions=False,
            # The add-ons come as managed ones, which would conflict with unmanaged copies.
            bootstrap_self_managed_addons=False,
        )
        control_plane.node.add_dependency(group)
        resource = control_plane.node.default_child
        assert isinstance(resource, eks.CfnCluster)
        # EKS's own choice is EXTENDED: a forgotten cluster then costs six times as much from the end of standard support.
        # With STANDARD, EKS moves it to the next version (https://docs.aws.amazon.com/eks/latest/userguide/view-upgrade-policy.html).
        resource.upgrade_policy = eks.CfnCluster.UpgradePolicyProperty(support_type="STANDARD")
        return control_plane
