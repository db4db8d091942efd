"""The account itself: a resource is created, recorded, not modelled or skipped, and never just absent."""

from __future__ import annotations

import pytest

from experiment.finding import Refusal
from lab.aws.accounting import account_for
from lab.aws.moto_models import Outcome

TEMPLATE = {
    "Resources": {
        "Bucket": {"Type": "AWS::S3::Bucket"},
        "Policy": {"Type": "AWS::S3::BucketPolicy"},
        "Metadata": {"Type": "AWS::CDK::Metadata", "Condition": "Known"},
    }
}


def test_every_resource_gets_an_outcome() -> None:
    account = account_for(
        "storage",
        TEMPLATE,
        listed={"Bucket": "a-bucket", "Policy": "recorded-Policy"},
        false_conditions={"Known"},
    )
    assert {one.logical_id: (one.outcome, one.physical_id) for one in account} == {
        "Bucket": (Outcome.CREATED, "a-bucket"),
        "Policy": (Outcome.RECORDED, ""),
        "Metadata": (Outcome.SKIPPED, ""),
    }


def test_a_missing_resource_fails_whether_modelled_or_not() -> None:
    with pytest.raises(Refusal, match=r"stack storage: .*Bucket \(AWS::S3::Bucket\), Policy") as caught:
        account_for("storage", TEMPLATE, listed={"Metadata": ""}, false_conditions=())
    assert caught.value.exit_code == 1


def test_a_resource_that_nobody_asked_for_fails() -> None:
    listed = {"Bucket": "b", "Policy": "p", "Metadata": "m", "Ghost": "g"}
    with pytest.raises(Refusal, match="there without being asked for: Ghost"):
        account_for("storage", TEMPLATE, listed=listed, false_conditions=())


def test_a_resource_whose_condition_is_false_must_not_be_there() -> None:
    listed = {"Bucket": "b", "Policy": "p", "Metadata": "m"}
    with pytest.raises(Refusal, match="there without being asked for: Metadata"):
        account_for("storage", TEMPLATE, listed=listed, false_conditions={"Known"})
