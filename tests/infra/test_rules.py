"""Rules over all templates: no right without a reason, cdk-nag's AwsSolutions pack, cfn-lint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.infra.findings import KEPT, Finding, disagreements, lint
from tests.infra.templates import Deployment, as_list, resolved

LEFT_TO_CDK = {
    "W3005": "CDK names a dependency again that a reference already makes",
    "W3010": "the zones are named in the experiment, so that nothing is looked up at synth",
}
"""Warnings of cfn-lint that say nothing here; errors are never left."""
GRANTED_BY_CDK = {"s3:GetObject*", "s3:GetBucket*", "s3:List*"}
"""CDK's grant for the sources of a CodeBuild project, on one asset; see acknowledged.yaml."""
FORBIDDEN_POLICIES = ("FullAccess", "AdministratorAccess", "PowerUserAccess")


Statements = list[tuple[str, str, dict[str, Any]]]


@pytest.fixture(scope="module")
def deployments(
    deployment: Deployment, open_deployment: Deployment, rented_deployment: Deployment
) -> tuple[Deployment, ...]:
    return deployment, open_deployment, rented_deployment


@pytest.fixture(scope="module")
def statements(deployments: tuple[Deployment, ...]) -> Statements:
    """Stack, role and every statement that gives it a right. Policies of keys and buckets speak of their own resource."""
    assert not [one for found in deployments for one in found.resources("AWS::IAM::ManagedPolicy")]
    return [
        (stack, role, statement)
        for found in deployments
        for stack in found.templates
        for role, statements in found.rights(stack).items()
        for statement in statements
    ]


def test_no_right_on_everything_without_a_listed_reason(statements: Statements) -> None:
    found = {
        (stack, action)
        for stack, _, statement in statements
        if "*" in as_list(statement["Resource"])
        for action in as_list(statement["Action"])
    }
    kept = {(stack, action) for stack, actions in KEPT["any_resource"].items() for action in actions}
    assert found == kept, "an entry that matches nothing is to be removed"


def test_actions_are_named_in_full_and_metrics_go_to_a_named_namespace_only(statements: Statements) -> None:
    assert len(statements) > 24
    publishing = 0
    for _, role, statement in statements:
        assert statement["Effect"] == "Allow"
        named = set(as_list(statement["Action"])) - (GRANTED_BY_CDK if "ProjectRole" in role else set())
        assert not [action for action in named if "*" in action], role
        if "cloudwatch:PutMetricData" in named:
            publishing += 1
            assert named == {"cloudwatch:PutMetricData"}
            assert statement["Condition"]["StringEquals"].keys() == {"cloudwatch:namespace"}
    assert publishing >= 6


def test_managed_policies_open_no_whole_service_and_nodes_have_what_eks_asks_for(
    deployments: tuple[Deployment, ...],
) -> None:
    roles = [one for found in deployments for one in found.resources("AWS::IAM::Role")]
    arns = [resolved(arn) for one in roles for arn in one.properties.get("ManagedPolicyArns", [])]
    assert len(arns) > 6
    assert not [arn for arn in arns if any(word in arn for word in FORBIDDEN_POLICIES)]
    of_nodes = [one.properties for one in roles if "ec2" in str(one.body) and "Nodes" in one.logical_id]
    assert len(of_nodes) == 2 * len(deployments)
    for role in of_nodes:
        assert [resolved(arn).rpartition("/")[2] for arn in role["ManagedPolicyArns"]] == [
            "AmazonEKSWorkerNodePolicy",
            "AmazonEC2ContainerRegistryPullOnly",
        ]


def test_no_network_but_those_named_reaches_in(deployment: Deployment, rented_deployment: Deployment) -> None:
    for found in (deployment, rented_deployment):
        groups = found.properties("AWS::EC2::SecurityGroup")
        assert [bool(group.get("SecurityGroupIngress")) for group in groups] == [False] * len(groups) != []
        rules = found.properties("AWS::EC2::SecurityGroupIngress")
        assert ["CidrIp" in rule for rule in rules] == [False] * len(rules) != []


def test_every_finding_is_acknowledged_once_with_a_reason_and_every_acknowledgement_matches(
    rule_findings: list[Finding],
) -> None:
    assert len(rule_findings) > 40
    assert disagreements(rule_findings, "experiment") == []


@pytest.mark.slow
def test_cfn_lint_finds_nothing_for_the_region_and_each_warning_that_is_left_occurs(
    templates: list[Path],
) -> None:
    assert len(templates) >= 12
    assert {one["Rule"]["Id"] for one in lint(templates, region="us-east-2")} == set(LEFT_TO_CDK)


@pytest.mark.slow
def test_cfn_lint_lacks_trn2_in_the_other_region_and_finds_nothing_else(assembly: Path) -> None:
    """Its table of instance types by region is older than the instances there; once it is not, this fails."""
    templates = (assembly / "assembly-small").glob("small[cn]*.template.json")  # cluster, network, nodes
    found = [one for one in lint(templates, region="ap-southeast-4") if one["Rule"]["Id"] not in LEFT_TO_CDK]
    assert [one["Rule"]["Id"] for one in found] == ["E3628"]
    assert found[0]["Message"].startswith("'trn2.3xlarge' is not one of")
