"""No right without a reason, over all stacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.infra.findings import KEPT
from tests.infra.templates import Deployment, Resource, resolved

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


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@pytest.fixture(scope="module")
def all_deployments(
    deployment: Deployment, open_deployment: Deployment, rented_deployment: Deployment
) -> tuple[Deployment, ...]:
    return deployment, open_deployment, rented_deployment


def test_no_right_on_everything_without_a_listed_reason(all_deployments: tuple[Deployment, ...]) -> None:
    found = {
        (resource.stack, action)
        for deployment in all_deployments
        for resource, statement in _policies(deployment)
        if "*" in _list(statement["Resource"])
        for action in _list(statement["Action"])
    }
    assert found == {(stack, action) for stack, kept in KEPT["any_resource"].items() for action in kept}, (
        "an entry that matches nothing is to be removed"
    )


def test_metrics_go_to_a_named_namespace_only(all_deployments: tuple[Deployment, ...]) -> None:
    publishing = [
        statement
        for deployment in all_deployments
        for _, statement in _policies(deployment)
        if "cloudwatch:PutMetricData" in _list(statement["Action"])
    ]
    assert len(publishing) >= 6
    for statement in publishing:
        assert _list(statement["Action"]) == ["cloudwatch:PutMetricData"]
        assert statement["Condition"]["StringEquals"].keys() == {"cloudwatch:namespace"}


def test_actions_are_named_in_full(all_deployments: tuple[Deployment, ...]) -> None:
    statements = [entry for deployment in all_deployments for entry in _policies(deployment)]
    assert len(statements) > 24
    for resource, statement in statements:
        assert statement["Effect"] == "Allow"
        named = set(_list(statement["Action"]))
        if (
            "codebuild" in str(resource.properties.get("AssumeRolePolicyDocument", ""))
            or "Project" in resource.logical_id
        ):
            named -= GRANTED_BY_CDK
        assert not [action for action in named if "*" in action], resource.logical_id


def test_no_managed_policy_opens_a_whole_service(all_deployments: tuple[Deployment, ...]) -> None:
    arns = [
        resolved(arn)
        for deployment in all_deployments
        for resource in deployment.resources()
        for arn in resource.properties.get("ManagedPolicyArns", [])
    ]
    assert len(arns) > 6
    assert not [arn for arn in arns if any(word in arn for word in FORBIDDEN_POLICIES)]


def test_nodes_have_the_policies_that_eks_asks_for_and_not_the_network_plugins(
    deployment: Deployment,
) -> None:
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
