from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import aws_cdk as cdk
from aws_cdk.assertions import Template

from infra.deployment_file import DeployedExperiment, DeploymentSettings
from infra.stacks.network import NetworkStack
from tests.infra.conftest import Variants, changed
from tests.infra.templates import ROOT, STACKS, Deployments, json_of
from trnspec.experiment import Experiment
from trnspec.experiment.catalogue.instances import ZONES


def test_every_zone_has_a_private_and_a_public_subnet_and_addresses_are_put_by_for_more(
    made: Deployments, experiment: Experiment
) -> None:
    subnets = made.reference.resources("AWS::EC2::Subnet")
    zones = [subnet.properties["AvailabilityZone"] for subnet in subnets]
    assert sorted(zones) == sorted(ZONES[experiment.cluster.region] * 2)
    public = [IPv4Network(one.properties["CidrBlock"]) for one in subnets if "public" in one.logical_id]
    behind_six_private = IPv4Network("10.0.0.0/19").network_address + 6 * 2**13
    assert min(public).network_address == behind_six_private


def test_a_region_that_is_not_in_the_table_has_the_zones_that_the_file_names(
    experiment: Experiment,
) -> None:
    zones = ("eu-north-1c", "eu-north-1a")
    north = changed(experiment, "north", region="eu-north-1", availability_zones=zones)
    deployed = DeployedExperiment(experiment=north, files=(), settings=DeploymentSettings())
    template = Template.from_stack(NetworkStack(cdk.App(), deployed))
    for zone in zones:
        template.resource_properties_count_is("AWS::EC2::Subnet", {"AvailabilityZone": zone}, 2)


def test_private_subnets_have_a_way_out_and_none_in(made: Deployments) -> None:
    ways = {one["RouteTableId"]["Ref"]: one for one in made.reference.properties("AWS::EC2::Route")}
    joined = made.reference.properties("AWS::EC2::SubnetRouteTableAssociation")
    tables = {one["SubnetId"]["Ref"]: one["RouteTableId"]["Ref"] for one in joined}
    for subnet in made.reference.resources("AWS::EC2::Subnet"):
        tags = {tag["Key"]: tag["Value"] for tag in subnet.properties["Tags"]}
        private = tags["aws-cdk:subnet-type"] == "Private"
        assert subnet.properties["MapPublicIpOnLaunch"] is False
        way = ways[tables[subnet.logical_id]]
        assert ("NatGatewayId" in way, "GatewayId" in way) == (private, not private)
    assert made.reference.only("AWS::EC2::FlowLog").properties["TrafficType"] == "ALL"
    assert len(made.reference.resources("AWS::EC2::NatGateway")) == 1


def test_nothing_is_looked_up_at_synth(assembly: Path) -> None:
    """A lookup would be missing context of a manifest, and want credentials; so no cdk.context.json is needed."""
    manifests = [json_of(path) for path in assembly.rglob("manifest.json")]
    assert len(manifests) > 6
    assert not [one for one in manifests if "missing" in one]
    assert not (ROOT / "cdk.context.json").exists()
    artifacts = json_of(assembly / "manifest.json")["artifacts"].values()
    environments = {one["environment"] for one in artifacts if "environment" in one}
    assert environments == {"aws://unknown-account/us-east-2"}


def test_in_a_vpc_that_exists_everything_is_in_its_named_subnets_and_nothing_of_it_is_made_or_changed(
    made: Deployments, variants: Variants, assembly: Path
) -> None:
    network, found = variants["within"][0].cluster.network, made.within
    assert {*found.templates} == {*STACKS} - {"network"}
    types = {one.type for one in found.resources() if one.type.startswith("AWS::EC2::")}
    assert types == {
        "AWS::EC2::SecurityGroupIngress",
        "AWS::EC2::SecurityGroupEgress",
        "AWS::EC2::SecurityGroup",
        "AWS::EC2::LaunchTemplate",
    }
    subnets = [*network.private_subnets.values()]
    assert found.only("AWS::EKS::Cluster").properties["ResourcesVpcConfig"]["SubnetIds"] == subnets
    functions = [one["VpcConfig"] for one in found.properties("AWS::Lambda::Function") if "VpcConfig" in one]
    assert functions
    assert all(one["SubnetIds"] == subnets for one in functions), "where the manifests are applied"
    assert found.only("AWS::AutoScaling::AutoScalingGroup").properties["VPCZoneIdentifier"] == subnets
    system, neuron = (found.only("AWS::EKS::Nodegroup", stack).properties for stack in ("cluster", "nodes"))
    assert (system["Subnets"], neuron["Subnets"]) == (subnets, [network.private_subnets["us-east-2c"]])
    assert {str(group["VpcId"]) for group in found.properties("AWS::EC2::SecurityGroup")} == {network.vpc}
    for one in found.artifacts.values():
        metadata = json_of(assembly / "assembly-within" / one["additionalMetadataFile"])
        kinds = {entry["type"] for path in metadata.values() for entry in path}
        assert kinds.isdisjoint({"aws:cdk:warning", "aws:cdk:error"})
