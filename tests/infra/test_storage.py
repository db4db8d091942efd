from __future__ import annotations

import pytest

from experiment import Experiment
from experiment.naming import bucket
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
    assert found.body["DeletionPolicy"] == found.body["UpdateReplacePolicy"] == "Retain"


def test_every_bucket_refuses_the_public_and_foreign_owners(deployment: Deployment) -> None:
    buckets = deployment.resources("AWS::S3::Bucket")
    assert len(buckets) == 4
    for found in buckets:
        block = found.properties["PublicAccessBlockConfiguration"]
        assert len(block) == 4
        assert all(block.values())
        assert found.properties["OwnershipControls"] == {
            "Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]
        }


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


def test_only_old_versions_and_access_logs_expire(deployment: Deployment, experiment: Experiment) -> None:
    for purpose in PURPOSES:
        rules = _named(deployment, experiment, purpose).properties["LifecycleConfiguration"]["Rules"]
        assert not any("ExpirationInDays" in rule for rule in rules)


def test_the_key_rotates_and_outlives_the_stack(deployment: Deployment) -> None:
    key = deployment.only("AWS::KMS::Key", stack="storage")
    assert key.properties["EnableKeyRotation"] is True
    assert key.body["DeletionPolicy"] == "Retain"
