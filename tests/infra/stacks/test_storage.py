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


def _rules(deployment: Deployment, experiment: Experiment, purpose: str) -> list[dict[str, Any]]:
    found = _named(deployment, experiment, purpose)
    return list(found.properties["LifecycleConfiguration"]["Rules"])


@pytest.mark.parametrize("purpose", PURPOSES)
def test_bucket_is_encrypted_with_the_key_and_logged(
    deployment: Deployment, experiment: Experiment, purpose: str
) -> None:
    found = _named(deployment, experiment, purpose)
    (rule,) = found.properties["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    key = deployment.only("AWS::KMS::Key", stack="storage")
    assert rule["ServerSideEncryptionByDefault"] == {
        "SSEAlgorithm": "aws:kms",
        "KMSMasterKeyID": {"Fn::GetAtt": [key.logical_id, "Arn"]},
    }
    assert found.properties["LoggingConfiguration"]["LogFilePrefix"] == f"{purpose}/"


def test_every_bucket_refuses_plain_http_and_old_tls_and_drops_unfinished_uploads(
    deployment: Deployment,
) -> None:
    for found in deployment.resources("AWS::S3::Bucket"):
        (policy,) = [
            resource.properties["PolicyDocument"]["Statement"]
            for resource in deployment.resources("AWS::S3::BucketPolicy")
            if resource.properties["Bucket"] == {"Ref": found.logical_id}
        ]
        denied = [one["Condition"] for one in policy if one["Effect"] == "Deny"]
        assert {"Bool": {"aws:SecureTransport": "false"}} in denied
        assert {"NumericLessThan": {"s3:TlsVersion": 1.2}} in denied
        rules = found.properties["LifecycleConfiguration"]["Rules"]
        days = [rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation") for rule in rules]
        assert 7 in days


@pytest.mark.parametrize("purpose", PURPOSES)
def test_nothing_in_use_expires_by_its_age_and_what_nobody_reads_gets_cheaper(
    deployment: Deployment, experiment: Experiment, purpose: str
) -> None:
    rules = _rules(deployment, experiment, purpose)
    expiring = [rule for rule in rules if "ExpirationInDays" in rule]
    marked = [{"Key": STALE_TAG[0], "Value": STALE_TAG[1]}]
    assert [(rule["TagFilters"], rule["ExpirationInDays"], rule["Status"]) for rule in expiring] == (
        [(marked, 30, "Enabled")] if purpose == "artifacts" else []
    )
    assert 30 in [rule.get("NoncurrentVersionExpiration", {}).get("NoncurrentDays") for rule in rules]
    assert [one for rule in rules for one in rule.get("Transitions", [])] == (
        [] if purpose == "results" else [{"StorageClass": "INTELLIGENT_TIERING", "TransitionInDays": 30}]
    )


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
