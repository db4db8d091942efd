"""The network of nodes and control plane, with endpoints of AWS services."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.deployment_file import DeployedExperiment
from infra.stacks.experiment_stack import ExperimentStack

MAX_ZONES = 6
"""Maximum zones of an AWS region. Addresses are reserved for this number, so that a further zone moves no subnet."""
_CIDR = "10.0.0.0/16"
_PRIVATE_MASK = 19
"""8,187 addresses per zone; every pod takes one."""
_PUBLIC_MASK = 24
"""Holds the NAT gateway, nothing else."""


class NetworkStack(ExperimentStack):
    """A VPC over the zones of the region: private subnets for nodes, one NAT gateway, and a
    gateway endpoint for S3."""

    def __init__(self, scope: Construct, deployed: DeployedExperiment) -> None:
        super().__init__(scope, "network", "network", deployed)
        zones = self.experiment.zones
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(_CIDR),
            # Named, not looked up: the synth needs no credentials. All of the region's, where they are known, so that nodes can move
            # to any of them later: EKS keeps a control plane to the zones that it was created in, and EC2 takes no
            # second subnet for the same addresses (https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html).
            availability_zones=list(zones),
            reserved_azs=MAX_ZONES - len(zones),
            nat_gateways=1,
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
        group = logs.LogGroup(self, "FlowLogs")
        self.vpc.add_flow_log("Flow", destination=ec2.FlowLogDestination.to_cloud_watch_logs(group))


def existing_vpc(stack: ExperimentStack) -> ec2.IVpc:
    """Return the VPC that the experiment's file names. Nothing in it is changed: `./trnspec preflight` reads its routes and tags."""
    network = stack.experiment.cluster.network
    assert network.vpc is not None, "a network is made unless the experiment names one"
    for warning in (
        "@aws-cdk/aws-ec2:noSubnetRouteTableId",
        "@aws-cdk/aws-eks:clusterMustManuallyTagSubnet",
    ):
        cdk.Annotations.of(stack).acknowledge_warning(warning)
    return ec2.Vpc.from_vpc_attributes(
        stack,
        "Vpc",
        vpc_id=network.vpc,
        availability_zones=list(network.private_subnets),
        private_subnet_ids=list(network.private_subnets.values()),
    )
