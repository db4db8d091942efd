"""Dashboards and alarms, and the topic that the alarms notify."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cw
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from constructs import Construct

from infra.deployment_file import DeployedExperiment, Settings
from infra.monitoring.alarms import CompositeAlarm, MetricAlarm, alarms
from infra.monitoring.dashboards import dashboard
from infra.monitoring.panels import CloudWatchMetric
from infra.stacks.experiment_stack import ExperimentStack, encryption_key
from trnspec.benchmark.metrics import PERIOD_S
from trnspec.experiment import Experiment
from trnspec.experiment.naming import dashboard_name, notices_topic

_Alarm = cw.CfnAlarm


class ObservabilityStack(ExperimentStack):
    """Dashboard and alarms, which work before the first run and without the cluster.

    They are plain data. CDK's constructs of a higher level would take a call to its process for every line of every graph.
    """

    def __init__(self, scope: Construct, deployed: DeployedExperiment) -> None:
        super().__init__(scope, "observability", "dashboards and alarms", deployed)
        experiment, made = self.experiment, Construct(self, "Alarms")
        self.key, topic = _topic(made, experiment, self.settings)
        if email := self.settings.alarm_email:  # the address first gets a mail to confirm
            sns.Subscription(
                topic,
                email,
                topic=topic,  # pyrefly: ignore[bad-argument-type]  # jsii names parameters of interfaces otherwise
                protocol=sns.SubscriptionProtocol.EMAIL,
                endpoint=email,
            )
        arns = _add_alarms(made, experiment, topic)
        body = dashboard(experiment, arns)
        cw.CfnDashboard(self, "Dashboard", dashboard_name=dashboard_name(experiment), dashboard_body=body)
        cdk.CfnOutput(self, "NoticesTopic", value=topic.topic_arn)


def _topic(scope: Construct, experiment: Experiment, settings: Settings) -> tuple[kms.IKey, sns.Topic]:
    """Return the encrypted topic and its key. CloudWatch can publish only under a key whose policy allows it, which AWS's own key for SNS
    does not.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Notify_Users_Alarm_Changes.html
    """
    key = encryption_key(
        scope,
        "Key",
        settings,
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
    return key, topic


def _add_alarms(scope: Construct, experiment: Experiment, topic: sns.Topic) -> list[str]:
    """Add the alarms and return their ARNs."""
    arns, notices = dict[str, str](), [topic.topic_arn]
    for alarm in alarms(experiment):
        notified: dict[str, Any] = {"alarm_actions": notices, "ok_actions": notices} if alarm.notifies else {}
        if isinstance(alarm, CompositeAlarm):
            rule = " AND ".join(f'ALARM("{arns[part]}")' for part in alarm.parts)
            made: Any = cw.CfnCompositeAlarm(
                scope,
                alarm.name,
                alarm_name=alarm.name,
                alarm_description=alarm.message,
                alarm_rule=f"({rule})",
                **notified,
            )
        else:
            made = cw.CfnAlarm(scope, alarm.name, alarm_name=alarm.name, **_watching(alarm), **notified)
        arns[alarm.name] = made.attr_arn
    return [*arns.values()]


def _watching(alarm: MetricAlarm) -> dict[str, Any]:
    """Return the properties of an alarm on one metric or on an expression."""
    judged = {
        "alarm_description": alarm.description,
        "comparison_operator": alarm.comparison,
        "threshold": alarm.threshold,
        "evaluation_periods": alarm.periods,
        "datapoints_to_alarm": alarm.breaching,
        "treat_missing_data": alarm.missing,
    }
    metrics = [_metric(source) for source in alarm.sources]
    if not alarm.expression:
        return {**judged, **metrics[0], "statistic": alarm.statistic, "period": PERIOD_S}
    result = _Alarm.MetricDataQueryProperty(
        id="expr_1",
        expression=alarm.expression,
        return_data=True,
        label=alarm.label or None,
        period=None if metrics else PERIOD_S,
    )
    queries = [
        _Alarm.MetricDataQueryProperty(
            id=f"m{place}",
            metric_stat=_Alarm.MetricStatProperty(
                metric=_Alarm.MetricProperty(**metric), period=PERIOD_S, stat=alarm.statistic
            ),
            return_data=False,
        )
        for place, metric in enumerate(metrics)
    ]
    return {**judged, "metrics": [result, *queries]}


def _metric(source: CloudWatchMetric) -> dict[str, Any]:
    dimensions = [
        _Alarm.DimensionProperty(name=name, value=value) for name, value in sorted(source.dimensions.items())
    ]
    return {"namespace": source.namespace, "metric_name": source.name, "dimensions": dimensions}
