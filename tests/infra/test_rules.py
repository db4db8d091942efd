"""Rules over all templates: no right without a reason, cdk-nag's AwsSolutions pack, cfn-lint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.infra.findings import Found, acknowledged, covers, lint
from tests.infra.templates import Deployments, as_list

LEFT_TO_CDK = {"W3005": "CDK names a dependency again that a reference already makes"}
"""Warnings of cfn-lint that say nothing here; errors are never left."""
ANY_RESOURCE = {
    "run": {
        "autoscaling:DescribeScalingActivities",  # knows no resource; reads how launches went
        "cloudwatch:PutMetricData",  # knows no resource; the statement names one namespace
        "ec2:DescribeCapacityReservations",  # knows no resource; when a block begins
        "ec2:CreateNetworkInterface",  # CodeBuild in a VPC; CDK writes these
        "ec2:DeleteNetworkInterface",
        "ec2:DescribeDhcpOptions",
        "ec2:DescribeNetworkInterfaces",
        "ec2:DescribeSecurityGroups",
        "ec2:DescribeSubnets",
        "ec2:DescribeVpcs",
    },
    "identity": {"cloudwatch:PutMetricData"},  # knows no resource; the statement names one namespace
    "cluster": {
        "cloudwatch:PutMetricData",  # likewise
        "ec2:DescribeTags",  # knows no resource; reads names of instances
        "ec2:DescribeVolumes",  # knows no resource; reads names of disks
        "ssm:UpdateInstanceInformation",  # the agent reports an instance whose id is not known beforehand
        "ssmmessages:CreateControlChannel",  # sessions through the way in know no resource
        "ssmmessages:CreateDataChannel",
        "ssmmessages:OpenControlChannel",
        "ssmmessages:OpenDataChannel",
    },
}
"""Actions that may be with `Resource: "*"`, by stack."""
Statements = list[tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def statements(made: Deployments) -> Statements:
    """Stack and every statement that gives one of its roles a right. Policies of keys and buckets speak of their own resource."""
    found = (made.reference, made.opened, made.rented)
    assert not [one for each in found for one in each.resources("AWS::IAM::ManagedPolicy")]
    return [
        (stack, statement)
        for each in found
        for stack in each.templates
        for statements in each.rights(stack).values()
        for statement in statements
    ]


def test_no_right_on_everything_without_a_listed_reason(statements: Statements) -> None:
    found = {
        (stack, action)
        for stack, statement in statements
        if "*" in as_list(statement["Resource"])
        for action in as_list(statement["Action"])
    }
    kept = {(stack, action) for stack, actions in ANY_RESOURCE.items() for action in actions}
    assert found == kept, "an entry that matches nothing is to be removed"


def test_metrics_go_to_a_named_namespace_only(statements: Statements) -> None:
    publishing = [one for _, one in statements if "cloudwatch:PutMetricData" in as_list(one["Action"])]
    assert len(publishing) >= 6
    for statement in publishing:
        assert as_list(statement["Action"]) == ["cloudwatch:PutMetricData"]
        assert statement["Condition"]["StringEquals"].keys() == {"cloudwatch:namespace"}


def test_no_network_but_those_named_reaches_in(made: Deployments) -> None:
    for found in (made.reference, made.rented):
        groups = found.properties("AWS::EC2::SecurityGroup")
        assert [bool(group.get("SecurityGroupIngress")) for group in groups] == [False] * len(groups) != []
        rules = found.properties("AWS::EC2::SecurityGroupIngress")
        assert ["CidrIp" in rule for rule in rules] == [False] * len(rules) != []


def test_every_finding_of_cdk_nag_is_acknowledged_and_every_acknowledgement_covers_one(nagged: Found) -> None:
    known = acknowledged("experiment")
    assert len(nagged) > 100
    assert [one for one in nagged if not any(covers(entry, *one) for entry in known)] == []
    assert [entry for entry in known if not any(covers(entry, *one) for one in nagged)] == []
    assert all(len(entry["reason"]) > 10 for entry in known)


@pytest.mark.slow
def test_cfn_lint_finds_nothing_for_the_region_and_each_warning_that_is_left_occurs(
    templates: list[Path],
) -> None:
    assert len(templates) >= 12
    assert {one["Rule"]["Id"] for one in lint(templates, region="us-east-2")} == set(LEFT_TO_CDK)


@pytest.mark.slow
def test_cfn_lint_lacks_trn2_in_the_other_region_and_finds_nothing_else(assembly: Path) -> None:
    """Its table of instance types by region is older than the instances there; once it is not, this fails."""
    templates = (assembly / "assembly-small").glob("small*nodes*.template.json")  # the instances
    found = [one for one in lint(templates, region="ap-southeast-4") if one["Rule"]["Id"] not in LEFT_TO_CDK]
    assert [one["Rule"]["Id"] for one in found] == ["E3628"]
    assert found[0]["Message"].startswith("'trn2.3xlarge' is not one of")
