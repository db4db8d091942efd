"""The EKS cluster with its add-ons and system nodes, and a bastion if its endpoint is private."""

from __future__ import annotations

import hashlib
from typing import cast

import aws_cdk as cdk
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.deployment_file import DeployedExperiment
from infra.stacks.experiment_stack import StackOfCluster, allow, encryption_key, service_role
from infra.stacks.network import existing_vpc
from infra.stacks.nodes import add_system_nodes, metadata_options, root_volume
from infra.stacks.software import ManagedAddons
from trnspec.experiment.catalogue.prices import BASTION_INSTANCE_TYPE
from trnspec.experiment.cost import BASTION_VOLUME_GIB
from trnspec.experiment.naming import bastion_name, cluster_name, control_plane_log_group

_IMAGE = "resolve:ssm:/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-arm64"
"""EC2 resolves it when the instance starts, so that a new one is patched; nothing is looked up at synth."""
_CHANNELS = [
    f"ssmmessages:{verb}{kind}Channel" for verb in ("Create", "Open") for kind in ("Control", "Data")
]
"""What the SSM agent needs for sessions, and nothing of what the managed policy adds
(https://docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-create-iam-instance-profile.html)."""


class Bastion(Construct):
    """A bastion of the smallest instance type, without inbound rules. Session Manager forwards a local port through it to the
    cluster's endpoint, for everyone who is allowed to start a session (`./trnspec kubectl`).

    An Auto Scaling group of one instance replaces it when it fails. It costs a few dollars per month. Not verified on AWS.
    """

    def __init__(self, control: StackOfCluster, construct_id: str) -> None:
        super().__init__(control, construct_id)
        name = bastion_name(control.experiment)
        egress = reach_endpoint(
            self,
            control,
            description="from the way in to AWS and to the cluster",
            outwards="HTTPS",
            inwards="kubectl through the way in",
        )
        template = ec2.CfnLaunchTemplate(
            self,
            "Template",
            launch_template_data=ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(
                image_id=_IMAGE,
                instance_type=BASTION_INSTANCE_TYPE,
                iam_instance_profile=ec2.CfnLaunchTemplate.IamInstanceProfileProperty(arn=self._profile()),
                metadata_options=metadata_options(),
                block_device_mappings=[root_volume(gib=BASTION_VOLUME_GIB)],
                security_group_ids=[egress.security_group_id],
            ),
        )
        of_group = autoscaling.CfnAutoScalingGroup
        of_group(
            self,
            "Group",
            auto_scaling_group_name=name,
            min_size="0",
            max_size="1",
            desired_capacity="1",
            vpc_zone_identifier=[subnet.subnet_id for subnet in control.vpc.private_subnets],
            launch_template=of_group.LaunchTemplateSpecificationProperty(
                launch_template_id=template.ref, version=template.attr_latest_version_number
            ),
            tags=[of_group.TagPropertyProperty(key="Name", value=name, propagate_at_launch=True)],
        )
        cdk.CfnOutput(self, "InstanceName", value=name, description="tag Name of the instance for sessions")

    def _profile(self) -> str:
        role = service_role(self, "Role", "ec2")
        # None of these actions has a resource type:
        # https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonsessionmanagermessagegatewayservice.html
        sessions = allow("ssm:UpdateInstanceInformation", "*", sid="Sessions")
        sessions.add_actions(*_CHANNELS)
        role.add_to_policy(sessions)
        return iam.InstanceProfile(self, "Profile", role=role).instance_profile_arn  # pyrefly: ignore[bad-argument-type]  # jsii names parameters of interfaces otherwise


def reach_endpoint(
    scope: Construct, control: StackOfCluster, *, description: str, outwards: str, inwards: str
) -> ec2.SecurityGroup:
    """Return a security group with outbound HTTPS to AWS and to the cluster's endpoint, whose own group admits it."""
    group = ec2.SecurityGroup(
        scope, "Outwards", vpc=control.vpc, description=description, allow_all_outbound=False
    )
    group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(443), outwards)
    ec2.CfnSecurityGroupIngress(
        scope,
        "ToEndpoint",
        group_id=control.cluster.cluster_security_group_id,
        ip_protocol="tcp",
        from_port=443,
        to_port=443,
        source_security_group_id=group.security_group_id,
        description=inwards,
    )
    return group


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
