from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any

import pytest

from cdk8s_charts.render import render
from experiment import Experiment
from tests.infra.templates import Deployment, as_list, resolved


def _statements(deployment: Deployment, service_account: str) -> list[dict[str, Any]]:
    (role,) = [
        association.properties["RoleArn"]["Fn::GetAtt"][0]
        for association in deployment.resources("AWS::EKS::PodIdentityAssociation")
        if association.properties["ServiceAccount"] == service_account
    ]
    return [
        statement
        for policy in deployment.resources("AWS::IAM::Policy", stack="identity")
        if {"Ref": role} in policy.properties["Roles"]
        for statement in policy.properties["PolicyDocument"]["Statement"]
    ]


def _rights(deployment: Deployment, service_account: str) -> set[tuple[str, str]]:
    """Action and resource; of an imported ARN only what tells it apart."""
    return {
        (action, _short(resource))
        for statement in _statements(deployment, service_account)
        for action in as_list(statement["Action"])
        for resource in as_list(resolved(statement["Resource"]))
    }


def _short(arn: str) -> str:
    for purpose in ("Checkpoints", "Artifacts", "Results", "Key"):
        if f"Store{purpose}" in arn:
            return purpose.lower() + arn.partition(">")[2]
    return arn


RIGHTS = {
    "serving": "checkpoints: ListBucket, GetObject; artifacts: ListBucket, GetObject; key: Decrypt",
    "fetch": "checkpoints: ListBucket, GetObject, PutObject, AbortMultipartUpload; key: GenerateDataKey, Decrypt",
    "compile": "checkpoints: ListBucket, GetObject; artifacts: ListBucket, GetObject, PutObject, AbortMultipartUpload; "
    "key: GenerateDataKey, Decrypt",
    "benchmark": "*: PutMetricData; results: ListBucket; results/plans: GetObject; "
    "results/runs: GetObject, PutObject, AbortMultipartUpload; key: GenerateDataKey, Decrypt",
}
"""Serving pods write nothing, fetching pods delete nothing, the benchmark reads plans and stores runs."""


@pytest.mark.parametrize("account", RIGHTS)
def test_pods_of_a_service_account_have_these_rights_and_nothing_more(
    deployment: Deployment, account: str
) -> None:
    written = {
        (action.partition(":")[2], resource.removesuffix("/*"))
        for action, resource in _rights(deployment, account)
    }
    assert written == {
        (action, where)
        for entry in RIGHTS[account].split("; ")
        for where, _, actions in [entry.partition(": ")]
        for action in actions.split(", ")
    }


def test_weights_of_another_bucket_are_read_by_their_fetch_from_their_folder_only(
    deployment: Deployment, rented_deployment: Deployment
) -> None:
    for account in RIGHTS:
        more = _rights(rented_deployment, account) - _rights(deployment, account)
        assert {right for right in more if "my-models" in right[1]} == (
            {
                ("s3:ListBucket", "arn:aws:s3:::my-models"),
                ("s3:GetObject", "arn:aws:s3:::my-models/runs/mine/*"),
            }
            if account == "fetch"
            else set()
        )
    (listing,) = [one for one in _statements(rented_deployment, "fetch") if "Condition" in one]
    assert listing["Condition"] == {"StringLike": {"s3:prefix": ["runs/mine/*"]}}


def test_the_benchmark_lists_plans_and_runs_and_publishes_in_the_namespace_of_its_experiment_only(
    deployment: Deployment,
) -> None:
    statements = _statements(deployment, "benchmark")
    (listing,) = [one for one in statements if one["Action"] == "s3:ListBucket"]
    assert listing["Condition"] == {"StringLike": {"s3:prefix": ["plans/*", "runs/*"]}}
    (publish,) = [one for one in statements if one.get("Sid") == "PublishMetrics"]
    assert publish["Condition"] == {"StringEquals": {"cloudwatch:namespace": "SpeculativeDecoding/qwen3-32b"}}


def test_pods_may_use_the_addresses_that_their_manifests_name(
    deployment: Deployment, experiment: Experiment
) -> None:
    named = {
        (str(pod["serviceAccountName"]), address)
        for file in render(experiment)
        for item in file.objects
        for pod in _pods(item)
        for address in re.findall(r"s3://[^\s\"']+", json.dumps(pod))
    }
    assert {account for account, _ in named} >= {"benchmark"}
    for account, address in named:
        bucket, _, key = address.removeprefix("s3://").partition("/")
        purpose = bucket.removeprefix(f"{experiment.name}-").partition("-")[0]
        allowed = [resource for action, resource in _rights(deployment, account) if action == "s3:GetObject"]
        assert any(fnmatch(f"{purpose}/{key}", resource) for resource in allowed), (account, address)


def _pods(value: Any) -> Iterator[dict[str, Any]]:
    """Every pod specification inside an object."""
    if isinstance(value, dict):
        if "containers" in value and "serviceAccountName" in value:
            yield value
        for inner in value.values():
            yield from _pods(inner)


def test_every_rendered_service_account_has_a_role_of_its_own(
    deployment: Deployment, experiment: Experiment
) -> None:
    rendered = {
        (item["metadata"]["namespace"], item["metadata"]["name"])
        for file in render(experiment)
        for item in file.objects
        if item["kind"] == "ServiceAccount"
    }
    associations = deployment.resources("AWS::EKS::PodIdentityAssociation")
    accounts = {(a.properties["Namespace"], a.properties["ServiceAccount"]) for a in associations}
    assert rendered <= accounts
    assert accounts == {(experiment.name, name) for name in ("serving", "fetch", "compile", "benchmark")}
    assert len({str(a.properties["RoleArn"]) for a in associations}) == len(associations)
