from __future__ import annotations

from experiment import Experiment
from tests.infra.templates import Deployment, resolved


def test_subnets_stand_in_the_zones_that_the_experiment_names(
    deployment: Deployment, experiment: Experiment
) -> None:
    zones = [subnet.properties["AvailabilityZone"] for subnet in deployment.resources("AWS::EC2::Subnet")]
    assert sorted(zones) == sorted(experiment.cluster.availability_zones * 2)


def test_no_subnet_gives_out_public_addresses(deployment: Deployment) -> None:
    subnets = deployment.resources("AWS::EC2::Subnet")
    assert not any(subnet.properties.get("MapPublicIpOnLaunch") for subnet in subnets)


def test_there_is_one_nat_gateway_and_s3_goes_around_it(deployment: Deployment) -> None:
    assert len(deployment.resources("AWS::EC2::NatGateway")) == 1
    endpoint = deployment.only("AWS::EC2::VPCEndpoint").properties
    assert endpoint["VpcEndpointType"] == "Gateway"
    assert resolved(endpoint["ServiceName"]) == "com.amazonaws.us-east-2.s3"
    assert len(endpoint["RouteTableIds"]) == 4


def test_all_traffic_is_logged(deployment: Deployment) -> None:
    assert deployment.only("AWS::EC2::FlowLog").properties["TrafficType"] == "ALL"


def test_the_network_brings_no_lambda(deployment: Deployment) -> None:
    types = {resource.type for resource in deployment.resources(stack="network")}
    assert not {name for name in types if "Lambda" in name or name.startswith("Custom::")}
