"""What each role of the pipeline could do, asked of its policies as synthesized, without counting on the boundary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.infra.pipeline.iam import Request, allows
from tests.infra.templates import Deployment, resolved

PIPELINE, DEV, PROD = "111122223333", "222233334444", "444455556666"
TAG = "iam:ResourceTag/aws-cdk:bootstrap-role"
STEPS = ("run", "delivery")
Rights = dict[str, list[dict[str, Any]]]
"""Statements by role."""
FORBIDDEN = Path(__file__).with_name("forbidden.txt").read_text(encoding="utf-8").splitlines()
"""What no role of the delivery may do."""


def forbidden(line: str) -> Request:
    """The tag is what the bootstrap's own roles carry, and others do not."""
    action, resource = line.replace("PIPELINE", PIPELINE).replace("PROD", PROD).split()
    return Request(action, f"arn:aws:{resource}", {TAG: None} if action.startswith("sts:") else {})


@pytest.fixture(scope="module")
def of_pipeline(pipeline: Deployment) -> Rights:
    assert not [one for one in pipeline.properties("AWS::IAM::Role") if one.get("ManagedPolicyArns")]
    return pipeline.rights()


@pytest.fixture(scope="module")
def of_stages(stages: dict[str, Deployment]) -> dict[str, Rights]:
    """Each as deployed in its own account: taken for the pipeline's, no request about a stage's bucket would match."""
    found = {}
    for name, stage in stages.items():
        parts = [part for part in STEPS if part in stage.templates]
        roles = [role for part in parts for role in stage.properties("AWS::IAM::Role", part)]
        assert not [role for role in roles if role.get("ManagedPolicyArns")], "it is not looked into here"
        account = json.dumps({"Ref": "AWS::AccountId"}), json.dumps({"dev": DEV, "prod": PROD}[name])
        found[name] = json.loads(json.dumps(stage.rights(*parts)).replace(*account))
    return found


@pytest.mark.parametrize("line", FORBIDDEN)
def test_no_role_of_the_pipeline_or_of_a_stages_steps_may(
    of_pipeline: Rights, of_stages: dict[str, Rights], line: str
) -> None:
    assert len(of_pipeline) > 8
    steps = {"qwen3-32b-us-east-2-delivery", "qwen3-32b-us-east-2-delivery-start"}
    assert set(of_stages["dev"]) == steps
    assert set(of_stages["prod"]) == {*steps, "qwen3-32b-us-east-2-run"}
    for roles in (of_pipeline, *of_stages.values()):
        assert [name for name, statements in roles.items() if allows(forbidden(line), statements)] == []


def test_only_prods_steps_may_start_trn2_nodes_and_write_to_buckets_and_nobody_system_nodes(
    of_stages: dict[str, Rights],
) -> None:
    def may(action: str, resource: str) -> set[tuple[str, str]]:
        return {
            (stage, name)
            for stage, account in (("dev", DEV), ("prod", PROD))
            for name, statements in of_stages[stage].items()
            if allows(Request(action, f"arn:aws:{resource.replace('ACCOUNT', account)}"), statements)
        }

    prod, groups = (
        {("prod", "qwen3-32b-us-east-2-run")},
        "eks:us-east-2:ACCOUNT:nodegroup/qwen3-32b/qwen3-32b",
    )
    assert may("eks:UpdateNodegroupConfig", f"{groups}-trn2-a-on-demand-d2-28/0a1b2c3d") == prod
    assert may("eks:UpdateNodegroupConfig", f"{groups}-system/0a") == set()
    for action, place in (
        ("PutObject", "results-ACCOUNT-us-east-2/state/active.json"),
        ("DeleteObject", "results-ACCOUNT-us-east-2/state/active.json"),
        ("PutObject", "results-ACCOUNT-us-east-2/plans/0a.json"),
        ("ListBucket", "results-ACCOUNT-us-east-2"),
        ("GetObject", "artifacts-ACCOUNT-us-east-2/key/COMPLETE"),
        ("PutObjectTagging", "artifacts-ACCOUNT-us-east-2/key/model.pt"),
        ("DeleteObjectTagging", "artifacts-ACCOUNT-us-east-2/key/model.pt"),
    ):
        assert may(f"s3:{action}", f"s3:::qwen3-32b-{place}") == prod, (action, place)


def test_each_stage_is_started_by_its_own_role_only(
    of_pipeline: Rights, stages: dict[str, Deployment]
) -> None:
    """And it trusts nobody else of the pipeline's account."""
    for name, account in (("dev", DEV), ("prod", PROD)):
        own = f"speculation-delivery-us-east-2-{name}-steps"
        taken = f"arn:aws:iam::{account}:role/qwen3-32b-us-east-2-delivery-start"
        request = Request("sts:AssumeRole", taken, {TAG: None})
        assert [role for role, statements in of_pipeline.items() if allows(request, statements)] == [own]
        role = stages[name].only("AWS::IAM::Role", "delivery", RoleName=taken.rpartition("/")[2]).properties
        (statement,) = role["AssumeRolePolicyDocument"]["Statement"]
        assert resolved(statement["Principal"]["AWS"]) == f"arn:aws:iam::{PIPELINE}:root"
        trusted = {"aws:PrincipalArn": f"arn:aws:iam::{PIPELINE}:role/{own}"}
        assert resolved(statement["Condition"]) == {"ArnEquals": trusted}


def test_self_mutation_reaches_the_bootstraps_roles(of_pipeline: Rights) -> None:
    """The evaluator finds what is allowed, so that what it does not find means something."""
    (statements,) = [found for name, found in of_pipeline.items() if "SelfMutation" in name]
    role = f"arn:aws:iam::{PIPELINE}:role/cdk-hnb659fds-deploy-role-{PIPELINE}-us-east-2"
    assert allows(Request("sts:AssumeRole", role, {TAG: "deploy"}), statements)
    assert not allows(Request("sts:AssumeRole", role, {TAG: "lookup"}), statements)
