"""What preflight says of an existing VPC, as moto's EC2 describes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.operations.clients import make_stacks, shared_client
from trnspec.core.findings import Finding, State
from trnspec.experiment import Experiment
from trnspec.experiment.model import Network
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.preflight.checklist import run_check
from trnspec.operations.preflight.existing_vpc import ExistingVpc

ZONES = ("us-east-2a", "us-east-2b")
Found = Callable[..., dict[str, Finding]]


class Built:
    """A VPC with a subnet a zone, behind a NAT gateway, with both kinds of DNS."""

    def __init__(self, *, networks: tuple[str, str] = ("10.7.0.0/22", "10.7.4.0/22")) -> None:
        self.ec2 = shared_client("ec2")
        self.vpc = self.ec2.create_vpc(CidrBlock="10.7.0.0/16")["Vpc"]["VpcId"]
        self.ec2.modify_vpc_attribute(VpcId=self.vpc, EnableDnsHostnames={"Value": True})
        self.subnets = {zone: self.subnet(zone, one) for zone, one in zip(ZONES, networks, strict=True)}
        self.table = self.ec2.create_route_table(VpcId=self.vpc)["RouteTable"]["RouteTableId"]
        for subnet in self.subnets.values():
            self.ec2.associate_route_table(RouteTableId=self.table, SubnetId=subnet)
        self.route(NatGatewayId=self.nat())

    def subnet(self, zone: str, network: str, vpc: str = "") -> str:
        made = self.ec2.create_subnet(VpcId=vpc or self.vpc, CidrBlock=network, AvailabilityZone=zone)
        return str(made["Subnet"]["SubnetId"])

    def nat(self) -> str:
        public = self.subnet("us-east-2a", "10.7.200.0/24")
        return str(self.ec2.create_nat_gateway(SubnetId=public)["NatGateway"]["NatGatewayId"])

    def route(self, **target: str) -> None:
        self.ec2.create_route(RouteTableId=self.table, DestinationCidrBlock="0.0.0.0/0", **target)

    def cut_off(self) -> None:
        self.ec2.delete_route(RouteTableId=self.table, DestinationCidrBlock="0.0.0.0/0")

    def within(self, experiment: Experiment, **changes: Any) -> Experiment:
        network = Network(vpc=self.vpc, private_subnets=self.subnets)
        cluster = experiment.cluster.model_copy(update={"network": network, **changes})
        return replace(experiment, cluster=cluster)


def judged(experiment: Experiment, aws: Aws) -> dict[str, Finding]:
    return {name: run_check(name, check) for name, check in ExistingVpc(experiment, aws).checks().items()}


@pytest.fixture
def built(aws: Aws) -> Built:
    return Built()


@pytest.fixture
def found(built: Built, experiment: Experiment, aws: Aws) -> Found:
    """What is found there, of an experiment whose section `cluster` says this besides."""
    return lambda **said: judged(built.within(experiment, **said), aws)


def test_a_whole_vpc_is_fine_and_a_small_subnet_is_not(
    found: Found, experiment: Experiment, aws: Aws
) -> None:
    assert ExistingVpc(experiment, aws).checks() == {}, "a network of our own is not asked about"
    told = found()
    each = [f"{what} {zone}" for zone in ZONES for what in ("subnet", "addresses", "egress")]
    assert [*told] == ["vpc", *each]
    assert {one.state for one in told.values()} == {State.FINE}, told
    of = r"has 101[89] free addresses; needed: 176 \(16 for the control plane, 60 for system nodes, 100 for Trn2 nodes\)"
    assert re.search(of, told["addresses us-east-2a"].why)
    small = judged(Built(networks=("10.7.0.0/25", "10.7.4.0/25")).within(experiment), aws)
    assert re.search(r"has 12\d free addresses; needed: 176", small["addresses us-east-2a"].why)
    assert small["addresses us-east-2a"].state is State.FINDING
    assert small["addresses us-east-2b"].state is State.FINE, "no Trn2 node starts there"
    make_stacks("qwen3-32b", "cluster")
    assert found()["addresses us-east-2a"].why == "the cluster is there already"


def test_what_is_elsewhere_is_named_with_where_it_is(
    built: Built, experiment: Experiment, found: Found
) -> None:
    elsewhere = Aws("ap-southeast-4", make_client=lambda service: shared_client(service, "ap-southeast-4"))
    told = judged(built.within(experiment), elsewhere)
    assert f"{built.vpc}: no such VPC in account 123456789012, ap-southeast-4" in told["vpc"].why
    assert "check cluster.network.vpc, cluster.region" in told["vpc"].remedy
    assert "no such subnet" in told["subnet us-east-2a"].why
    assert "no such subnet" in told["egress us-east-2b"].why
    other = built.ec2.create_vpc(CidrBlock="10.8.0.0/16")["Vpc"]["VpcId"]
    foreign = built.subnet("us-east-2a", "10.8.0.0/24", other)
    built.subnets = {"us-east-2a": foreign, "us-east-2b": built.subnet("us-east-2c", "10.7.9.0/24")}
    assert f"{foreign} is in {other}, not in {built.vpc}" in found()["subnet us-east-2a"].why
    assert "is in us-east-2c, not in us-east-2b" in found()["subnet us-east-2b"].why
    assert "name a subnet of us-east-2b" in found()["subnet us-east-2b"].remedy


def test_nodes_need_dns_and_no_control_plane_in_an_earlier_network(built: Built, found: Found) -> None:
    built.ec2.modify_vpc_attribute(VpcId=built.vpc, EnableDnsHostnames={"Value": False})
    told = found()["vpc"]
    assert "EnableDnsHostnames off" in told.why
    assert told.remedy.endswith(f"--vpc-id {built.vpc} --enable-dns-hostnames --region us-east-2")
    make_stacks("qwen3-32b", "network")
    told = found()["vpc"]
    assert "qwen3-32b-network is deployed" in told.why
    assert "teardown" in told.remedy


@pytest.mark.parametrize(
    ("target", "why", "remedy"),
    [
        ("", "come from public.ecr.aws and Hugging Face", "aws ec2 create-route"),
        ("igw", "serves public addresses only", "name a private subnet of us-east-2a"),
        ("gone", "nat-0123456789abcdef0, which is gone", "aws ec2 replace-route"),
    ],
)
def test_a_subnet_needs_a_way_out_that_works(
    target: str, why: str, remedy: str, built: Built, experiment: Experiment, aws: Aws
) -> None:
    built.cut_off()
    if target == "igw":
        gateway = built.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        built.ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=built.vpc)
        built.route(GatewayId=gateway)
    checks = ExistingVpc(built.within(experiment), aws)
    if target == "gone":  # moto keeps routes of what was deleted as they were
        gone = {"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-0123456789abcdef0"}
        routes, main = [{**gone, "State": "blackhole"}], [{"Main": True}]
        checks.__dict__["_tables"] = [{"RouteTableId": built.table, "Routes": routes, "Associations": main}]
    told = checks.egress("us-east-2a")
    assert (told.state, why in told.why, remedy in told.remedy) == (State.FINDING, True, True), told
