"""What preflight says of the KMS key of deployment.yaml, as moto has it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from moto.kms.models import kms_backends

from core.findings import State
from infra.deployment_file import Lasting
from operations.cloud.aws import Aws
from operations.preflight.account import imported_key
from tests.conftest import ROOT
from tests.operations.clients import shared_client

ACCOUNT = "123456789012"


def documented() -> list[dict[str, Any]]:
    """The statements of the guide, for moto's account."""
    guide = (ROOT / "docs" / "what-you-have.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```json\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    return list(json.loads(text.replace("111122223333", ACCOUNT)))


def made(*statements: dict[str, Any], **more: str) -> Lasting:
    policy = json.dumps({"Version": "2012-10-17", "Statement": list(statements)})
    key = shared_client("kms").create_key(Policy=policy, **more)["KeyMetadata"]
    return Lasting(kms_key=key["Arn"])


def test_no_key_or_one_with_the_statements_of_the_guide_is_fine(aws: Aws) -> None:
    assert imported_key(aws, Lasting()).state is State.FINE
    assert imported_key(aws, made(*documented())).state is State.FINE


@pytest.mark.parametrize(
    ("left_out", "says"),
    [
        (0, f"arn:aws:iam::{ACCOUNT}:root kms:CreateGrant"),
        (1, "logs.us-east-2.amazonaws.com kms:Encrypt"),
        (2, "cloudwatch.amazonaws.com kms:Decrypt, cloudwatch.amazonaws.com kms:GenerateDataKey"),
    ],
)
def test_each_of_them_is_needed(left_out: int, says: str, aws: Aws) -> None:
    statements = documented()
    assert len(statements) == 3
    del statements[left_out]
    found = imported_key(aws, made(*statements))
    assert (found.state, says in found.why) == (State.FINDING, True), found
    assert "docs/what-you-have.md" in found.remedy


def test_a_key_that_is_gone_disabled_or_of_another_kind_is_named(aws: Aws) -> None:
    gone = f"arn:aws:kms:us-east-2:{ACCOUNT}:key/0a1b2c3d-0000-4000-8000-000000000000"
    assert imported_key(aws, Lasting(kms_key=gone)).why.endswith("no such key")
    disabled = made(*documented())
    kms_backends[ACCOUNT]["us-east-2"].disable_key(disabled.kms_key.rpartition("/")[2])
    assert "is Disabled" in imported_key(aws, disabled).why
    signing = made(*documented(), KeySpec="HMAC_256", KeyUsage="GENERATE_VERIFY_MAC")
    assert "of kind HMAC_256; a symmetric key" in imported_key(aws, signing).why
