from __future__ import annotations

import re
from typing import Any

import pytest

from tests.infra.templates import Deployment, Deployments, as_list, resolved


def _statements(deployment: Deployment, account: str) -> list[dict[str, Any]]:
    pods = deployment.only("AWS::EKS::PodIdentityAssociation", "identity", ServiceAccount=account)
    return deployment.rights("identity")[pods.properties["RoleArn"]["Fn::GetAtt"][0]]


def _rights(deployment: Deployment, account: str) -> set[tuple[str, str]]:
    """Action and resource; of an imported ARN only what tells it apart."""
    return {
        (
            action,
            re.sub(r".*Store(Checkpoints|Artifacts|Results|Key).*>", lambda one: one[1].lower(), resource),
        )
        for statement in _statements(deployment, account)
        for action in as_list(statement["Action"])
        for resource in as_list(resolved(statement["Resource"]))
    }


RIGHTS = {
    "serving": "checkpoints: ListBucket, GetObject; artifacts: ListBucket, GetObject; key: Decrypt",
    "fetch": "checkpoints: ListBucket, GetObject, PutObject, AbortMultipartUpload; key: GenerateDataKey, Decrypt",
    "compile": "checkpoints: ListBucket, GetObject; artifacts: ListBucket, GetObject, PutObject, AbortMultipartUpload; "
    "key: GenerateDataKey, Decrypt",
    "benchmark": "*: PutMetricData; results: ListBucket; results/plans: GetObject; "
    "results/runs: GetObject, PutObject, AbortMultipartUpload; key: GenerateDataKey, Decrypt",
}
"""Serving pods write nothing, fetching pods delete nothing, the benchmark reads plans and stores runs."""
FOREIGN = {
    ("s3:ListBucket", "arn:aws:s3:::my-models"),
    ("s3:GetObject", "arn:aws:s3:::my-models/runs/mine/*"),
}


@pytest.mark.parametrize("account", RIGHTS)
def test_pods_have_these_rights_only_and_their_fetch_alone_reads_weights_of_another_bucket(
    made: Deployments, account: str
) -> None:
    rights = _rights(made.reference, account)
    assert {(action.partition(":")[2], resource.removesuffix("/*")) for action, resource in rights} == {
        (action, where)
        for entry in RIGHTS[account].split("; ")
        for where, _, actions in [entry.partition(": ")]
        for action in actions.split(", ")
    }
    associations = made.reference.properties("AWS::EKS::PodIdentityAssociation")
    assert {(one["Namespace"], one["ServiceAccount"]) for one in associations} == {
        ("qwen3-32b", one) for one in RIGHTS
    }
    assert len({str(one["RoleArn"]) for one in associations}) == len(RIGHTS), "each has a role of its own"
    more = {right for right in _rights(made.rented, account) - rights if "my-models" in right[1]}
    assert more == (FOREIGN if account == "fetch" else set())


def test_what_is_listed_and_published_is_narrowed_to_folders_and_the_namespace_of_the_experiment(
    made: Deployments,
) -> None:
    (listing,) = [one for one in _statements(made.rented, "fetch") if "Condition" in one]
    assert listing["Condition"] == {"StringLike": {"s3:prefix": ["runs/mine/*"]}}
    statements = _statements(made.reference, "benchmark")
    (listing,) = [one for one in statements if one["Action"] == "s3:ListBucket"]
    assert listing["Condition"] == {"StringLike": {"s3:prefix": ["plans/*", "runs/*"]}}
    (publish,) = [one for one in statements if one.get("Sid") == "PublishMetrics"]
    assert publish["Condition"] == {"StringEquals": {"cloudwatch:namespace": "SpeculativeDecoding/qwen3-32b"}}
