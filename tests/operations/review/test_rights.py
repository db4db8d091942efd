"""Rights taken apart into single grants."""

from __future__ import annotations

from typing import Any

import pytest

from trnspec.operations.review.rights import object_grants, template_grants

ASSUMED = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "x"}}
DENIED = {"Effect": "Deny", "NotAction": "a:*", "NotResource": "s", "Condition": {"Bool": {"k": "true"}}}
EACH = {"Effect": "Allow", "Action": ["a:B", "a:C"], "Resource": ["r", {"Fn::GetAtt": ["Q", "Arn"]}]}
SELECT = {"Fn::Select": [0, {"Fn::Split": ["/", {"Ref": "A"}]}]}
Case = tuple[str, dict[str, Any], set[str]]
OF_TEMPLATES: list[Case] = [
    (
        "IAM::Policy",
        {"Roles": [{"Ref": "R"}], "PolicyDocument": {"Statement": EACH}},
        {f"<R>: Allow {action} on {resource}" for action in ("a:B", "a:C") for resource in ("r", "<Q.Arn>")},
    ),
    (
        "IAM::Role",
        {
            "AssumeRolePolicyDocument": {"Statement": [ASSUMED]},
            "ManagedPolicyArns": ["arn:p"],
            "PermissionsBoundary": "arn:b",
            "Policies": [
                {"PolicyName": "p", "PolicyDocument": {"Statement": [{**ASSUMED, "Action": "a:B"}]}}
            ],
        },
        {
            'X: Allow a:B by {"Service": "x"}',
            'trust of X: Allow sts:AssumeRole by {"Service": "x"}',
            "X: managed policy arn:p",
            "X: permissions boundary arn:b",
        },
    ),
    (
        "S3::BucketPolicy",
        {"PolicyDocument": {"Statement": [DENIED]}},
        {'X: Deny everything but a:* on everything but s when {"Bool": {"k": "true"}}'},
    ),
    (  # a function that is not folded is shown as it stands
        "EKS::AccessEntry",
        {"PrincipalArn": SELECT},
        {'EKS::AccessEntry X: {"PrincipalArn": {"Fn::Select": [0, {"Fn::Split": ["/", "<A>"]}]}}'},
    ),
    (
        "EC2::SecurityGroup",
        {"SecurityGroupIngress": [{"CidrIp": "0.0.0.0/0"}]},
        {'X: SecurityGroupIngress {"CidrIp": "0.0.0.0/0"}'},
    ),
    (
        "EKS::Cluster",
        {"ResourcesVpcConfig": {"PublicAccessCidrs": ["203.0.113.7/32"]}},
        {'X: endpoint ["203.0.113.7/32"]'},
    ),
]


@pytest.mark.parametrize(
    ("type_", "properties", "grants"), OF_TEMPLATES, ids=[one[0] for one in OF_TEMPLATES]
)
def test_every_grant_of_a_resource_is_told_by_itself(
    type_: str, properties: dict[str, Any], grants: set[str]
) -> None:
    resource = {"Type": f"AWS::{type_}", "Properties": properties}
    found = template_grants({"s": {"Resources": {"X": resource}}})
    assert {grant.removeprefix("s: ") for grant in found} == grants


def granted(item: dict[str, Any]) -> set[str]:
    """Of one object in namespace n, without the account that every pod has."""
    whole = {**item, "metadata": {"name": "x", "namespace": "n", **item.get("metadata", {})}}
    found = object_grants({(item["kind"], "n", "x"): whole})
    return {grant.removeprefix(f"n: {item['kind']} x ") for grant in found} - {
        "run as service account default"
    }


def test_every_rule_in_the_cluster_is_a_right_of_its_own() -> None:
    bound = {"subjects": [{"name": "s"}], "roleRef": {"name": "r"}}
    assert granted({"kind": "RoleBinding", **bound}) == {'{"name": "s"} of {"name": "r"}'}
    assert granted({"kind": "Role", "rules": [{"verbs": ["get"]}]}) == {'{"verbs": ["get"]}'}
    rules = [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}, {"ports": [{"port": 53}]}]
    assert granted({"kind": "ServiceAccount"}) == {"gives its token to its pods"}
    assert granted({"kind": "ServiceAccount", "automountServiceAccountToken": False}) == set()
    spec = {"podSelector": {}, "policyTypes": ["Egress"], "egress": rules}
    assert granted({"kind": "NetworkPolicy", "spec": spec}) == {
        "governs Egress of pods {}",
        'allows egress: {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}',
        'allows egress: {"ports": [{"port": 53}]}',
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
    return {"automountServiceAccountToken": False, "containers": containers, **spec}


@pytest.mark.parametrize(
    ("change", "rights"),
    [
        ({}, set()),
        ({"privileged": True}, {"privileged true"}),
        ({"allowPrivilegeEscalation": None}, {"allowPrivilegeEscalation null"}),
        ({"capabilities": {}}, {"capabilities {}"}),
        ({"capabilities": {"drop": []}}, {'capabilities {"drop": []}'}),
        (
            {"capabilities": {"drop": ["ALL"], "add": ["X"]}},
            {'capabilities {"add": ["X"], "drop": ["ALL"]}'},
        ),
        ({"runAsNonRoot": False}, {"runAsNonRoot false"}),
        ({"readOnlyRootFilesystem": False}, {"readOnlyRootFilesystem false"}),
        ({"seccompProfile": {"type": "Unconfined"}}, {'seccompProfile {"type": "Unconfined"}'}),
    ],
)
def test_a_restriction_that_is_lost_is_a_right(change: dict[str, Any], rights: set[str]) -> None:
    spec = pod({**HARDENED, **change})
    assert granted({"kind": "Pod", "spec": spec}) == {
        f"have securityContext.{right} (container c)" for right in rights
    }


def test_what_a_pod_may_do_to_its_node_is_a_right_whatever_makes_the_pod() -> None:
    volumes = [{"name": "dev", "hostPath": {"path": "/dev"}}]
    spec = pod(HARDENED, hostNetwork=True, volumes=volumes, automountServiceAccountToken=True)
    job = {"template": {"spec": spec}}
    for kind, made in (("Pod", spec), ("Job", job), ("Deployment", job)):
        assert granted({"kind": kind, "spec": made}) == {
            "have hostNetwork",
            "mount /dev of their node",
            "hold a token of the API server",
        }


def test_what_jobs_may_be_is_a_right() -> None:
    data = {"fetch": "r/tools:1", "compile": "r/tools:1\nr/neuron:1"}
    assert granted({"kind": "ConfigMap", "metadata": {"name": "reviewed-jobs"}, "data": data}) == {
        "lets Jobs have r/tools:1 (fetch)",
        "lets Jobs have r/tools:1 (compile)",
        "lets Jobs have r/neuron:1 (compile)",
    }
    spec = {"variables": [{"expression": "a"}], "validations": [{"expression": "b"}]}
    policy = {"kind": "ValidatingAdmissionPolicy", "spec": spec}
    assert granted(policy) == {"compares by a", "compares by b"}
