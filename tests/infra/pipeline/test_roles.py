"""What each role of the pipeline could do, asked of its policies as synthesized, without counting on the boundary."""

from __future__ import annotations

from typing import Any

import pytest

from infra.pipeline.pipeline_file import PipelineConfiguration
from tests.infra.pipeline.conftest import Template, of_type
from tests.infra.pipeline.iam import Request, allows
from tests.infra.templates import resolved

PIPELINE, DEV, PROD = "111122223333", "222233334444", "444455556666"
TAG = "iam:ResourceTag/aws-cdk:bootstrap-role"
FORBIDDEN = (
    Request("iam:CreateRole", f"arn:aws:iam::{PIPELINE}:role/x"),
    Request("iam:PutRolePolicy", f"arn:aws:iam::{PIPELINE}:role/speculation-delivery-x"),
    Request("iam:AttachRolePolicy", f"arn:aws:iam::{PIPELINE}:role/speculation-delivery-x"),
    Request("iam:UpdateAssumeRolePolicy", f"arn:aws:iam::{PIPELINE}:role/Admin"),
    Request("iam:CreateUser", f"arn:aws:iam::{PIPELINE}:user/x"),
    Request("iam:CreateAccessKey", f"arn:aws:iam::{PIPELINE}:user/x"),
    Request("iam:CreatePolicyVersion", f"arn:aws:iam::{PIPELINE}:policy/speculation-boundary"),
    Request("iam:PassRole", f"arn:aws:iam::{PIPELINE}:role/Admin"),
    Request("iam:PassRole", f"arn:aws:iam::{PROD}:role/Admin"),
    Request("sts:AssumeRole", f"arn:aws:iam::{PIPELINE}:role/Admin", {TAG: None}),
    Request("sts:AssumeRole", f"arn:aws:iam::{PROD}:role/Admin", {TAG: None}),
    Request(
        "sts:AssumeRole",
        f"arn:aws:iam::{PROD}:role/cdk-hnb659fds-cfn-exec-role-{PROD}-us-east-2",
        {TAG: None},
    ),
    Request("ec2:RunInstances", f"arn:aws:ec2:us-east-2:{PIPELINE}:instance/*"),
    Request("eks:CreateNodegroup", f"arn:aws:eks:us-east-2:{PROD}:cluster/qwen3-32b"),
    Request("eks:DeleteCluster", f"arn:aws:eks:us-east-2:{PROD}:cluster/qwen3-32b"),
    Request("eks:CreateAccessEntry", f"arn:aws:eks:us-east-2:{PROD}:cluster/qwen3-32b"),
    Request("s3:DeleteBucket", f"arn:aws:s3:::qwen3-32b-results-{PROD}-us-east-2"),
    Request("s3:DeleteObject", f"arn:aws:s3:::qwen3-32b-artifacts-{PROD}-us-east-2/key/COMPLETE"),
    Request("s3:PutObject", f"arn:aws:s3:::qwen3-32b-artifacts-{PROD}-us-east-2/key/COMPLETE"),
    Request("s3:PutBucketPolicy", f"arn:aws:s3:::qwen3-32b-results-{PROD}-us-east-2"),
    Request("kms:ScheduleKeyDeletion", f"arn:aws:kms:us-east-2:{PROD}:key/x"),
    Request("kms:PutKeyPolicy", f"arn:aws:kms:us-east-2:{PROD}:key/x"),
    Request(
        "codepipeline:PutApprovalResult",
        f"arn:aws:codepipeline:us-east-2:{PIPELINE}:speculation-delivery/prod/x",
    ),
    Request("codepipeline:UpdatePipeline", f"arn:aws:codepipeline:us-east-2:{PIPELINE}:speculation-delivery"),
    Request("codebuild:StartBuild", f"arn:aws:codebuild:us-east-2:{PIPELINE}:project/x"),
    Request("codebuild:StopBuild", f"arn:aws:codebuild:us-east-2:{PIPELINE}:project/x"),
    Request("codebuild:UpdateProject", f"arn:aws:codebuild:us-east-2:{PIPELINE}:project/x"),
    Request("cloudformation:CreateStack", f"arn:aws:cloudformation:us-east-2:{PIPELINE}:stack/x/y"),
    Request(
        "cloudformation:DeleteStack", f"arn:aws:cloudformation:us-east-2:{PROD}:stack/qwen3-32b-storage/y"
    ),
    Request("lambda:UpdateFunctionCode", f"arn:aws:lambda:us-east-2:{PROD}:function:x"),
    Request("ssm:SendCommand", f"arn:aws:ec2:us-east-2:{PROD}:instance/i-0"),
    Request("ssm:StartSession", f"arn:aws:ec2:us-east-2:{PROD}:instance/i-0"),
    Request("secretsmanager:GetSecretValue", f"arn:aws:secretsmanager:us-east-2:{PIPELINE}:secret:x"),
    Request("organizations:LeaveOrganization", "*"),
    Request("cloudtrail:StopLogging", f"arn:aws:cloudtrail:us-east-2:{PIPELINE}:trail/x"),
    Request("budgets:ModifyBudget", f"arn:aws:budgets::{PIPELINE}:budget/x"),
)
"""What no role of the delivery may do; the tag is what the bootstrap's own roles carry, and others do not."""


