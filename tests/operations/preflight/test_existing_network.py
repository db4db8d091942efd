"""What preflight says of an existing VPC, as moto's EC2 describes it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from experiment import Experiment
from experiment.finding import Finding, State
from experiment.model import Network, Serve
from infra.settings import SERVICES
from operations.cloud.aws import Aws
from operations.preflight.checklist import _made
from operations.preflight.existing_vpc import BALANCER_TAG, ExistingVpc
from tests.operations.clients import shared_client

ZONES = ("us-east-2a", "us-east-2b")


class Built:
    """A VPC with a subnet a zone, behind a NAT gateway, with S3's gateway endpoint and both kinds of DNS."""

    def __init__(self, *, networks: tuple[str, str] = ("10.7.0.0/22", "10.7.4.0/22")) -> None:
        self.ec2 = shared_client("ec2")
        self.vpc = self.ec2.create_vpc(CidrBlock="10.7.0.0/16")["Vpc"]["VpcId"]
        self.ec2.modify_vpc_attribute(VpcId=self.vpc, EnableDnsHostnames={"Value": True})
        self.subnets = {zone: self.subnet(zone, one) for zone, one in zip(ZONES, networks, strict=True)}
        self.table = self.ec2.create_route_table(VpcId=self.vpc)["RouteTable"]["RouteTableId"]
        for subnet in self.subnets.values():
            self.ec2.associate_route_table(RouteTableId=self.table, SubnetId=subnet)
        self.route(NatGatewayId=self.nat())
        self.ec2.create_vpc_endpoint(
            VpcEndpointType="Gateway",
            VpcId=self.vpc,
            ServiceName="com.amazonaws.us-east-2.s3",
            RouteTableIds=[self.table],
        )

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

    def endpoint(self, *services: str, network: str = "10.7.0.0/16") -> None:
        """Interface endpoints whose group lets a network in."""
        group = self.ec2.create_security_group(GroupName=services[0], Description="x", VpcId=self.vpc)[
            "GroupId"
        ]
        rule = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "IpRanges": [{"CidrIp": network}]}
        self.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
        for service in services:
            self.ec2.create_vpc_endpoint(
                VpcEndpointType="Interface",
                VpcId=self.vpc,
                ServiceName=f"com.amazonaws.us-east-2.{service}",
                SubnetIds=list(self.subnets.values()),
                SecurityGroupIds=[group],
                PrivateDnsEnabled=True,
            )

    def within(self, experiment: Experiment, **changes: Any) -> Experiment:
        network = Network(vpc=self.vpc, private_subnets=self.subnets)
        cluster = experiment.cluster.model_copy(update={"network": network, **changes})
        return replace(experiment, cluster=cluster)


def judged(experiment: Experiment, aws: Aws) -> dict[str, Finding]:
    return {name: _made(name, check) for name, check in ExistingVpc(experiment, aws).checks().items()}


@pytest.fixture
def built(aws: Aws) -> Built:
    return Built()


def test_a_network_of_our_own_is_not_asked_about(experiment: Experiment, aws: Aws) -> None:
    assert ExistingVpc(experiment, aws).checks() == {}


def test_a_vpc_with_everything_is_fine(built: Built, experiment: Experiment, aws: Aws) -> None:
    found = judged(built.within(experiment), aws)
    each = [f"{what} {zone}" for zone in ZONES for what in ("subnet", "addresses", "way out")]
    assert [*found] == ["vpc", *each, "endpoints"]
    assert {one.state for one in found.values()} == {State.FINE}, found
    assert (
        "has 1019 free addresses; needed: 176 (16 for the control plane, 60 for system nodes, 100 for Trn2 nodes)"
        in (found["addresses us-east-2a"].why.replace("1018", "1019"))
    )
    assert "S3" not in found["way out us-east-2a"].why


