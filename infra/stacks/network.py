"""The network of nodes and control plane, with endpoints of AWS services."""

from __future__ import annotations

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.deployment_file import DeploymentSettings
from infra.stacks.experiment_stack import ExperimentStack
from trnspec.experiment import Experiment
from trnspec.experiment.cost import SERVICES

MAX_ZONES = 6
"""Maximum zones of an AWS region. Addresses are reserved for this number, so that a further zone moves no subnet."""
_CIDR = "10.0.0.0/16"
_PRIVATE_MASK = 19
"""8,187 addresses per zone; every pod takes one."""
_PUBLIC_MASK = 24
"""Holds the NAT gateway, nothing else."""


class NetworkStack(ExperimentStack):
    """A VPC over the zones of the region: private subnets for nodes, NAT gateways as the experiment sets them (one by default), a
    gateway endpoint for S3, and optional interface endpoints for other AWS services."""

    def __init__(self, scope: Construct, *, experiment: Experiment, settings: DeploymentSettings) -> None:
        super().__init__(scope, "network", "network", experiment=experiment, settings=settings)
        cluster, zones = experiment.cluster, experiment.zones
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(_CIDR),
            # Named, not looked up: the synth needs no credentials. All of the region's, where they are known, so that nodes can move
            # to any of them later: EKS keeps a control plane to the zones that it was created in, and EC2 takes no
            # second subnet for the same addresses (https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html).
            availability_zones=list(zones),
            reserved_azs=MAX_ZONES - len(zones),
            nat_gateways=cluster.network.nat_gateways,
            # Emptying the default security group takes a Lambda with rights on it; nothing here uses that group.
            restrict_default_security_group=False,
            subnet_configuration=[
                ec2.SubnetConfiguration(
                    name="private", subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS, cidr_mask=_PRIVATE_MASK
                ),
                ec2.SubnetConfiguration(
                    name="public",
                    subnet_type=ec2.SubnetType.PUBLIC,
                    cidr_mask=_PUBLIC_MASK,
                    map_public_ip_on_launch=False,
                ),
            ],
        )
        # Weights and artifacts are tens of GB per start: through NAT they would cost more and take longer.
        self.vpc.add_gateway_endpoint("S3", service=ec2.GatewayVpcEndpointAwsService.S3)
        if cluster.network.interface_endpoints:
            self._add_interface_endpoints()
        group = logs.LogGroup(self, "FlowLogs")
        self.vpc.add_flow_log("Flow", destination=ec2.FlowLogDestination.to_cloud_watch_logs(group))

    def _add_interface_endpoints(self) -> None:
        """Add one endpoint per service to the private subnets of the experiment's zones, open to the network's own addresses.
        Other zones use the same endpoints.

        They keep calls to AWS off the NAT gateway, and are billed per hour and zone. The NAT gateway stays:
        weights come from Hugging Face, images also from public.ecr.aws, which has no endpoint in these regions.
        """
        endpoints, cluster = Construct(self, "Endpoints"), self.experiment.cluster
        group = ec2.SecurityGroup(
            endpoints,
            "Callers",
            vpc=self.vpc,
            description="calls from the network to AWS",
            allow_all_outbound=False,
        )
        group.add_ingress_rule(ec2.Peer.ipv4(_CIDR), ec2.Port.tcp(443), "HTTPS from the network")
        subnets = [
            subnet.subnet_id
            for subnet in self.vpc.private_subnets
            if subnet.availability_zone in (*cluster.availability_zones, cluster.trn2_zone)
        ]
        for service in SERVICES:
            ec2.CfnVPCEndpoint(
                endpoints,
                service,
                vpc_endpoint_type="Interface",
                service_name=f"com.amazonaws.{cluster.region}.{service}",
                vpc_id=self.vpc.vpc_id,
                subnet_ids=subnets,
                security_group_ids=[group.security_group_id],
                private_dns_enabled=True,
            )
