from __future__ import annotations

import pytest

from tests.infra.templates import ACCOUNT, Deployments
from trnspec.experiment import Experiment
from trnspec.experiment.naming import STALE_TAG, bucket


@pytest.mark.parametrize("purpose", ["checkpoints", "artifacts", "results"])
def test_a_bucket_is_encrypted_and_logged_and_keeps_what_is_in_use_at_a_falling_price(
    made: Deployments, experiment: Experiment, purpose: str
) -> None:
    name = bucket(experiment, purpose, ACCOUNT)
    found = made.reference.only("AWS::S3::Bucket", "storage", BucketName=name).properties
    key = made.reference.only("AWS::KMS::Key", "storage")
    (encryption,) = found["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    own = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": {"Fn::GetAtt": [key.logical_id, "Arn"]}}
    assert encryption == {"ServerSideEncryptionByDefault": own, "BucketKeyEnabled": True}
    assert found["VersioningConfiguration"] == {"Status": "Enabled"}
    assert found["LoggingConfiguration"]["LogFilePrefix"] == f"{purpose}/"
    rules = found["LifecycleConfiguration"]["Rules"]
    expiring = [rule for rule in rules if "ExpirationInDays" in rule]
    marked = [{"Key": STALE_TAG[0], "Value": STALE_TAG[1]}]
    assert [(rule["TagFilters"], rule["ExpirationInDays"], rule["Status"]) for rule in expiring] == (
        [(marked, 30, "Enabled")] if purpose == "artifacts" else []
    )
    assert 30 in [rule.get("NoncurrentVersionExpiration", {}).get("NoncurrentDays") for rule in rules]
    cooler = {"StorageClass": "INTELLIGENT_TIERING", "TransitionInDays": 30}
    transitions = [one for rule in rules for one in rule.get("Transitions", [])]
    assert transitions == ([] if purpose == "results" else [cooler])


def test_every_bucket_is_closed_and_drops_unfinished_uploads(
    made: Deployments,
) -> None:
    policies = made.reference.properties("AWS::S3::BucketPolicy")
    statements = {one["Bucket"]["Ref"]: one["PolicyDocument"]["Statement"] for one in policies}
    for found in made.reference.resources("AWS::S3::Bucket"):
        denied = [one["Condition"] for one in statements[found.logical_id] if one["Effect"] == "Deny"]
        assert {"Bool": {"aws:SecureTransport": "false"}} in denied
        assert {"NumericLessThan": {"s3:TlsVersion": 1.2}} in denied
        assert {*found.properties["PublicAccessBlockConfiguration"].values()} == {True}
        rules = found.properties["LifecycleConfiguration"]["Rules"]
        days = [rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation") for rule in rules]
        assert 7 in days
