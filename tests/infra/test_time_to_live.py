"""No rental outlives its day."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from experiment import Experiment
from experiment.naming import daily_schedule
from infra.stacks.nodes import TARGET, block_expression, daily_expression
from tests.infra.templates import Deployment, resolved


def _schedules(deployment: Deployment) -> list[dict[str, Any]]:
    return [found.properties for found in deployment.resources("AWS::Scheduler::Schedule")]


def test_the_group_is_emptied_every_day_at_the_hour_of_the_experiment_and_once_more(
    deployment: Deployment,
) -> None:
    expressions = [schedule["ScheduleExpression"] for schedule in _schedules(deployment)]
    assert expressions == ["cron(0 22 * * ? *)", "cron(30 22 * * ? *)"]


def test_the_group_is_emptied_an_hour_before_its_block_ends(rented_deployment: Deployment) -> None:
    expressions = {schedule["ScheduleExpression"] for schedule in _schedules(rented_deployment)}
    assert expressions == {"cron(45 23 * * ? *)", "cron(15 0 * * ? *)", "at(2026-12-01T10:30:00)"}


@pytest.mark.parametrize(
    ("off_at", "minutes", "expected"),
    [
        ("00:00", 0, "cron(0 0 * * ? *)"),
        ("09:05", 30, "cron(35 9 * * ? *)"),
        ("23:30", 30, "cron(0 0 * * ? *)"),
    ],
)
def test_a_daily_hour_may_run_over_midnight(off_at: str, minutes: int, expected: str) -> None:
    assert daily_expression(off_at, later=timedelta(minutes=minutes)) == expected


def test_a_block_that_ends_just_after_midnight_is_left_the_day_before() -> None:
    assert block_expression("2026-12-01T00:30:00Z") == "at(2026-11-30T23:30:00)"


def test_eks_accepts_what_the_schedules_say(deployment: Deployment) -> None:
    eks = boto3.client("eks", region_name="us-east-2", aws_access_key_id="none", aws_secret_access_key="none")
    for schedule in _schedules(deployment):
        assert schedule["Target"]["Arn"] == TARGET
        said = _as_the_api_spells(json.loads(schedule["Target"]["Input"]))
        assert said["scalingConfig"] == {"minSize": 0, "desiredSize": 0}
        with Stubber(eks) as stubber:  # checks the parameters against the model of the service
            stubber.add_response("update_nodegroup_config", {"update": {}}, said)
            eks.update_nodegroup_config(**said)


def _as_the_api_spells(value: Any) -> Any:
    """Universal targets capitalize each name of the API."""
    if isinstance(value, dict):
        assert all(key[0].isupper() for key in value)
        return {key[0].lower() + key[1:]: _as_the_api_spells(inner) for key, inner in value.items()}
    return value


def test_cluster_and_group_are_those_that_are_deployed(deployment: Deployment) -> None:
    group = deployment.only("AWS::EKS::Nodegroup", stack="nodes").properties
    cluster = deployment.only("AWS::EKS::Cluster").properties
    for schedule in _schedules(deployment):
        said = json.loads(schedule["Target"]["Input"])
        assert (said["ClusterName"], said["NodegroupName"]) == (cluster["Name"], group["NodegroupName"])


def test_the_schedules_may_change_this_group_and_nothing_else(deployment: Deployment) -> None:
    (role,) = [
        role
        for role in deployment.resources("AWS::IAM::Role", stack="nodes")
        if role.properties.get("RoleName") == "qwen3-32b-us-east-2-trn2-off"
    ]
    (policy,) = [
        policy.properties["PolicyDocument"]["Statement"]
        for policy in deployment.resources("AWS::IAM::Policy", stack="nodes")
        if {"Ref": role.logical_id} in policy.properties["Roles"]
    ]
    statement, kept = policy
    queue = deployment.only("AWS::SQS::Queue")
    assert (kept["Action"], kept["Resource"]) == (
        "sqs:SendMessage",
        {"Fn::GetAtt": [queue.logical_id, "Arn"]},
    )
    assert statement["Action"] == "eks:UpdateNodegroupConfig"
    assert (
        resolved(statement["Resource"])
        == "arn:aws:eks:us-east-2:111122223333:nodegroup/qwen3-32b/qwen3-32b-trn2-a-on-demand-d2-28/*"
    )


def test_what_no_schedule_could_do_is_kept(rented_deployment: Deployment) -> None:
    queue = rented_deployment.only("AWS::SQS::Queue")
    for schedule in _schedules(rented_deployment):
        arn = schedule["Target"]["DeadLetterConfig"]["Arn"]
        assert arn == {"Fn::GetAtt": [queue.logical_id, "Arn"]}


def test_the_daily_schedule_has_the_name_that_run_and_scale_look_for(
    deployment: Deployment, experiment: Experiment
) -> None:
    named = [schedule["Name"] for schedule in _schedules(deployment) if "Name" in schedule]
    assert named == [daily_schedule(experiment)]


def test_only_schedules_of_this_group_and_account_use_the_role(deployment: Deployment) -> None:
    (trust,) = [
        role.properties["AssumeRolePolicyDocument"]["Statement"][0]
        for role in deployment.resources("AWS::IAM::Role", stack="nodes")
        if "RoleName" in role.properties
    ]
    assert trust["Principal"] == {"Service": "scheduler.amazonaws.com"}
    assert resolved(trust["Condition"]) == {
        "StringEquals": {
            "aws:SourceAccount": "111122223333",
            "aws:SourceArn": "arn:aws:scheduler:us-east-2:111122223333:schedule-group/qwen3-32b-off",
        }
    }
    group = deployment.only("AWS::Scheduler::ScheduleGroup")
    assert group.properties["Name"] == "qwen3-32b-off"
    for schedule in deployment.resources("AWS::Scheduler::Schedule"):
        assert schedule.properties["GroupName"] == "qwen3-32b-off"
        assert group.logical_id in schedule.waits_for