def test_a_vpc_of_another_region_is_named(built: Built, experiment: Experiment) -> None:
    elsewhere = Aws("ap-southeast-4", make_client=lambda service: shared_client(service, "ap-southeast-4"))
    found = judged(built.within(experiment), elsewhere)
    assert f"{built.vpc}: no such VPC in account 123456789012, ap-southeast-4" in found["vpc"].why
    assert "check cluster.network.vpc, cluster.region" in found["vpc"].remedy
    assert "no such subnet" in found["subnet us-east-2a"].why
    assert "no such subnet" in found["way out us-east-2b"].why


def test_nodes_need_both_kinds_of_dns(built: Built, experiment: Experiment, aws: Aws) -> None:
    built.ec2.modify_vpc_attribute(VpcId=built.vpc, EnableDnsHostnames={"Value": False})
    found = judged(built.within(experiment), aws)["vpc"]
    assert "EnableDnsHostnames off" in found.why
    assert found.remedy.endswith(f"--vpc-id {built.vpc} --enable-dns-hostnames --region us-east-2")


def test_a_subnet_of_another_vpc_or_zone_is_named_with_where_it_is(
    built: Built, experiment: Experiment, aws: Aws
) -> None:
    other = built.ec2.create_vpc(CidrBlock="10.8.0.0/16")["Vpc"]["VpcId"]
    foreign = built.subnet("us-east-2a", "10.8.0.0/24", other)
    built.subnets = {"us-east-2a": foreign, "us-east-2b": built.subnet("us-east-2c", "10.7.9.0/24")}
    found = judged(built.within(experiment), aws)
    assert f"{foreign} is in {other}, not in {built.vpc}" in found["subnet us-east-2a"].why
    assert "is in us-east-2c, not in us-east-2b" in found["subnet us-east-2b"].why
    assert "name a subnet of us-east-2b" in found["subnet us-east-2b"].remedy


def test_a_small_subnet_is_named_with_what_is_needed(aws: Aws, experiment: Experiment) -> None:
    found = judged(Built(networks=("10.7.0.0/25", "10.7.4.0/25")).within(experiment), aws)
    assert re.search(r"has 12\d free addresses; needed: 176", found["addresses us-east-2a"].why)
    assert found["addresses us-east-2a"].state is State.FINDING
    assert found["addresses us-east-2b"].state is State.FINE  # no Trn2 node starts there


@pytest.mark.parametrize("target", ["", "igw", "gone"])
def test_a_subnet_needs_a_way_out_that_works(
    target: str, built: Built, experiment: Experiment, aws: Aws
) -> None:
    built.cut_off()
    if target == "igw":
        gateway = built.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        built.ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=built.vpc)
        built.route(GatewayId=gateway)
    checks = ExistingVpc(built.within(experiment), aws)
    if target == "gone":  # moto keeps routes of what was deleted as they were
        gone = {
            "DestinationCidrBlock": "0.0.0.0/0",
            "NatGatewayId": "nat-0123456789abcdef0",
            "State": "blackhole",
        }
        main = [{"Main": True}]
        checks.__dict__["_tables"] = [{"RouteTableId": built.table, "Routes": [gone], "Associations": main}]
    found = checks.way_out("us-east-2a")
    says = {
        "": ("come from public.ecr.aws and Hugging Face", "aws ec2 create-route"),
        "igw": ("serves public addresses only", "name a private subnet of us-east-2a"),
        "gone": ("nat-0123456789abcdef0, which is gone", "aws ec2 replace-route"),
    }[target]
    assert (found.state, says[0] in found.why, says[1] in found.remedy) == (State.FINDING, True, True), found


def test_without_a_way_out_every_service_needs_an_endpoint(
    built: Built, experiment: Experiment, aws: Aws
) -> None:
    built.cut_off()
    within = built.within(experiment)
    missing = ExistingVpc(within, aws).endpoints()
    assert missing.why.endswith(", ".join(SERVICES))
    built.endpoint(*SERVICES)
    assert ExistingVpc(within, aws).endpoints().state is State.FINE


