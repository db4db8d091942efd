"""Names that an account has once for all its regions carry the region."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiment import Experiment
from experiment.checks.names import MAX_EXPERIMENT_NAME
from experiment.naming import dashboard_name, off_role_name, service_dashboard_name
from infra.pipeline.pipeline_file import delivery_role_name, read_pipeline
from tests.infra.templates import REGION, ROOT, resolved

ACCOUNT_WIDE = {
    "AWS::CloudWatch::Dashboard": "DashboardName",
    "AWS::IAM::Group": "GroupName",
    "AWS::IAM::InstanceProfile": "InstanceProfileName",
    "AWS::IAM::ManagedPolicy": "ManagedPolicyName",
    "AWS::IAM::Role": "RoleName",
    "AWS::IAM::User": "UserName",
    "AWS::S3::Bucket": "BucketName",
}
"""Types whose ARN has no region (https://docs.aws.amazon.com/service-authorization/latest/reference/reference.html), and
the property with which a template would choose the name."""
LONGEST_ROLE = 64
"""https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html"""
LONGEST_DASHBOARD = 255


@pytest.mark.parametrize("which", ["deployment", "open_deployment", "rented_deployment"])
def test_every_chosen_name_that_is_account_wide_carries_the_region(
    request: pytest.FixtureRequest, which: str
) -> None:
    found = [
        str(resolved(one.properties[ACCOUNT_WIDE[one.type]]))
        for one in request.getfixturevalue(which).resources()
        if one.type in ACCOUNT_WIDE and ACCOUNT_WIDE[one.type] in one.properties
    ]
    assert len(found) >= 5
    assert [name for name in found if REGION not in name] == []


def _there(experiment: Experiment, *, name: str, region: str) -> Experiment:
    return replace(experiment, name=name, cluster=experiment.cluster.model_copy(update={"region": region}))


@pytest.mark.parametrize("region", ["us-east-2", "ap-southeast-2", "ap-northeast-3"])
def test_the_longest_experiment_still_has_names(experiment: Experiment, region: str) -> None:
    longest = _there(experiment, name="x" * MAX_EXPERIMENT_NAME, region=region)
    pipeline = replace(read_pipeline(ROOT / "pipeline.yaml"), name="p" * 31, region=region)
    stage = replace(pipeline.prod, experiment=longest)
    roles = (
        off_role_name(longest),
        delivery_role_name(longest),
        stage.starter_role,
        pipeline.caller_role(stage),
    )
    assert all(len(name) <= LONGEST_ROLE for name in roles)
    assert all(region in name for name in roles)
    for name in (f"{dashboard_name(longest)}-99", service_dashboard_name(longest)):
        assert len(name) <= LONGEST_DASHBOARD


def test_one_experiment_in_two_regions_shares_no_account_wide_name(experiment: Experiment) -> None:
    here, there = (
        _there(experiment, name=experiment.name, region=region) for region in ("us-east-2", "ap-southeast-4")
    )
    for name in (off_role_name, dashboard_name, service_dashboard_name):
        assert name(here) != name(there)
