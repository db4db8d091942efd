"""The bastion of a private endpoint, and the security group with which something in the VPC reaches the endpoint."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.stacks.experiment_stack import StackOfCluster, allow, service_role
from infra.stacks.nodes import metadata_options, root_volume
from trnspec.experiment.catalogue.prices import BASTION_INSTANCE_TYPE
from trnspec.experiment.cost import BASTION_VOLUME_GIB
from trnspec.experiment.naming import bastion_name

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
