"""What an account wants of everything that is made in it; the variant `within` has all of it."""

from __future__ import annotations

import re

from tests.infra.conftest import DESTINATION, KEY
from tests.infra.templates import ROOT, Deployments


def test_the_named_key_is_used_where_keys_were_made(made: Deployments) -> None:
    assert len(made.reference.resources("AWS::KMS::Key")) == 3
    assert made.within.resources("AWS::KMS::Key") == []
    buckets = made.within.properties("AWS::S3::Bucket")
    used = [str(bucket["BucketEncryption"]).count(KEY) for bucket in buckets]
    assert sorted(used) == [0, 1, 1, 1]  # S3 writes access logs with its own key only
    cluster = made.within.only("AWS::EKS::Cluster").properties
    assert cluster["EncryptionConfig"][0]["Provider"]["KeyArn"] == KEY
    assert made.within.only("AWS::SNS::Topic").properties["KmsMasterKeyId"] == KEY
    pods = made.within.rights("identity").values()
    assert [KEY in str(statements) for statements in pods] == [True] * 4


def test_no_resource_is_untyped_where_the_cdk_has_a_construct() -> None:
    """Of a low level where that is all that is needed, because a higher one takes more calls to CDK's process."""
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "infra").rglob("*.py"))
    made = re.findall(r"\b(CfnResource|CfnPlacementGroup|CfnInstanceProfile)\(", sources)
    assert made == []


def test_every_log_group_is_encrypted_kept_and_sent_as_the_account_wants(made: Deployments) -> None:
    groups = made.within.resources("AWS::Logs::LogGroup")
    assert len(groups) > 5
    assert {(one.properties["KmsKeyId"], one.properties["RetentionInDays"]) for one in groups} == {(KEY, 365)}
    sent = made.within.properties("AWS::Logs::SubscriptionFilter")
    assert {one["LogGroupName"]["Ref"] for one in sent} == {one.logical_id for one in groups}
    assert {(one["DestinationArn"], one["FilterPattern"]) for one in sent} == {(DESTINATION, "")}
    plain = made.reference.properties("AWS::Logs::LogGroup")
    assert {(one.get("KmsKeyId"), one["RetentionInDays"]) for one in plain} == {(None, 90)}


def test_tags_are_on_every_stack_and_on_what_inherits_none(made: Deployments) -> None:
    wanted = {"experiment": "within", "cost-center": "4711"}
    assert [one["properties"]["tags"] for one in made.within.artifacts.values()] == [wanted] * 7
    templates = [one["LaunchTemplateData"] for one in made.within.properties("AWS::EC2::LaunchTemplate")]
    nodes = [one["TagSpecifications"] for one in templates if "TagSpecifications" in one]
    assert len(nodes) == 2
    tag = {"Key": "cost-center", "Value": "4711"}
    assert all(tag in kind["Tags"] for kinds in nodes for kind in kinds)
    group = made.within.only("AWS::AutoScaling::AutoScalingGroup").properties
    assert {**tag, "PropagateAtLaunch": True} in group["Tags"]
