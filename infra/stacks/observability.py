"""Dashboards and alarms, and the topic that the alarms notify."""

from __future__ import annotations

import re
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as cloudwatch_actions
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from constructs import Construct

from experiment import Experiment
from experiment.naming import notices_topic
from infra.constructs.conventions import encryption_key
from infra.constructs.logical_ids import logical_id
from infra.deployment_file import Lasting
from infra.monitoring.alarms import Alarm, MetricAlarm, alarms
from infra.monitoring.dashboards import add_dashboards
from infra.monitoring.graphs import PERIOD, calculated
from infra.stacks.experiment_stack import ExperimentStack

_CLOUDWATCH = "cloudwatch.amazonaws.com"


class ObservabilityStack(ExperimentStack):
    """It works before the first run and without the cluster."""

    def __init__(self, scope: Construct, *, experiment: Experiment, lasting: Lasting) -> None:
        super().__init__(scope, "observability", experiment=experiment, description="dashboards and alarms")
        made = Construct(self, "Alarms")
        topic = _topic(made, experiment)
        if email := lasting.alarm_email:  # the address first gets a mail to confirm
            sns.Subscription(
                topic, email, topic=topic, protocol=sns.SubscriptionProtocol.EMAIL, endpoint=email
            )
        add_dashboards(self, experiment, _add_alarms(made, alarms(experiment), topic))
        cdk.CfnOutput(self, "NoticesTopic", value=topic.topic_arn)


def _topic(scope: Construct, experiment: Experiment) -> sns.Topic:
    """Encrypted. CloudWatch can publish only under a key whose policy lets it, so AWS's own key for SNS does not do.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Notify_Users_Alarm_Changes.html
    """
    key = encryption_key(
        scope,
        "Key",
        description=f"Notices of {experiment.name}",
        removal_policy=cdk.RemovalPolicy.DESTROY,  # it opens nothing once the topic is gone
    )
    allowed: dict[str, Any] = {
        "principals": [iam.ServicePrincipal(_CLOUDWATCH)],
        "conditions": {"StringEquals": {"aws:SourceAccount": cdk.Stack.of(scope).account}},
    }
    key.add_to_resource_policy(
        iam.PolicyStatement(
            actions=["kms:Decrypt", "kms:GenerateDataKey*"],
            resources=["*"],  # in the policy of a key: this key
            **allowed,
        )
    )
    topic = sns.Topic(
        scope, "Notices", topic_name=notices_topic(experiment), master_key=key, enforce_ssl=True
    )
    topic.add_to_resource_policy(
        iam.PolicyStatement(actions=["sns:Publish"], resources=[topic.topic_arn], **allowed)
    )
    return topic


def _add_alarms(scope: Construct, decided: tuple[Alarm, ...], topic: sns.Topic) -> list[cloudwatch.AlarmBase]:
    told = cloudwatch_actions.SnsAction(topic)
    made: dict[str, cloudwatch.AlarmBase] = {}
    for alarm in decided:
        if isinstance(alarm, MetricAlarm):
            made[alarm.name] = _metric_alarm(scope, alarm)
        else:
            parts = (
                cloudwatch.AlarmRule.from_alarm(made[part], cloudwatch.AlarmState.ALARM)
                for part in alarm.parts
            )
            made[alarm.name] = cloudwatch.CompositeAlarm(
                scope,
                alarm.name,
                composite_alarm_name=alarm.name,
                alarm_description=alarm.message,
                alarm_rule=cloudwatch.AlarmRule.all_of(*parts),
            )
        if alarm.notifies:
            made[alarm.name].add_alarm_action(told)
            made[alarm.name].add_ok_action(told)
        resource = made[alarm.name].node.default_child
        assert isinstance(resource, cdk.CfnResource)
        resource.override_logical_id(logical_id(scope.node.id, alarm.name))
    return [*made.values()]


def _metric_alarm(scope: Construct, alarm: MetricAlarm) -> cloudwatch.Alarm:
    metrics = [
        cloudwatch.Metric(
            namespace=one.namespace,
            metric_name=one.name,
            dimensions_map=one.dimensions,
            statistic=one.statistic,
            period=PERIOD,
        )
        for one in alarm.sources
    ]
    using = {f"m{place}": one for place, one in enumerate(metrics)}
    watched = calculated(alarm.expression, alarm.label, using) if alarm.expression else metrics[0]
    return cloudwatch.Alarm(
        scope,
        alarm.name,
        alarm_name=alarm.name,
        alarm_description=alarm.description,
        metric=watched,
        comparison_operator=cloudwatch.ComparisonOperator[_member(alarm.comparison)],
        threshold=alarm.threshold,
        evaluation_periods=alarm.periods,
        datapoints_to_alarm=alarm.breaching,
        treat_missing_data=cloudwatch.TreatMissingData[_member(alarm.missing)],
    )


def _member(word: str) -> str:
    """Of an enumeration, by the word that CloudWatch has for it."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", word).upper()
