"""What an account wants of everything that is made in it; the variant `within` has all of it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.infra.conftest import DESTINATION, KEY
from tests.infra.templates import Deployment


def test_the_named_key_is_used_where_keys_were_made(
    within_deployment: Deployment, deployment: Deployment
) -> None:
    assert len(deployment.resources("AWS::KMS::Key")) == 3
    assert within_deployment.resources("AWS::KMS::Key") == []
    buckets = within_deployment.resources("AWS::S3::Bucket")
    used = [str(bucket.properties["BucketEncryption"]).count(KEY) for bucket in buckets]
    assert sorted(used) == [0, 1, 1, 1]  # S3 writes access logs with its own key only
    (cluster,) = within_deployment.resources("AWS::EKS::Cluster")
    assert cluster.properties["EncryptionConfig"][0]["Provider"]["KeyArn"] == KEY
    assert within_deployment.only("AWS::SNS::Topic").properties["KmsMasterKeyId"] == KEY
    pods = [str(policy.properties) for policy in within_deployment.resources("AWS::IAM::Policy", "identity")]
    assert len(pods) == 4
    assert all(KEY in policy for policy in pods)


def test_every_log_group_is_encrypted_kept_and_sent_as_the_account_wants(
    within_deployment: Deployment, deployment: Deployment
) -> None:
    groups = within_deployment.resources("AWS::Logs::LogGroup")
    assert len(groups) > 5
    assert {(one.properties["KmsKeyId"], one.properties["RetentionInDays"]) for one in groups} == {(KEY, 365)}
    sent = within_deployment.resources("AWS::Logs::SubscriptionFilter")
    assert {one.properties["LogGroupName"]["Ref"] for one in sent} == {one.logical_id for one in groups}
    assert {(one.properties["DestinationArn"], one.properties["FilterPattern"]) for one in sent} == {
        (DESTINATION, "")
    }
    plain = deployment.resources("AWS::Logs::LogGroup")
    assert {(one.properties.get("KmsKeyId"), one.properties["RetentionInDays"]) for one in plain} == {
        (None, 90)
    }


def test_tags_are_on_every_stack_and_on_what_inherits_none(
    within_deployment: Deployment, assembly: Path
) -> None:
    manifest = json.loads((assembly / "assembly-within" / "manifest.json").read_text(encoding="utf-8"))
    stacks = [one for one in manifest["artifacts"].values() if one["type"] == "aws:cloudformation:stack"]
    wanted = {"experiment": "within", "cost-center": "4711"}
    assert stacks
    assert all(one["properties"]["tags"] == wanted for one in stacks)
    nodes = [
        one.properties["LaunchTemplateData"]["TagSpecifications"]
        for one in within_deployment.resources("AWS::EC2::LaunchTemplate")
        if "TagSpecifications" in one.properties["LaunchTemplateData"]
    ]
    assert len(nodes) == 2
    tag = {"Key": "cost-center", "Value": "4711"}
    assert all(tag in kind["Tags"] for kinds in nodes for kind in kinds)
    group = within_deployment.only("AWS::AutoScaling::AutoScalingGroup").properties
    assert {**tag, "PropagateAtLaunch": True} in group["Tags"]