def test_an_endpoint_that_keeps_nodes_out_is_worse_than_none(
    built: Built, experiment: Experiment, aws: Aws
) -> None:
    built.endpoint("ecr.api", "sts", network="10.7.0.0/22")  # the first subnet alone
    found = judged(built.within(experiment), aws)["endpoints"]
    assert (found.state, "(ecr.api)" in found.why, "(sts)" in found.why) == (State.FINDING, True, True)


def test_an_endpoint_may_admit_the_clusters_group_or_a_prefix_list(
    built: Built, experiment: Experiment, aws: Aws
) -> None:
    built.endpoint("ecr.api", network="192.0.2.0/24")
    made = built.ec2.create_security_group(GroupName="cluster", Description="x", VpcId=built.vpc)
    cluster = made["GroupId"]
    joined = built.within(experiment, existing="team", security_group=cluster)
    assert ExistingVpc(joined, aws).endpoints().state is State.FINDING
    groups = built.ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": ["ecr.api"]}])
    theirs, https = (
        groups["SecurityGroups"][0]["GroupId"],
        {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443},
    )

    def admit(**whom: Any) -> None:
        built.ec2.authorize_security_group_ingress(GroupId=theirs, IpPermissions=[{**https, **whom}])

    admit(UserIdGroupPairs=[{"GroupId": cluster}])
    assert ExistingVpc(joined, aws).endpoints().state is State.FINE
    within = built.within(experiment)
    assert ExistingVpc(within, aws).endpoints().state is State.FINDING
    listed = built.ec2.create_managed_prefix_list(
        PrefixListName="ours", AddressFamily="IPv4", MaxEntries=1, Entries=[{"Cidr": "10.7.0.0/16"}]
    )
    admit(PrefixListIds=[{"PrefixListId": listed["PrefixList"]["PrefixListId"]}])
    assert ExistingVpc(within, aws).endpoints().state is State.FINE


def test_s3_by_the_nat_gateway_is_remarked(built: Built, experiment: Experiment, aws: Aws) -> None:
    (endpoint,) = built.ec2.describe_vpc_endpoints()["VpcEndpoints"]
    built.ec2.delete_vpc_endpoints(VpcEndpointIds=[endpoint["VpcEndpointId"]])
    found = judged(built.within(experiment), aws)["way out us-east-2b"]
    assert (found.state, "a gateway endpoint costs nothing" in found.why) == (State.FINE, True)


def test_a_load_balancer_is_looked_for_by_a_tag(built: Built, experiment: Experiment, aws: Aws) -> None:
    arn = "arn:aws:acm:us-east-2:123456789012:certificate/a"
    serve = Serve(arm="qwen-sd-vllm", certificate_arn=arn, client_cidrs=("10.0.0.0/8",))
    balanced = replace(built.within(experiment), serve=serve)
    assert f"has no tag {BALANCER_TAG}" in judged(balanced, aws)["subnet us-east-2a"].why
    tags = [{"Key": BALANCER_TAG, "Value": "1"}]
    built.ec2.create_tags(Resources=[*built.subnets.values()], Tags=tags)
    assert judged(balanced, aws)["subnet us-east-2a"].state is State.FINE


def test_an_earlier_network_of_our_own_is_named(built: Built, experiment: Experiment, aws: Aws) -> None:
    body = '{"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}'
    shared_client("cloudformation").create_stack(StackName="qwen3-32b-network", TemplateBody=body)
    found = judged(built.within(experiment), aws)["vpc"]
    assert "qwen3-32b-network is deployed" in found.why
    assert "teardown" in found.remedy


def test_who_joins_others_needs_addresses_for_what_it_brings(
    built: Built, experiment: Experiment, aws: Aws
) -> None:
    theirs = built.within(experiment, existing="platform")
    told = judged(theirs, aws)["addresses us-east-2a"].why
    assert "needed: 160 (60 for system nodes, 100 for Trn2 nodes)" in told
    shared = built.within(experiment, existing="platform", nodes_of="other")
    assert judged(shared, aws)["addresses us-east-2a"].why.endswith("needed: 0")
