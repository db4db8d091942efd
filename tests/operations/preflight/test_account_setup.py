"""What preflight says of the bootstrap and of a key, by IAM and KMS as moto has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from moto.kms.models import kms_backends

from infra.deployment_file import DeploymentSettings
from tests.operations import ready
from tests.operations.clients import shared_client
from tests.operations.ready import ANYTHING, BOUNDARY
from trnspec.core.findings import State
from trnspec.experiment import Experiment
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.preflight import account_setup

ACCOUNT = "123456789012"


def key(**settings: str) -> DeploymentSettings:
    made = shared_client("kms").create_key(**settings)["KeyMetadata"]
    return DeploymentSettings(kms_key=made["Arn"])


WITHIN = DeploymentSettings(permissions_boundary=BOUNDARY)


@pytest.mark.parametrize(
    ("statements", "bounded", "settings", "name", "state", "says"),
    [
        ([], False, DeploymentSettings(), "qwen3-32b", State.FINE, "of qwen3-32b only"),
        ([], True, WITHIN, "qwen3-32b", State.FINE, "of qwen3-32b only"),
        (
            [],
            True,
            DeploymentSettings(),
            "qwen3-32b",
            State.FINDING,
            "boundary only, and deployment.yaml names",
        ),
        ([], True, WITHIN, "mine", State.FINDING, "may not make roles whose names begin with mine-"),
        (
            ANYTHING,
            False,
            DeploymentSettings(),
            "mine",
            State.WARNING,
            "whoever deploys is an administrator",
        ),
    ],
)
def test_what_cloudformation_may_make_is_asked_of_iam_before_a_deployment(
    aws: Aws,
    experiment: Experiment,
    statements: list[dict[str, Any]],
    bounded: bool,
    settings: DeploymentSettings,
    name: str,
    state: State,
    says: str,
) -> None:
    """With the committed policies, as `cdk bootstrap` attaches them, or the one that it takes by default."""
    ready.bootstrap(*statements, boundary=bounded)
    found = account_setup.bootstrap(replace(experiment, name=name), aws, settings)
    assert (found.state, says in found.why) == (state, True), found
    if name == "mine" and state is State.FINDING:
        assert "add role/mine-* and instance-profile/mine-* to Roles" in found.remedy


def test_an_imported_key_must_exist_and_be_usable(aws: Aws) -> None:
    assert account_setup.imported_key(aws, DeploymentSettings()).state is State.FINE
    assert account_setup.imported_key(aws, key()).state is State.FINE
    gone = f"arn:aws:kms:us-east-2:{ACCOUNT}:key/0a1b2c3d-0000-4000-8000-000000000000"
    assert account_setup.imported_key(aws, DeploymentSettings(kms_key=gone)).why.endswith("no such key")
    disabled = key()
    kms_backends[ACCOUNT]["us-east-2"].disable_key(disabled.kms_key.rpartition("/")[2])
    assert "is Disabled" in account_setup.imported_key(aws, disabled).why
    signing = key(KeySpec="HMAC_256", KeyUsage="GENERATE_VERIFY_MAC")
    assert "of kind HMAC_256; a symmetric key" in account_setup.imported_key(aws, signing).why
