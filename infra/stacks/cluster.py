"""The EKS cluster with what every pod needs: add-ons and a small group of system nodes."""

from __future__ import annotations

import hashlib
from typing import cast

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_logs as logs
from constructs import Construct

from experiment import Experiment
from experiment.naming import cluster_name, control_plane_log_group
from infra.constructs.acknowledged import EKS_POLICY, acknowledge
from infra.constructs.addons import ManagedAddons
from infra.constructs.conventions import encryption_key
from infra.constructs.node_launch import add_system_nodes
from infra.constructs.way_in import WayIn
from infra.deployment_file import Lasting
from infra.stacks.experiment_stack import ExperimentStack
from infra.stacks.identity import admit_pipeline


class ClusterStack(ExperimentStack):
    """Control plane, add-ons, system nodes, access of the named administrators and the pipeline, and the way in where the
    endpoint is private."""

    def __init__(
        self,
        scope: Construct,
        *,
        experiment: Experiment,
        made: ec2.IVpc | None,
        lasting: Lasting,
    ) -> None:
        super().__init__(scope, "cluster", experiment=experiment, description="EKS cluster")
        vpc = self.network(experiment, made)
        # EKS would make this group itself, without a limit on how long it keeps logs.
        control_plane_logs = logs.LogGroup(
            self, "ControlPlaneLogs", log_group_name=control_plane_log_group(experiment)
        )
        control_plane = self._control_plane(experiment, vpc)
        control_plane.node.add_dependency(control_plane_logs)
        for principal in lasting.admins:
            # Named after its principal: EKS has one entry for each, and positions in a list change.
            digest = hashlib.sha256(principal.encode()).hexdigest()[:8]
            control_plane.grant_cluster_admin(f"Admin{digest}", principal)
        # It implements the interface; the Python types of aws-cdk-lib 2.275 lack one of its properties.
        self.cluster = cast("eks.ICluster", control_plane)
        if lasting.pipeline_role is not None:
            admit_pipeline(self, lasting.pipeline_role, experiment=experiment, cluster=self.cluster)
        nodes = add_system_nodes(self, experiment=experiment, cluster=self.cluster)
        ManagedAddons(self, "Addons", experiment=experiment, cluster=self.cluster, nodes=nodes)
        if not experiment.cluster.admin_cidrs:
            WayIn(self, "WayIn", experiment=experiment, cluster=self.cluster, vpc=vpc)
        self._say_how_to_connect(experiment)

    def _control_plane(self, experiment: Experiment, vpc: ec2.IVpc) -> eks.Cluster:
        cidrs = experiment.cluster.admin_cidrs
        control_plane = eks.Cluster(
            self,
            "Cluster",
            cluster_name=cluster_name(experiment),
            version=eks.KubernetesVersion.of(experiment.cluster.kubernetes),
            vpc=vpc,
            vpc_subnets=[ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS)],
            endpoint_access=(
                eks.EndpointAccess.PUBLIC_AND_PRIVATE.only_from(*cidrs)
                if cidrs
                else eks.EndpointAccess.PRIVATE
            ),
            secrets_encryption_key=encryption_key(
                self,
                "SecretsKey",
                description=f"Kubernetes secrets of {experiment.name}",
                removal_policy=cdk.RemovalPolicy.DESTROY,  # it opens nothing once the cluster is gone
            ),
            cluster_logging=[
                eks.ClusterLoggingTypes.API,
                eks.ClusterLoggingTypes.AUDIT,
                eks.ClusterLoggingTypes.AUTHENTICATOR,
                eks.ClusterLoggingTypes.CONTROLLER_MANAGER,
                eks.ClusterLoggingTypes.SCHEDULER,
            ],
            default_capacity_type=eks.DefaultCapacityType.NODEGROUP,
            default_capacity=0,
            # Deploying does not make an administrator of the cluster: those are named.
            bootstrap_cluster_creator_admin_permissions=False,
            # The add-ons come as managed ones, which would conflict with unmanaged copies.
            bootstrap_self_managed_addons=False,
        )
        acknowledge(control_plane, "IAM4", EKS_POLICY, ".*/AmazonEKSClusterPolicy")
        resource = control_plane.node.default_child
        assert isinstance(resource, eks.CfnCluster)
        # EKS's own choice is EXTENDED: a forgotten cluster then costs six times as much from the end of standard support.
        # With STANDARD, EKS moves it to the next version (https://docs.aws.amazon.com/eks/latest/userguide/view-upgrade-policy.html).
        resource.upgrade_policy = eks.CfnCluster.UpgradePolicyProperty(support_type="STANDARD")
        return control_plane

    def _say_how_to_connect(self, experiment: Experiment) -> None:
        cdk.CfnOutput(self, "ClusterName", value=self.cluster.cluster_name)
        cdk.CfnOutput(
            self,
            "KubeconfigCommand",
            value=f"aws eks update-kubeconfig --name {cluster_name(experiment)} --region {experiment.cluster.region}",
            description=(
                "for the admins of deployment.yaml or of the pipeline's stage, from the networks in cluster.admin_cidrs"
                if experiment.cluster.admin_cidrs
                else "the endpoint is private: ./trnspec kubectl reaches it through the bastion"
            ),
        )
