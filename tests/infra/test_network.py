from __future__ import annotations

import json
from ipaddress import IPv4Network
from pathlib import Path

from experiment import Experiment
from experiment.catalogue.instances import ZONES
from tests.infra.templates import Deployment, resolved


def test_every_zone_of_the_region_has_a_private_and_a_public_subnet(
    deployment: Deployment, experiment: Experiment
) -> None:
    zones = [subnet.properties["AvailabilityZone"] for subnet in deployment.resources("AWS::EC2::Subnet")]
    assert sorted(zones) == sorted(ZONES[experiment.cluster.region] * 2)


def test_addresses_are_put_by_for_zones_to_come(deployment: Deployment) -> None:
    """Public subnets begin behind six private ones, the most zones that a region has."""
    public = [
        IPv4Network(subnet.properties["CidrBlock"])
        for subnet in deployment.resources("AWS::EC2::Subnet")
        if "public" in subnet.logical_id
    ]
    assert min(public) == IPv4Network("10.0.192.0/24")
    assert (
        IPv4Network("10.0.192.0/24").network_address == IPv4Network("10.0.0.0/19").network_address + 6 * 2**13
    )


def test_internal_load_balancers_stand_in_the_private_subnets(deployment: Deployment) -> None:
    """Where the cloud provider looks: https://docs.aws.amazon.com/eks/latest/userguide/network-load-balancing.html."""
    for subnet in deployment.resources("AWS::EC2::Subnet"):
        tags = {tag["Key"]: tag["Value"] for tag in subnet.properties["Tags"]}
        private = tags["aws-cdk:subnet-type"] == "Private"
        assert tags.get("kubernetes.io/role/internal-elb") == ("1" if private else None)


def test_s3_is_reached_without_the_nat_gateway(deployment: Deployment) -> None:
    endpoint = deployment.only("AWS::EC2::VPCEndpoint").properties
    assert endpoint["VpcEndpointType"] == "Gateway"
    assert resolved(endpoint["ServiceName"]) == "com.amazonaws.us-east-2.s3"
    assert len(endpoint["RouteTableIds"]) == 6


def test_every_private_subnet_has_a_way_out_and_none_in(deployment: Deployment) -> None:
    ways = {
        route.properties["RouteTableId"]["Ref"]: route.properties
        for route in deployment.resources("AWS::EC2::Route")
    }
    for joined in deployment.resources("AWS::EC2::SubnetRouteTableAssociation"):
        way = ways[joined.properties["RouteTableId"]["Ref"]]
        assert way["DestinationCidrBlock"] == "0.0.0.0/0"
        private = "private" in joined.properties["SubnetId"]["Ref"]
        assert ("NatGatewayId" in way, "GatewayId" in way) == (private, not private)


def test_nothing_is_looked_up_at_synth(assembly: Path) -> None:
    """A lookup would stand in the manifest as missing context, and want credentials."""
    manifest = json.loads((assembly / "manifest.json").read_text(encoding="utf-8"))
    assert "missing" not in manifest
    environments = {one["environment"] for one in manifest["artifacts"].values() if "environment" in one}
    assert environments == {"aws://unknown-account/us-east-2"}


def test_flow_logs_may_be_written_to_their_group_alone(deployment: Deployment) -> None:
    (policy,) = deployment.resources("AWS::IAM::Policy", stack="network")
    (group,) = deployment.resources("AWS::Logs::LogGroup", stack="network")
    allowed = {
        str(statement["Resource"]): statement["Action"]
        for statement in policy.properties["PolicyDocument"]["Statement"]
    }
    assert any(group.logical_id in resource for resource in allowed)
    assert "*" not in allowed


def test_the_network_brings_no_lambda(deployment: Deployment) -> None:
    types = {resource.type for resource in deployment.resources(stack="network")}
    assert not {name for name in types if "Lambda" in name or name.startswith("Custom::")}


def test_services_of_aws_are_reached_inside_the_network_on_request(open_deployment: Deployment) -> None:
    endpoints = [
        endpoint.properties
        for endpoint in open_deployment.resources("AWS::EC2::VPCEndpoint")
        if endpoint.properties["VpcEndpointType"] == "Interface"
    ]
    names = {str(endpoint["ServiceName"]).removeprefix("com.amazonaws.us-east-2.") for endpoint in endpoints}
    assert names == {
        "ec2",
        "ec2messages",
        "ecr.api",
        "ecr.dkr",
        "eks",
        "eks-auth",
        "logs",
        "monitoring",
        "ssm",
        "ssmmessages",
        "sts",
    }
    # In the two zones that the experiment names: an endpoint bills by zone.
    assert all(len(endpoint["SubnetIds"]) == 2 for endpoint in endpoints)


def test_endpoints_answer_the_network_itself_on_https_only(open_deployment: Deployment) -> None:
    group = open_deployment.only("AWS::EC2::SecurityGroup", stack="network").properties
    (rule,) = group["SecurityGroupIngress"]
    network = open_deployment.only("AWS::EC2::VPC").properties["CidrBlock"]
    assert (rule["CidrIp"], rule["FromPort"], rule["ToPort"], rule["IpProtocol"]) == (
        network,
        443,
        443,
        "tcp",
    )
