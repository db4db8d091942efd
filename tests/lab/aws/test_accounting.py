"""The account itself: a resource is created, recorded, not modelled or skipped, and never just absent."""

from __future__ import annotations

import pytest

from experiment.finding import Refusal
from lab.aws.accounting import account_for

TEMPLATE = {
    "Resources": {
        "Bucket": {"Type": "AWS::S3::Bucket"},
        "Policy": {"Type": "AWS::S3::BucketPolicy"},
        "Metadata": {"Type": "AWS::CDK::Metadata", "Condition": "Known"},
    }
}


@pytest.mark.parametrize(
    ("listed", "absent", "said"),
    [
        ("Metadata", set(), r"not explained: Bucket \(AWS::S3::Bucket\), Policy \(.*; there .* for: none"),
        ("Bucket Policy Metadata Ghost", set(), "not explained: none; there without being asked for: Ghost"),
        ("Bucket Policy Metadata", {"Known"}, "there without being asked for: Metadata"),
    ],
    ids=["missing", "never asked for", "its condition is false"],
)
def test_what_is_missing_or_not_asked_for_fails(listed: str, absent: set[str], said: str) -> None:
    with pytest.raises(Refusal, match=f"stack storage: .*{said}"):
        account_for("storage", TEMPLATE, listed=dict.fromkeys(listed.split(), "x"), false_conditions=absent)
