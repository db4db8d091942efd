from __future__ import annotations

import json
import re
from typing import Any

import pytest

from cdk8s_charts.render import render
from experiment import Experiment
from experiment.naming import ACCOUNT_PLACEHOLDER, STALE_TAG, bucket
from tests.infra.templates import ACCOUNT, Deployment, Resource, resolved

PURPOSES = ("checkpoints", "artifacts", "results")


def _named(deployment: Deployment, experiment: Experiment, purpose: str) -> Resource:
    (found,) = [
        resource
        for resource in deployment.resources("AWS::S3::Bucket")
        if resolved(resource.properties.get("BucketName")) == bucket(experiment, purpose, ACCOUNT)
    ]
    return found


def _policy(deployment: Deployment, bucket_id: str) -> list[dict[str, object]]:
    (found,) = [
        resource.properties["PolicyDocument"]["Statement"]
        for resource in deployment.resources("AWS::S3::BucketPolicy")
        if resource.properties["Bucket"] == {"Ref": bucket_id}
    ]
    return list(found)


@pytest.mark.parametrize("purpose", PURPOSES)
def test_bucket_is_encrypted_with_the_key_versioned_logged_and_kept(
    deployment: Deployment, experiment: Experiment, purpose: str
) -> None:
    found = _named(deployment, experiment, purpose)
    (rule,) = found.properties["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    key = deployment.only("AWS::KMS::Key", stack="storage")
    assert rule["ServerSideEncryptionByDefault"] == {
        "SSEAlgorithm": "aws:kms",
        "KMSMasterKeyID": {"Fn::GetAtt": [key.logical_id, "Arn"]},
    }
    assert rule["BucketKeyEnabled"] is True
    assert found.properties["VersioningConfiguration"] == {"Status": "Enabled"}
    assert found.properties["LoggingConfiguration"]["LogFilePrefix"] == f"{purpose}/"
    assert found.body["UpdateReplacePolicy"] == "Retain"
    assert found.body["DeletionPolicy"] == "RetainExceptOnCreate", (
        "a failed first deployment leaves no name taken"
    )


def test_every_bucket_refuses_plain_http_and_old_tls(deployment: Deployment) -> None:
    for found in deployment.resources("AWS::S3::Bucket"):
        denied = [s["Condition"] for s in _policy(deployment, found.logical_id) if s["Effect"] == "Deny"]
        assert {"Bool": {"aws:SecureTransport": "false"}} in denied
        assert {"NumericLessThan": {"s3:TlsVersion": 1.2}} in denied


def test_every_bucket_drops_unfinished_uploads_after_a_week(deployment: Deployment) -> None:
    for found in deployment.resources("AWS::S3::Bucket"):
        rules = found.properties["LifecycleConfiguration"]["Rules"]
        days = [rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation") for rule in rules]
        assert 7 in days


def _rules(deployment: Deployment, experiment: Experiment, purpose: str) -> list[dict[str, Any]]:
    found = _named(deployment, experiment, purpose)
    return list(found.properties["LifecycleConfiguration"]["Rules"])


def test_nothing_in_use_expires_by_its_age(deployment: Deployment, experiment: Experiment) -> None:
    for purpose in PURPOSES:
        for rule in _rules(deployment, experiment, purpose):
            assert "ExpirationInDays" not in rule or "TagFilters" in rule


def test_an_artifact_that_was_marked_stale_goes_after_a_month(
    deployment: Deployment, experiment: Experiment
) -> None:
    (stale,) = [r for r in _rules(deployment, experiment, "artifacts") if "ExpirationInDays" in r]
    assert stale["TagFilters"] == [{"Key": STALE_TAG[0], "Value": STALE_TAG[1]}]
    assert stale["ExpirationInDays"] == 30
    assert stale["Status"] == "Enabled"


def test_old_versions_go_after_a_month(deployment: Deployment, experiment: Experiment) -> None:
    for purpose in PURPOSES:
        days = [
            rule.get("NoncurrentVersionExpiration", {}).get("NoncurrentDays")
            for rule in _rules(deployment, experiment, purpose)
        ]
        assert 30 in days


def test_weights_and_artifacts_that_nobody_reads_get_cheaper(
    deployment: Deployment, experiment: Experiment
) -> None:
    for purpose in ("checkpoints", "artifacts"):
        transitions = [
            transition
            for rule in _rules(deployment, experiment, purpose)
            for transition in rule.get("Transitions", [])
        ]
        assert transitions == [{"StorageClass": "INTELLIGENT_TIERING", "TransitionInDays": 30}]


def test_names_are_those_that_the_manifests_mount_and_write_to(
    deployment: Deployment, experiment: Experiment
) -> None:
    made = {
        str(resolved(found.properties["BucketName"]))
        for found in deployment.resources("AWS::S3::Bucket")
        if "BucketName" in found.properties
    }
    text = json.dumps([list(file.objects) for file in render(experiment)])
    text = text.replace(ACCOUNT_PLACEHOLDER, ACCOUNT)
    pattern = rf"{experiment.name}-(?:{'|'.join(PURPOSES)})-{ACCOUNT}-[a-z0-9-]*[a-z0-9]"
    assert set(re.findall(pattern, text)) == made


def test_the_key_outlives_the_stack(deployment: Deployment) -> None:
    key = deployment.only("AWS::KMS::Key", stack="storage")
    assert key.body["DeletionPolicy"] == "RetainExceptOnCreate"
