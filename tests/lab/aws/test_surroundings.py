"""What a rehearsal finds before it deploys and leaves after the teardown, through the APIs of moto."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from experiment import load
from lab.aws.moto_server import client, rehearsal_server
from lab.aws.surroundings import Remains, listed, put_there, remains
from tests.conftest import REFERENCE
from tests.lab.aws.assemblies import REGION

ClientOf = Callable[[str], Any]


@pytest.fixture(scope="module")
def client_of() -> Iterator[ClientOf]:
    with rehearsal_server() as endpoint:
        yield partial(client, endpoint=endpoint, region=REGION)


def test_a_new_thing_is_left_and_a_changed_or_missing_one_is_disturbed() -> None:
    before = {"a": "1", "b": "2", "c": "3"}
    found = remains(before, {"a": "1", "b": "other", "d": "4"})
    assert found == Remains(before=3, left=("d",), disturbed=("b", "c"))


def test_a_rule_that_is_added_to_a_group_is_seen(client_of: ClientOf) -> None:
    ec2 = client_of("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    group = ec2.create_security_group(VpcId=vpc, GroupName="theirs", Description="theirs")["GroupId"]
    before = listed(client_of)
    rule = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "IpRanges": [{"CidrIp": "10.9.0.0/16"}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    client_of("sns").create_topic(Name="new")
    found = remains(before, listed(client_of))
    assert found.disturbed == (f"ec2 SecurityGroups: {group}",)
    assert [name.rpartition(":")[2] for name in found.left] == ["new"]


def test_an_experiment_is_written_that_names_what_is_there(client_of: ClientOf, tmp_path: Path) -> None:
    file, manifests = put_there(REFERENCE, "cluster", client_of, tmp_path)
    experiment = load(file)
    network = experiment.cluster.network
    assert {*network.private_subnets} >= {*experiment.cluster.availability_zones}
    subnets = client_of("ec2").describe_subnets(SubnetIds=[*network.private_subnets.values()])["Subnets"]
    assert {one["VpcId"] for one in subnets} == {network.vpc}
    assert (manifests / experiment.name / "rendered.sha256").exists()
    there = client_of("eks").describe_cluster(name=experiment.cluster.existing)["cluster"]
    assert there["resourcesVpcConfig"]["clusterSecurityGroupId"] == experiment.cluster.security_group
    assert there["resourcesVpcConfig"]["vpcId"] == network.vpc
