"""`infra/bootstrap/operator.yaml`: what the verbs need, and no more. That every call of every verb's tests is allowed is held
by the fixture `enforcement` of this folder, at the call."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID

from tests.conftest import ROOT
from tests.infra.findings import lint
from tests.infra.pipeline.iam import Request, allows, committed, template_of
from tests.infra.templates import as_list
from tests.operations.enforcement import OPERATOR, Enforcement, arn_formats, operator
from trnspec.experiment import load
from trnspec.operations.__main__ import VERBS
from trnspec.operations.cloud import cloudformation
from trnspec.operations.cloud.aws import Aws, AwsError

MOST_CHARACTERS = 6144
"""Of a managed policy, without white space:
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html"""
POLICIES = list(template_of(OPERATOR)["Resources"])
NOT_BY_NAME = {
    "iam:PassRole": "by EventBridge Scheduler, of the role in a schedule",
    "kms:Decrypt": "by S3",
    "kms:GenerateDataKey": "by S3",
    "s3:ListBucket": "list_objects_v2",
    "ssmmessages:OpenDataChannel": "by the Session Manager plugin",
    "sts:AssumeRole": "by cdk deploy",
}
"""Actions that are not looked for by the name of their operation, and who needs them."""


@pytest.mark.parametrize("name", POLICIES)
def test_each_policy_fits_into_what_iam_takes_and_names_verbs_that_ask_aws(name: str) -> None:
    text = re.sub(r"\s", "", json.dumps({"Version": "2012-10-17", "Statement": committed(OPERATOR, name)}))
    assert len(text) <= MOST_CHARACTERS
    assert {*template_of(OPERATOR)["Resources"][name]["Metadata"]["Verbs"]} <= {*VERBS}


def test_every_verb_that_asks_aws_has_a_policy() -> None:
    asking = {name for name, verb in VERBS.items() if verb.group == "AWS"} - {"promote"} | {"render"}
    held = {verb for one in template_of(OPERATOR)["Resources"].values() for verb in one["Metadata"]["Verbs"]}
    assert held == asking
    assert "review" not in held, "it asks nobody"


def test_every_action_is_one_that_the_product_calls_and_names_its_resource_where_it_takes_one() -> None:
    """But stacks and alarms, which are listed, and metrics, whose namespace is a condition."""
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "src/trnspec/operations").rglob("*.py")
    )
    listed = {"cloudformation:DescribeStacks", "cloudwatch:DescribeAlarms", "cloudwatch:PutMetricData"}
    for statement in (one for name in POLICIES for one in committed(OPERATOR, name)):
        for action, resource in product(as_list(statement["Action"]), as_list(statement["Resource"])):
            assert "*" not in action
            assert (resource == "*") is (not arn_formats(action) or action in listed), (action, resource)
            operation = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", action.partition(":")[2]).lower()
            assert action in NOT_BY_NAME or re.search(rf"\b{operation}\b", sources), action


HERE = "us-east-2:111122223333"
STACKS = f"arn:aws:cloudformation:{HERE}:stack"
KMS = f"arn:aws:kms:{HERE}:key/x"
OFF_ROLE = "arn:aws:iam::111122223333:role/qwen3-32b-us-east-2-trn2-off"
CANNOT = f"""
s3:DeleteBucket arn:aws:s3:::qwen3-32b-results-111122223333-us-east-2
s3:DeleteObject arn:aws:s3:::qwen3-32b-results-111122223333-us-east-2/runs/a/requests.jsonl
s3:PutObject arn:aws:s3:::qwen3-32b-artifacts-111122223333-us-east-2/key/COMPLETE
s3:PutObject arn:aws:s3:::qwen3-32b-checkpoints-111122223333-us-east-2/model/COMPLETE
s3:GetObject arn:aws:s3:::ours-results-111122223333-us-east-2/runs/a
cloudformation:DeleteStack arn:aws:cloudformation:{HERE}:stack/ours-network/0a
cloudformation:CreateStack arn:aws:cloudformation:{HERE}:stack/qwen3-32b-network/0a
cloudformation:UpdateTerminationProtection arn:aws:cloudformation:{HERE}:stack/ours-cluster/0a
eks:UpdateNodegroupConfig arn:aws:eks:{HERE}:nodegroup/qwen3-32b/qwen3-32b-system/0a
eks:UpdateNodegroupConfig arn:aws:eks:{HERE}:nodegroup/ours/ours-trn2-a/0a
eks:CreateAccessEntry arn:aws:eks:{HERE}:cluster/qwen3-32b
scheduler:UpdateSchedule arn:aws:scheduler:{HERE}:schedule/qwen3-32b-off/qwen3-32b-daily
logs:DeleteLogGroup arn:aws:logs:{HERE}:log-group:/aws/eks/ours/cluster:*
iam:PassRole arn:aws:iam::111122223333:role/Admin
iam:CreateRole arn:aws:iam::111122223333:role/qwen3-32b-x
sts:AssumeRole arn:aws:iam::111122223333:role/cdk-hnb659fds-cfn-exec-role-111122223333-us-east-2
sts:AssumeRole arn:aws:iam::111122223333:role/Admin
ssm:StartSession arn:aws:ssm:us-east-2::document/SSM-SessionManagerRunShell
ssm:SendCommand arn:aws:ec2:{HERE}:instance/i-0
kms:ScheduleKeyDeletion arn:aws:kms:{HERE}:key/x
ec2:RunInstances arn:aws:ec2:{HERE}:instance/*
"""


@pytest.mark.parametrize("line", CANNOT.strip().splitlines())
def test_an_operator_with_every_policy_cannot(line: str) -> None:
    """Whatever conditions hold."""
    action, resource = line.split()
    assert [name for name in POLICIES if allows(Request(action, resource), committed(OPERATOR, name))] == []


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda path: path.stem)
def test_an_operator_may_deploy_run_and_remove_every_experiment_that_is_shipped(path: Path) -> None:
    name = load(path).name
    for policy, action, resource in (
        ("Look", "eks:DescribeCluster", f"arn:aws:eks:{HERE}:cluster/{name}"),
        ("Deploy", "cloudformation:UpdateTerminationProtection", f"{STACKS}/{name}-storage/0a"),
        ("Run", "s3:PutObject", f"arn:aws:s3:::{name}-results-111122223333-us-east-2/runs/a"),
        ("TakeDown", "cloudformation:DeleteStack", f"{STACKS}/{name}-network/0a"),
    ):
        assert allows(Request(action, resource), committed(OPERATOR, policy)), action


@pytest.mark.parametrize(
    ("action", "resource", "context"),
    [
        ("ssm:StartSession", f"arn:aws:ec2:{HERE}:instance/i-0", {"ssm:resourceTag/Name": "web"}),
        ("kms:Decrypt", KMS, {"kms:ViaService": "secretsmanager.us-east-2.amazonaws.com"}),
        ("kms:Decrypt", KMS, {"kms:EncryptionContext:aws:s3:arn": "arn:aws:s3:::ours"}),
        ("cloudwatch:PutMetricData", "*", {"cloudwatch:namespace": "AWS/EC2"}),
        ("iam:PassRole", OFF_ROLE, {"iam:PassedToService": "ec2.amazonaws.com"}),
    ],
)
def test_what_conditions_refuse(action: str, resource: str, context: dict[str, str | None]) -> None:
    request = Request(action, resource, context)
    assert [name for name in POLICIES if allows(request, committed(OPERATOR, name))] == []
    without = Request(action, resource)
    assert [name for name in POLICIES if allows(without, committed(OPERATOR, name))], (
        "the evaluator finds it otherwise"
    )


def test_a_call_that_the_verbs_policy_lacks_is_refused_as_aws_would_and_is_recorded(
    aws: Aws, enforcement: Enforcement
) -> None:
    """So that a test in which a verb calls something new fails."""
    with enforcement.acting_as(operator("status")), pytest.raises(AwsError, match="not allowed") as caught:
        cloudformation.failures("qwen3-32b-network", aws)
    stack = f"arn:aws:cloudformation:us-east-2:{DEFAULT_ACCOUNT_ID}:stack/qwen3-32b-network/0a1b"
    assert f"let the caller do cloudformation:DescribeStackEvents on {stack}" in str(caught.value)
    assert len(enforcement.denied) == 1
    enforcement.denied.clear()


@pytest.mark.slow
def test_cfn_lint_finds_nothing_in_the_template() -> None:
    found: list[dict[str, Any]] = lint([OPERATOR], region="us-east-2")
    assert [f"{one['Rule']['Id']} {one['Message']}" for one in found] == []
