"""Rules over all templates: no right without a reason, cdk-nag's AwsSolutions pack, cfn-lint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.infra.findings import KEPT, Finding, acknowledged, lint
from tests.infra.templates import Deployment, Resource, as_list, resolved

ACKNOWLEDGED = acknowledged("experiment")
LEFT_TO_CDK = {
    "W3005": "CDK names a dependency again that a reference already makes",
    "W3010": "the zones are named in the experiment, so that nothing is looked up at synth",
}
"""Warnings of cfn-lint that say nothing here; errors are never left."""
GRANTED_BY_CDK = {"s3:GetObject*", "s3:GetBucket*", "s3:List*"}
"""CDK's grant for the sources of a CodeBuild project, on one asset; see acknowledged.yaml."""
FORBIDDEN_POLICIES = ("FullAccess", "AdministratorAccess", "PowerUserAccess")


def _policies(deployment: Deployment) -> Iterator[tuple[Resource, dict[str, Any]]]:
    """Every statement that gives an identity a right. Policies of keys and buckets speak of their own resource."""
    for resource in deployment.resources():
        inline = [entry["PolicyDocument"] for entry in resource.properties.get("Policies", [])]
        if resource.type in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
            inline.append(resource.properties["PolicyDocument"])
        for document in inline:
            for statement in document["Statement"]:
                yield resource, statement


@pytest.fixture(scope="module")
def statements(
    deployment: Deployment, open_deployment: Deployment, rented_deployment: Deployment
) -> list[tuple[Resource, dict[str, Any]]]:
    return [one for found in (deployment, open_deployment, rented_deployment) for one in _policies(found)]


def test_no_right_on_everything_without_a_listed_reason(
    statements: list[tuple[Resource, dict[str, Any]]],
) -> None:
    found = {
        (resource.stack, action)
        for resource, statement in statements
        if "*" in as_list(statement["Resource"])
        for action in as_list(statement["Action"])
    }
    kept = {(stack, action) for stack, actions in KEPT["any_resource"].items() for action in actions}
    assert found == kept, "an entry that matches nothing is to be removed"


def test_metrics_go_to_a_named_namespace_only(statements: list[tuple[Resource, dict[str, Any]]]) -> None:
    publishing = [one for _, one in statements if "cloudwatch:PutMetricData" in as_list(one["Action"])]
    assert len(publishing) >= 6
    for statement in publishing:
        assert as_list(statement["Action"]) == ["cloudwatch:PutMetricData"]
        assert statement["Condition"]["StringEquals"].keys() == {"cloudwatch:namespace"}


def test_actions_are_named_in_full(statements: list[tuple[Resource, dict[str, Any]]]) -> None:
    assert len(statements) > 24
    for resource, statement in statements:
        assert statement["Effect"] == "Allow"
        named = set(as_list(statement["Action"]))
        trusted = str(resource.properties.get("AssumeRolePolicyDocument", ""))
        if "codebuild" in trusted or "Project" in resource.logical_id:
            named -= GRANTED_BY_CDK
        assert not [action for action in named if "*" in action], resource.logical_id


def test_managed_policies_open_no_whole_service_and_nodes_have_what_eks_asks_for(
    deployment: Deployment, open_deployment: Deployment, rented_deployment: Deployment
) -> None:
    arns = [
        resolved(arn)
        for found in (deployment, open_deployment, rented_deployment)
        for resource in found.resources()
        for arn in resource.properties.get("ManagedPolicyArns", [])
    ]
    assert len(arns) > 6
    assert not [arn for arn in arns if any(word in arn for word in FORBIDDEN_POLICIES)]
    for stack in ("cluster", "nodes"):
        (role,) = [
            role
            for role in deployment.resources("AWS::IAM::Role", stack)
            if "ec2" in str(role.properties["AssumeRolePolicyDocument"]) and "Nodes" in role.logical_id
        ]
        assert [resolved(arn).rpartition("/")[2] for arn in role.properties["ManagedPolicyArns"]] == [
            "AmazonEKSWorkerNodePolicy",
            "AmazonEC2ContainerRegistryPullOnly",
        ]


def test_no_network_but_those_named_reaches_in(deployment: Deployment, rented_deployment: Deployment) -> None:
    for found in (deployment, rented_deployment):
        groups = found.resources("AWS::EC2::SecurityGroup")
        assert groups
        assert not [group for group in groups if group.properties.get("SecurityGroupIngress")]
        rules = found.resources("AWS::EC2::SecurityGroupIngress")
        assert rules
        assert all("CidrIp" not in rule.properties for rule in rules)


def test_every_finding_is_acknowledged_once_with_a_reason_and_every_acknowledgement_matches(
    rule_findings: list[Finding],
) -> None:
    assert len(rule_findings) > 40
    covering = {
        finding: [entry for entry in ACKNOWLEDGED if entry.covers(finding)] for finding in rule_findings
    }
    assert [finding for finding, entries in covering.items() if len(entries) != 1] == []
    used = {entry for entries in covering.values() for entry in entries}
    assert [entry for entry in ACKNOWLEDGED if entry not in used or len(entry.reason) <= 10] == []


@pytest.mark.slow
def test_cfn_lint_finds_nothing_for_the_region_and_each_warning_that_is_left_occurs(
    templates: list[Path],
) -> None:
    assert len(templates) >= 12
    assert {one["Rule"]["Id"] for one in lint(templates, region="us-east-2")} == set(LEFT_TO_CDK)


@pytest.mark.slow
def test_cfn_lint_lacks_trn2_in_the_other_region_and_finds_nothing_else(assembly: Path) -> None:
    """Its table of instance types by region is older than the instances there; once it is not, this fails."""
    templates = sorted(
        (assembly / "assembly-small").glob("small[cn]*.template.json")
    )  # cluster, network, nodes
    found = [one for one in lint(templates, region="ap-southeast-4") if one["Rule"]["Id"] not in LEFT_TO_CDK]
    assert [one["Rule"]["Id"] for one in found] == ["E3628"]
    assert found[0]["Message"].startswith("'trn2.3xlarge' is not one of")
