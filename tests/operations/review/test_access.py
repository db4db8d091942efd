"""Rights taken apart into single grants."""

from __future__ import annotations

from typing import Any

from operations.review.access import object_grants, template_grants
from operations.review.objects import key


def grants(type_: str, **properties: Any) -> set[str]:
    found = template_grants({"s": {"Resources": {"X": {"Type": type_, "Properties": properties}}}})
    return {grant.removeprefix("s: ") for grant in found}


def test_every_action_on_every_resource_is_a_grant_of_its_own() -> None:
    statement = {"Effect": "Allow", "Action": ["a:B", "a:C"], "Resource": ["r", {"Fn::GetAtt": ["Q", "Arn"]}]}
    assert grants("AWS::IAM::Policy", Roles=[{"Ref": "R"}], PolicyDocument={"Statement": statement}) == {
        "<R>: Allow a:B on r",
        "<R>: Allow a:B on <Q.Arn>",
        "<R>: Allow a:C on r",
        "<R>: Allow a:C on <Q.Arn>",
    }


def test_trust_managed_policies_and_boundary_of_a_role_are_grants() -> None:
    trust = {"Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "x"}}]}
    assert grants(
        "AWS::IAM::Role",
        AssumeRolePolicyDocument=trust,
        ManagedPolicyArns=["arn:p"],
        PermissionsBoundary="arn:b",
    ) == {
        'trust of X: Allow sts:AssumeRole by {"Service": "x"}',
        "X: managed policy arn:p",
        "X: permissions boundary arn:b",
    }


def test_not_action_and_condition_are_shown() -> None:
    statement = {"Effect": "Deny", "NotAction": "a:*", "Resource": "*", "Condition": {"Bool": {"k": "true"}}}
    assert grants("AWS::S3::BucketPolicy", PolicyDocument={"Statement": [statement]}) == {
        'X: Deny everything but a:* on * when {"Bool": {"k": "true"}}'
    }


def test_a_function_that_is_not_folded_is_shown_as_it_stands() -> None:
    select = {"Fn::Select": [0, {"Fn::Split": ["/", {"Ref": "A"}]}]}
    (grant,) = grants("AWS::EKS::AccessEntry", PrincipalArn=select)
    assert grant == 'EKS::AccessEntry X: {"PrincipalArn": {"Fn::Select": [0, {"Fn::Split": ["/", "<A>"]}]}}'


def test_ways_through_the_network_and_the_endpoint_are_grants() -> None:
    assert grants("AWS::EC2::SecurityGroup", SecurityGroupIngress=[{"CidrIp": "0.0.0.0/0"}]) == {
        'X: SecurityGroupIngress {"CidrIp": "0.0.0.0/0"}'
    }
    assert grants("AWS::EKS::Cluster", ResourcesVpcConfig={"PublicAccessCidrs": ["203.0.113.7/32"]}) == {
        'X: endpoint ["203.0.113.7/32"]'
    }


def test_rights_inside_the_cluster_and_on_the_node_are_grants() -> None:
    role = {"kind": "Role", "metadata": {"name": "r", "namespace": "n"}, "rules": [{"verbs": ["get"]}]}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n"},
        "spec": {"containers": [{"name": "c", "securityContext": {"privileged": True}}]},
    }
    assert object_grants({key(item): item for item in (role, pod)}) == {
        'n: Role r {"rules": [{"verbs": ["get"]}]}',
        "n: Pod p spec.containers[c].securityContext.privileged = true",
    }
