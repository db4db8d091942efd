"""No right without a reason, over all stacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.infra.templates import Deployment, Resource, resolved

ANY_RESOURCE = {
    ("identity", "cloudwatch:PutMetricData"): "the action has no resource; the statement names one namespace",
}
"""Actions that may stand with `Resource: "*"`, each with its reason."""
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


def test_no_right_on_everything_without_a_listed_reason(deployment: Deployment) -> None:
    found = {
        (resource.stack, action)
        for resource, statement in _policies(deployment)
        if "*" in _list(statement["Resource"])
        for action in _list(statement["Action"])
    }
    assert found == set(ANY_RESOURCE), "an entry that matches nothing is to be removed"


def test_what_is_given_on_everything_stands_under_a_condition(deployment: Deployment) -> None:
    for resource, statement in _policies(deployment):
        if "*" in _list(statement["Resource"]):
            assert statement.get("Condition"), resource.logical_id


def test_actions_are_named_in_full(deployment: Deployment) -> None:
    statements = list(_policies(deployment))
    assert len(statements) > 8
    for resource, statement in statements:
        assert statement["Effect"] == "Allow"
        assert not [action for action in _list(statement["Action"]) if "*" in action], resource.logical_id


def test_no_managed_policy_opens_a_whole_service(deployment: Deployment) -> None:
    arns = [
        resolved(arn)
        for resource in deployment.resources()
        for arn in resource.properties.get("ManagedPolicyArns", [])
    ]
    assert len(arns) > 6
    assert not [arn for arn in arns if any(word in arn for word in FORBIDDEN_POLICIES)]


def test_nodes_have_the_three_policies_that_eks_asks_for(deployment: Deployment) -> None:
    for stack in ("cluster", "nodes"):
        (role,) = [
            role
            for role in deployment.resources("AWS::IAM::Role", stack)
            if "ec2" in str(role.properties["AssumeRolePolicyDocument"])
        ]
        assert [resolved(arn).rpartition("/")[2] for arn in role.properties["ManagedPolicyArns"]] == [
            "AmazonEKSWorkerNodePolicy",
            "AmazonEKS_CNI_Policy",
            "AmazonEC2ContainerRegistryPullOnly",
        ]


def test_no_network_but_those_named_reaches_in(deployment: Deployment) -> None:
    groups = deployment.resources("AWS::EC2::SecurityGroup")
    assert groups
    assert not [group for group in groups if group.properties.get("SecurityGroupIngress")]
