"""The network that nodes and the control plane share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_ec2 as ec2

from experiment.catalogue.regions import ZONES
from infra.constructs.interface_endpoints import InterfaceEndpoints
from infra.constructs.kept_logs import log_group
from infra.stacks.experiment_stack import ExperimentStack

if TYPE_CHECKING:
    from constructs import Construct

    from experiment import Experiment
    from infra.settings import Settings


MOST_ZONES = 6
"""Of any region of AWS. Addresses are put by for as many, so that one more zone moves no subnet."""


class NetworkStack(ExperimentStack):
    """A VPC over the region's zones: nodes in private subnets, as many ways out as the experiment
    asks for (one), S3 without that way, and on request the other services of AWS as well."""

    def __init__(self, scope: Construct, part: str, *, experiment: Experiment, settings: Settings) -> None:
        super().__init__(scope, part, experiment=experiment, description="network")
        zones = ZONES[experiment.cluster.region]
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(settings.network_cidr),
            # Named, not looked up: the synth needs no credentials. All of the region's, always, so that nodes can move
            # to any of them later: EKS keeps a control plane to the zones that it was created in, and EC2 takes no
            # second subnet for the same addresses (https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html).
            availability_zones=list(zones),
            reserved_azs=MOST_ZONES - len(zones),
            nat_gateways=experiment.cluster.network.nat_gateways,
            # Emptying the default security group takes a Lambda with rights on it; nothing here uses that group.
            restrict_default_security_group=False,
            subnet_configuration=[
                ec2.SubnetConfiguration(
                    name="private",
                    subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS,
                    cidr_mask=settings.private_subnet_mask,
                ),
                ec2.SubnetConfiguration(
                    name="public",
                    subnet_type=ec2.SubnetType.PUBLIC,
                    cidr_mask=settings.public_subnet_mask,
                    map_public_ip_on_launch=False,
                ),
            ],
        )
        # Weights and artifacts are tens of GB per start: through NAT they would cost and wait.
        self.vpc.add_gateway_endpoint("S3", service=ec2.GatewayVpcEndpointAwsService.S3)
        if experiment.cluster.network.interface_endpoints:
            InterfaceEndpoints(self, "Endpoints", experiment=experiment, settings=settings, vpc=self.vpc)
        group = log_group(self, "FlowLogs", days=settings.log_days)
        self.vpc.add_flow_log("Flow", destination=ec2.FlowLogDestination.to_cloud_watch_logs(group))
