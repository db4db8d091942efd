"""What is made through moto's APIs can be read there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lab.aws.moto_models import Outcome
from lab.aws.moto_server import client, rehearsal_server
from lab.aws.rehearsal import Rehearsal, rehearse
from tests.lab.aws.assemblies import REGION, resource, write_assembly

STATEMENT = {"Effect": "Allow", "Principal": {"Service": "x"}, "Action": "sns:Publish", "Resource": "*"}
POLICY = {"Version": "2012-10-17", "Statement": [STATEMENT]}


RESOURCES: dict[str, Any] = {
    "Vpc": resource("EC2::VPC", CidrBlock="10.0.0.0/16"),
    "Wall": resource("EC2::SecurityGroup", GroupDescription="x", VpcId={"Ref": "Vpc"}),
    "Out": resource(
        "EC2::SecurityGroupEgress",
        GroupId={"Fn::GetAtt": ["Wall", "GroupId"]},
        IpProtocol="tcp",
        FromPort=443,
        ToPort=443,
        CidrIp="10.1.0.0/16",
    ),
    "Topic": resource("SNS::Topic", TopicName="notices"),
    "TopicPolicy": resource("SNS::TopicPolicy", Topics=[{"Ref": "Topic"}], PolicyDocument=POLICY),
    "Failed": resource("SQS::Queue", QueueName="failed"),
    "QueuePolicy": resource("SQS::QueuePolicy", Queues=[{"Ref": "Failed"}], PolicyDocument=POLICY),
    "Mail": resource(
        "SNS::Subscription", TopicArn={"Ref": "Topic"}, Protocol="email", Endpoint="a@example.com"
    ),
    "Slow": resource(
        "CloudWatch::Alarm",
        AlarmName="slow",
        AlarmActions=[{"Ref": "Topic"}],
        ComparisonOperator="GreaterThanThreshold",
        Threshold=0.2,
        EvaluationPeriods=3,
        TreatMissingData="notBreaching",
        Metrics=[{"Id": "q", "Expression": "SELECT AVG(Errors) FROM N", "Period": 300, "ReturnData": True}],
    ),
    "Group": resource("Scheduler::ScheduleGroup", Name="off"),
    "Daily": {
        **resource(
            "Scheduler::Schedule",
            GroupName="off",
            ScheduleExpression="cron(0 22 * * ? *)",
            FlexibleTimeWindow={"Mode": "OFF"},
            Target={
                "Arn": "arn:aws:scheduler:::aws-sdk:eks:update",
                "RoleArn": "arn:aws:iam::123456789012:role/off",
            },
        ),
        "DependsOn": ["Group"],
    },
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with rehearsal_server() as address:
        yield address


@pytest.fixture(scope="module")
def made(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    folder = write_assembly(tmp_path_factory.mktemp("api"), {"one": ({"Resources": RESOURCES}, ())})
    return rehearse(folder, region=REGION, endpoint=endpoint)


def test_all_of_them_count_as_created_and_alarms_and_schedules_are_read_back(made: Rehearsal) -> None:
    assert {one.logical_id for one in made.resources if one.outcome is Outcome.CREATED} == RESOURCES.keys()
    assert made.facts.alarms == ("slow",)
    assert list(made.facts.schedules.values()) == ["cron(0 22 * * ? *)"]


def test_the_apis_show_what_was_made(made: Rehearsal, endpoint: str) -> None:
    sns = client("sns", endpoint=endpoint, region=REGION)
    (topic,) = sns.list_topics()["Topics"]
    attributes = sns.get_topic_attributes(TopicArn=topic["TopicArn"])["Attributes"]
    assert json.loads(attributes["Policy"]) == POLICY
    sqs = client("sqs", endpoint=endpoint, region=REGION)
    (queue,) = sqs.list_queues()["QueueUrls"]
    held = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["Policy"])["Attributes"]
    assert json.loads(held["Policy"]) == POLICY
    (mail,) = sns.list_subscriptions()["Subscriptions"]
    assert mail["Endpoint"] == "a@example.com"
    (alarm,) = client("cloudwatch", endpoint=endpoint, region=REGION).describe_alarms()["MetricAlarms"]
    assert alarm["AlarmActions"] == [topic["TopicArn"]]
    assert alarm["TreatMissingData"] == "notBreaching"
