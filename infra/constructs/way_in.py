"""Access to a private endpoint."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from experiment import Experiment
from experiment.catalogue.prices import WAY_IN_INSTANCE_TYPE
from experiment.cost import WAY_IN_VOLUME_GIB
from experiment.naming import way_in_name
from infra.constructs.acknowledged import NO_RESOURCE, acknowledge
from infra.constructs.node_launch import metadata_options, root_volume

_IMAGE = "resolve:ssm:/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-arm64"
"""EC2 resolves it when the instance starts, so that a new one is patched; nothing is looked up at synth."""
_SESSIONS = (
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)
"""What the SSM agent needs for sessions, and nothing of what the managed policy adds
(https://docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-create-iam-instance-profile.html)."""


class WayIn(Construct):
    """The smallest instance type, without any inbound rule: Session Manager forwards a local port through it to the
    cluster's endpoint, for everyone who may start a session (`./trnspec kubectl`).

    A group of one replaces it when it fails; its price is a few dollars a month. Not run on AWS.
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
        name = way_in_name(experiment)
        template = ec2.CfnLaunchTemplate(
            self,
            "Template",
            launch_template_data=ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(
                image_id=_IMAGE,
                instance_type=WAY_IN_INSTANCE_TYPE,
                iam_instance_profile=ec2.CfnLaunchTemplate.IamInstanceProfileProperty(arn=self._profile()),
                metadata_options=metadata_options(),
                block_device_mappings=[root_volume(gib=WAY_IN_VOLUME_GIB)],
                security_group_ids=[
                    reach_endpoint(
                        self,
                        cluster=cluster,
                        vpc=vpc,
                        description="from the way in to AWS and to the cluster",
                        outwards="HTTPS",
                        inwards="kubectl through the way in",
                    ).security_group_id
                ],
            ),
        )
        group = autoscaling.CfnAutoScalingGroup(
            self,
            "Group",
            auto_scaling_group_name=name,
            min_size="0",
            max_size="1",
            desired_capacity="1",
            vpc_zone_identifier=[subnet.subnet_id for subnet in vpc.private_subnets],
            launch_template=autoscaling.CfnAutoScalingGroup.LaunchTemplateSpecificationProperty(
                launch_template_id=template.ref, version=template.attr_latest_version_number
            ),
            tags=[
                autoscaling.CfnAutoScalingGroup.TagPropertyProperty(
                    key="Name", value=name, propagate_at_launch=True
                )
            ],
        )
        acknowledge(
            group,
            "AS3",
            "one instance that only kubectl from outside uses; its users notice when it is missing",
        )
        cdk.CfnOutput(self, "InstanceName", value=name, description="tag Name of the instance for sessions")

    def _profile(self) -> str:
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"))
        # None of these actions has a resource type:
        # https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonsessionmanagermessagegatewayservice.html
        role.add_to_policy(iam.PolicyStatement(sid="Sessions", actions=list(_SESSIONS), resources=["*"]))
        acknowledge(role, "IAM5", NO_RESOURCE, r"Resource::\*")
        return iam.CfnInstanceProfile(self, "Profile", roles=[role.role_name]).attr_arn


def reach_endpoint(
    scope: Construct, *, cluster: eks.ICluster, vpc: ec2.IVpc, description: str, outwards: str, inwards: str
) -> ec2.SecurityGroup:
    """Outbound HTTPS, to AWS and to the cluster's endpoint, whose group admits it."""
    group = ec2.SecurityGroup(scope, "Outwards", vpc=vpc, description=description, allow_all_outbound=False)
    group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(443), outwards)
    ec2.CfnSecurityGroupIngress(
        scope,
        "ToEndpoint",
        group_id=cluster.cluster_security_group_id,
        ip_protocol="tcp",
        from_port=443,
        to_port=443,
        source_security_group_id=group.security_group_id,
        description=inwards,
    )
    return group
