"""What a rehearsal finds before it deploys and leaves after the teardown, through the APIs of moto."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from experiment import load
from lab.aws.moto_server import client, rehearsal_server
from lab.aws.surroundings import listed, put_there, remains
from tests.conftest import REFERENCE
from tests.lab.aws.assemblies import REGION

ClientOf = Callable[[str], Any]


@pytest.fixture(scope="module")
def client_of() -> Iterator[ClientOf]:
    with rehearsal_server() as endpoint:
        yield partial(client, endpoint=endpoint, region=REGION)


def test_what_is_new_is_left_and_what_is_changed_or_missing_is_disturbed(client_of: ClientOf) -> None:
    ec2, sns = client_of("ec2"), client_of("sns")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    group = ec2.create_security_group(VpcId=vpc, GroupName="theirs", Description="theirs")["GroupId"]
    old = sns.create_topic(Name="old")["TopicArn"]
    before = listed(client_of)
    rule = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "IpRanges": [{"CidrIp": "10.9.0.0/16"}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    new = sns.create_topic(Name="new")["TopicArn"]
    sns.delete_topic(TopicArn=old)
    found = remains(before, listed(client_of))
    assert found.disturbed == (f"ec2 SecurityGroups: {group}", f"sns Topics: {old}")
    assert (found.left, found.before) == ((f"sns Topics: {new}",), len(before))


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
