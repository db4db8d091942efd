"""The reference in a VPC that exists: its subnets are named, and nothing of the network is made or looked up."""

from __future__ import annotations

import json
from pathlib import Path

from experiment import Experiment
from tests.infra.templates import STACKS, Deployment


def test_all_stacks_but_the_network_come(within_deployment: Deployment) -> None:
    assert {*within_deployment.templates} == {*STACKS} - {"network"}


def test_nothing_of_a_network_is_made_or_changed_but_groups_of_our_own(within_deployment: Deployment) -> None:
    made = {one.type for one in within_deployment.resources() if one.type.startswith("AWS::EC2::")}
    groups = {"AWS::EC2::SecurityGroup", "AWS::EC2::SecurityGroupIngress", "AWS::EC2::SecurityGroupEgress"}
    assert made == groups | {"AWS::EC2::LaunchTemplate"}


def test_everything_stands_in_the_named_subnets(within_deployment: Deployment, within: Experiment) -> None:
    network, found = within.cluster.network, within_deployment
    subnets = [*network.private_subnets.values()]
    (cluster,) = found.resources("AWS::EKS::Cluster")
    assert cluster.properties["ResourcesVpcConfig"]["SubnetIds"] == subnets
    handlers = [
        one.properties for one in found.resources("AWS::Lambda::Function") if "VpcConfig" in one.properties
    ]
    assert handlers
    assert all(one["VpcConfig"]["SubnetIds"] == subnets for one in handlers)
    assert found.only("AWS::AutoScaling::AutoScalingGroup").properties["VPCZoneIdentifier"] == subnets
    system = found.only("AWS::EKS::Nodegroup", stack="cluster").properties["Subnets"]
    neuron = found.only("AWS::EKS::Nodegroup", stack="nodes").properties["Subnets"]
    assert (system, neuron) == (subnets, [network.private_subnets["us-east-2c"]])
    groups = found.resources("AWS::EC2::SecurityGroup")
    assert {str(group.properties["VpcId"]) for group in groups} == {network.vpc}


def test_nothing_is_looked_up_or_warned_of(assembly: Path) -> None:
    manifest = json.loads((assembly / "assembly-within" / "manifest.json").read_text(encoding="utf-8"))
    assert "missing" not in manifest
    stacks = [one for one in manifest["artifacts"].values() if one["type"] == "aws:cloudformation:stack"]
    assert len(stacks) == len(STACKS) - 1
    warned = [entry for one in stacks for entries in one.get("metadata", {}).values() for entry in entries]
    assert not [entry for entry in warned if entry["type"] in ("aws:cdk:warning", "aws:cdk:error")]
