"""Dashboards and alarms, and the topic that the alarms notify."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from constructs import Construct

from benchmark.metrics import PERIOD_S
from experiment import Experiment
from experiment.naming import notices_topic
from infra.deployment_file import Lasting
from infra.monitoring.alarms import CompositeAlarm, MetricAlarm, alarms
from infra.monitoring.dashboards import dashboards
from infra.monitoring.panels import Source
from infra.stacks.experiment_stack import ExperimentStack, encryption_key

_Alarm = cloudwatch.CfnAlarm


class ObservabilityStack(ExperimentStack):
    """It works before the first run and without the cluster.

    Alarms and dashboards are written as CloudFormation takes them: they are decided as data, and CDK's own constructs for them
    take a call to its process for every line of every graph.
    """

    def __init__(self, scope: Construct, *, experiment: Experiment, lasting: Lasting) -> None:
        described = "dashboards and alarms"
        super().__init__(
            scope, "observability", experiment=experiment, lasting=lasting, description=described
        )
        made = Construct(self, "Alarms")
        topic = _topic(made, experiment, lasting)
        if email := lasting.alarm_email:  # the address first gets a mail to confirm
            sns.Subscription(
                topic, email, topic=topic, protocol=sns.SubscriptionProtocol.EMAIL, endpoint=email
            )
        arns = _add_alarms(made, experiment, topic)
        for construct_id, page in dashboards(experiment, arns).items():
            cloudwatch.CfnDashboard(self, construct_id, dashboard_name=page.name, dashboard_body=page.body)
        cdk.CfnOutput(self, "NoticesTopic", value=topic.topic_arn)


def _topic(scope: Construct, experiment: Experiment, lasting: Lasting) -> sns.Topic:
    """Encrypted. CloudWatch can publish only under a key whose policy lets it, so AWS's own key for SNS does not do.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Notify_Users_Alarm_Changes.html
    """
    key = encryption_key(
        scope,
        "Key",
        lasting,
        description=f"Notices of {experiment.name}",
        removal_policy=cdk.RemovalPolicy.DESTROY,  # it opens nothing once the topic is gone
    )
    allowed: dict[str, Any] = {
        "principals": [iam.ServicePrincipal("cloudwatch.amazonaws.com")],
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


def _add_alarms(scope: Construct, experiment: Experiment, topic: sns.Topic) -> list[str]:
    """Their ARNs."""
    arns: dict[str, str] = {}
    for alarm in alarms(experiment):
        notices = [topic.topic_arn] if alarm.notifies else None
        about: dict[str, Any] = {"alarm_actions": notices, "ok_actions": notices}
        if isinstance(alarm, CompositeAlarm):
            rule = " AND ".join(f'ALARM("{arns[part]}")' for part in alarm.parts)
            about |= {"alarm_description": alarm.message, "alarm_rule": f"({rule})"}
            made: Any = cloudwatch.CfnCompositeAlarm(scope, alarm.name, alarm_name=alarm.name, **about)
        else:
            made = _Alarm(
                scope,
                alarm.name,
                alarm_name=alarm.name,
                alarm_description=alarm.description,
                comparison_operator=alarm.comparison,
                threshold=alarm.threshold,
                evaluation_periods=alarm.periods,
                datapoints_to_alarm=alarm.breaching,
                treat_missing_data=alarm.missing,
                **about,
                **_watched(alarm),
            )
        arns[alarm.name] = made.attr_arn
    return [*arns.values()]


def _watched(alarm: MetricAlarm) -> dict[str, Any]:
    """One metric, or an expression, over metrics or by itself."""
    metrics = [_metric(source) for source in alarm.sources]
    if not alarm.expression:
        return {**metrics[0], "statistic": alarm.statistic, "period": PERIOD_S}
    expression = _Alarm.MetricDataQueryProperty(
        id="expr_1",
        expression=alarm.expression,
        label=alarm.label,
        period=None if metrics else PERIOD_S,
        return_data=True,
    )
    stats = (
        _Alarm.MetricStatProperty(
            metric=_Alarm.MetricProperty(**metric), period=PERIOD_S, stat=alarm.statistic
        )
        for metric in metrics
    )
    queries = [
        _Alarm.MetricDataQueryProperty(id=f"m{place}", metric_stat=stat, return_data=False)
        for place, stat in enumerate(stats)
    ]
    return {"metrics": [expression, *queries]}


def _metric(source: Source) -> dict[str, Any]:
    dimensions = [
        _Alarm.DimensionProperty(name=name, value=value) for name, value in sorted(source.dimensions.items())
    ]
    return {"namespace": source.namespace, "metric_name": source.name, "dimensions": dimensions}
