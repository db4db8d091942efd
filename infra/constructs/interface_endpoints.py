"""AWS services reached inside the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_ec2 as ec2
from constructs import Construct

if TYPE_CHECKING:
    from experiment import Experiment
    from infra.settings import Settings

SERVICES = (
    "ecr.api",
    "ecr.dkr",
    "sts",
    "logs",
    "monitoring",
    "eks",
    "eks-auth",
    "ssm",
    "ssmmessages",
    "ec2messages",
    "ec2",
)
"""What nodes, add-ons, pods and the way in call: images, credentials (`eks-auth` is Pod Identity's), metrics, logs,
the session manager, and `ec2` for the network plugin
(https://docs.aws.amazon.com/eks/latest/userguide/private-clusters.html)."""


class InterfaceEndpoints(Construct):
    """An endpoint a service in the private subnets of the zones that the experiment names, open to the network's own
    addresses; other zones reach them there.

    They keep calls to AWS off the NAT gateway, at a price an hour for each and each zone. The NAT gateway stays:
    weights come from Hugging Face, images also from public.ecr.aws, which has no endpoint in these regions.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, experiment: Experiment, settings: Settings, vpc: ec2.Vpc
    ) -> None:
        super().__init__(scope, construct_id)
        cluster = experiment.cluster
        group = ec2.SecurityGroup(
            self,
            "Callers",
            vpc=vpc,
            description="calls from the network to AWS",
            allow_all_outbound=False,
        )
        group.add_ingress_rule(
            ec2.Peer.ipv4(settings.network_cidr), ec2.Port.tcp(443), "HTTPS from the network"
        )
        subnets = [
            subnet.subnet_id
            for subnet in vpc.private_subnets
            if subnet.availability_zone in (*cluster.availability_zones, cluster.trn2_zone)
        ]
        for service in SERVICES:
            ec2.CfnVPCEndpoint(
                self,
                service,
                vpc_endpoint_type="Interface",
                service_name=f"com.amazonaws.{cluster.region}.{service}",
                vpc_id=vpc.vpc_id,
                subnet_ids=subnets,
                security_group_ids=[group.security_group_id],
                private_dns_enabled=True,
            )