def policies(*templates: Template) -> dict[str, list[dict[str, Any]]]:
    """Statements of every role, by logical id or, where policies name it so, by its name."""
    found: dict[str, list[dict[str, Any]]] = {}
    for template in templates:
        for logical_id, role in of_type(template, "AWS::IAM::Role").items():
            name = resolved(role.get("RoleName", f"<{logical_id}>"))
            found.setdefault(name, [])
            assert not role.get("ManagedPolicyArns"), (
                f"{logical_id}: a managed policy is not looked into here"
            )
            for policy in role.get("Policies", ()):
                found[name] += _list(policy["PolicyDocument"]["Statement"])
        names = {
            f"<{key}>": resolved(one["RoleName"])
            for key, one in of_type(template, "AWS::IAM::Role").items()
            if "RoleName" in one
        }
        for policy in of_type(template, "AWS::IAM::Policy").values():
            for role in policy["Roles"]:
                key = resolved(role)
                found.setdefault(names.get(key, key), []).extend(_list(policy["PolicyDocument"]["Statement"]))
    return found


@pytest.fixture(scope="module")
def of_pipeline(pipeline: Template) -> dict[str, list[dict[str, Any]]]:
    return policies(pipeline)


@pytest.fixture(scope="module")
def of_stages(stages: dict[str, dict[str, Template]]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Each as deployed in its own account: taken for the pipeline's, no request about a stage's bucket would match."""
    return {
        name: {
            role: _in_account(statements, {"dev": DEV, "prod": PROD}[name])
            for role, statements in policies(stage["deliveryrole"], stage["delivery"]).items()
        }
        for name, stage in stages.items()
    }


@pytest.mark.parametrize("request_", FORBIDDEN, ids=lambda one: f"{one.action}@{one.resource}")
def test_no_role_of_the_pipeline_may(of_pipeline: dict[str, list[dict[str, Any]]], request_: Request) -> None:
    assert len(of_pipeline) > 8
    assert [name for name, statements in of_pipeline.items() if allows(request_, statements)] == []


@pytest.mark.parametrize("request_", FORBIDDEN, ids=lambda one: f"{one.action}@{one.resource}")
def test_no_role_of_the_steps_in_a_stage_may(
    of_stages: dict[str, dict[str, list[dict[str, Any]]]], request_: Request
) -> None:
    for roles in of_stages.values():
        assert set(roles) == {"qwen3-32b-us-east-2-delivery", "qwen3-32b-us-east-2-delivery-start"}
        assert [name for name, statements in roles.items() if allows(request_, statements)] == []


def test_only_prods_steps_may_start_trn2_nodes(of_stages: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    may = {
        (stage, name)
        for stage, account in (("dev", DEV), ("prod", PROD))
        for name, statements in of_stages[stage].items()
        if allows(
            Request(
                "eks:UpdateNodegroupConfig",
                f"arn:aws:eks:us-east-2:{account}:nodegroup/qwen3-32b/qwen3-32b-trn2-a-on-demand-d2-28/0a1b2c3d",
            ),
            statements,
        )
    }
    assert may == {("prod", "qwen3-32b-us-east-2-delivery")}


@pytest.mark.parametrize(
    ("action", "resource"),
    [
        ("s3:PutObject", f"qwen3-32b-results-{PROD}-us-east-2/state/active.json"),
        ("s3:DeleteObject", f"qwen3-32b-results-{PROD}-us-east-2/state/active.json"),
        ("s3:PutObject", f"qwen3-32b-results-{PROD}-us-east-2/plans/0a.json"),
        ("s3:ListBucket", f"qwen3-32b-results-{PROD}-us-east-2"),
        ("s3:GetObject", f"qwen3-32b-artifacts-{PROD}-us-east-2/key/COMPLETE"),
        ("s3:PutObjectTagging", f"qwen3-32b-artifacts-{PROD}-us-east-2/key/model.pt"),
        ("s3:DeleteObjectTagging", f"qwen3-32b-artifacts-{PROD}-us-east-2/key/model.pt"),
    ],
)
def test_prods_steps_may_do_what_a_run_does_in_the_buckets(
    of_stages: dict[str, dict[str, list[dict[str, Any]]]], action: str, resource: str
) -> None:
    request = Request(action, f"arn:aws:s3:::{resource}")
    assert allows(request, of_stages["prod"]["qwen3-32b-us-east-2-delivery"])
    assert not allows(request, of_stages["dev"]["qwen3-32b-us-east-2-delivery"])


def test_a_run_is_not_to_remove_results(of_stages: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    request = Request("s3:DeleteObject", f"arn:aws:s3:::qwen3-32b-results-{PROD}-us-east-2/runs/a/run.json")
    assert not allows(request, of_stages["prod"]["qwen3-32b-us-east-2-delivery"])


def test_the_system_nodes_are_nobodys_business(of_stages: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    request = Request(
        "eks:UpdateNodegroupConfig", f"arn:aws:eks:us-east-2:{PROD}:nodegroup/qwen3-32b/qwen3-32b-system/0a"
    )
    assert not any(allows(request, statements) for statements in of_stages["prod"].values())


def test_each_stage_is_started_by_its_own_role_only(
    of_pipeline: dict[str, list[dict[str, Any]]], configuration: PipelineConfiguration
) -> None:
    for stage in (configuration.dev, configuration.prod):
        starter = Request(
            "sts:AssumeRole",
            f"arn:aws:iam::{stage.account}:role/qwen3-32b-us-east-2-delivery-start",
            {TAG: None},
        )
        may = [name for name, statements in of_pipeline.items() if allows(starter, statements)]
        assert may == [f"speculation-delivery-us-east-2-{stage.name}-steps"]


def test_a_stage_trusts_the_role_of_its_steps_and_nobody_else_of_that_account(
    stages: dict[str, dict[str, Template]],
) -> None:
    for name, stage in stages.items():
        roles = of_type(stage["delivery"], "AWS::IAM::Role")
        (trust,) = [role["AssumeRolePolicyDocument"] for role in roles.values()]
        (statement,) = trust["Statement"]
        assert resolved(statement["Principal"]["AWS"]) == f"arn:aws:iam::{PIPELINE}:root"
        assert resolved(statement["Condition"]) == {
            "ArnEquals": {
                "aws:PrincipalArn": f"arn:aws:iam::{PIPELINE}:role/speculation-delivery-us-east-2-{name}-steps"
            }
        }


def test_the_pull_requests_role_fetches_code_and_writes_its_log_only(
    of_pipeline: dict[str, list[dict[str, Any]]],
) -> None:
    (statements,) = [found for name, found in of_pipeline.items() if "PullRequests" in name]
    assert {action for one in statements for action in _list(one["Action"])} == {
        "logs:CreateLogGroup",
        "logs:CreateLogStream",
        "logs:PutLogEvents",
        "codeconnections:GetConnection",
        "codeconnections:GetConnectionToken",
    }


@pytest.mark.parametrize("service", ["codeconnections", "codestar-connections"])
@pytest.mark.parametrize("what", ["GetConnection", "GetConnectionToken", "UseConnection", "PassConnection"])
def test_a_pull_request_cannot_reach_the_pipelines_connection(
    of_pipeline: dict[str, list[dict[str, Any]]],
    configuration: PipelineConfiguration,
    service: str,
    what: str,
) -> None:
    (statements,) = [found for name, found in of_pipeline.items() if "PullRequests" in name]
    assert not allows(Request(f"{service}:{what}", configuration.connection), statements)


def test_no_other_role_reads_the_token_of_either_connection(
    of_pipeline: dict[str, list[dict[str, Any]]], configuration: PipelineConfiguration
) -> None:
    for connection in (configuration.connection, configuration.pull_request_connection):
        request = Request("codeconnections:GetConnectionToken", connection)
        may = [name for name, statements in of_pipeline.items() if allows(request, statements)]
        assert [name for name in may if "PullRequests" not in name] == []


def test_self_mutation_reaches_the_bootstraps_roles(of_pipeline: dict[str, list[dict[str, Any]]]) -> None:
    """The evaluator finds what is allowed, so that what it does not find means something."""
    (statements,) = [found for name, found in of_pipeline.items() if "SelfMutation" in name]
    role = f"arn:aws:iam::{PIPELINE}:role/cdk-hnb659fds-deploy-role-{PIPELINE}-us-east-2"
    assert allows(Request("sts:AssumeRole", role, {TAG: "deploy"}), statements)
    assert not allows(Request("sts:AssumeRole", role, {TAG: "lookup"}), statements)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _in_account(value: Any, account: str) -> Any:
    if isinstance(value, list):
        return [_in_account(item, account) for item in value]
    if value == {"Ref": "AWS::AccountId"}:
        return account
    return (
        {key: _in_account(item, account) for key, item in value.items()} if isinstance(value, dict) else value
    )
