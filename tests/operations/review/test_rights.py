"""Rights taken apart into single grants."""

from __future__ import annotations

from typing import Any

import pytest

from operations.review.objects import key
from operations.review.rights import object_grants, template_grants


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
    statement = {
        "Effect": "Deny",
        "NotAction": "a:*",
        "NotResource": "s",
        "Condition": {"Bool": {"k": "true"}},
    }
    assert grants("AWS::S3::BucketPolicy", PolicyDocument={"Statement": [statement]}) == {
        'X: Deny everything but a:* on everything but s when {"Bool": {"k": "true"}}'
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


def granted(item: dict[str, Any]) -> set[str]:
    """Of one object in namespace n, without the account that every pod has."""
    item["metadata"]["namespace"] = "n"
    subject = f"n: {item['kind']} {item['metadata']['name']} "
    found = {grant.removeprefix(subject) for grant in object_grants({key(item): item})}
    return found - {"run as service account default"}


def test_every_rule_in_the_cluster_is_a_right_of_its_own() -> None:
    role = {"kind": "Role", "metadata": {"name": "r"}, "rules": [{"verbs": ["get"]}]}
    assert granted(role) == {'{"verbs": ["get"]}'}
    rules = [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}, {"ports": [{"port": 53}]}]
    spec = {"podSelector": {}, "policyTypes": ["Egress"], "egress": rules}
    assert granted({"kind": "NetworkPolicy", "metadata": {"name": "w"}, "spec": spec}) == {
        "governs Egress of pods {}",
        'lets egress through: {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}',
        'lets egress through: {"ports": [{"port": 53}]}',
    }


HARDENED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod(security: dict[str, Any], **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "securityContext": security}]
    hardened = {"automountServiceAccountToken": False, "containers": containers}
    return {"kind": "Pod", "metadata": {"name": "p"}, "spec": {**hardened, **spec}}


@pytest.mark.parametrize(
    ("change", "rights"),
    [
        ({}, set()),
        ({"privileged": True}, {"are privileged"}),
        ({"allowPrivilegeEscalation": None}, {"may gain privileges"}),
        ({"capabilities": {}}, {"keep the container runtime's capabilities"}),
        ({"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}, {"have capability SYS_ADMIN"}),
        ({"runAsNonRoot": False}, {"may run as root"}),
        ({"readOnlyRootFilesystem": False}, {"may write their root file system"}),
        ({"seccompProfile": {"type": "Unconfined"}}, {"have no seccomp profile"}),
    ],
)
def test_a_restriction_that_is_lost_is_a_right(change: dict[str, Any], rights: set[str]) -> None:
    assert granted(pod({**HARDENED, **change})) == {f"{right} (container c)" for right in rights}


def test_what_a_pod_may_do_to_its_node_is_a_right() -> None:
    volumes = [{"name": "dev", "hostPath": {"path": "/dev"}}]
    item = pod(HARDENED, hostNetwork=True, volumes=volumes, automountServiceAccountToken=True)
    told = {
        "stand in the network of their node",
        "mount /dev of their node",
        "hold a token of the API server",
    }
    assert granted(item) == told
    body = {"metadata": {"name": "p"}, "kind": "Job", "spec": {"template": {"spec": item["spec"]}}}
    assert granted(body) == told
    assert granted({**body, "kind": "CronJob", "spec": {"jobTemplate": {"spec": body["spec"]}}}) == told
