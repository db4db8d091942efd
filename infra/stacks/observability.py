"""Dashboards and alarms, and the topic that the alarms notify."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from constructs import Construct

from infra.deployment_file import DeploymentSettings
from infra.monitoring.alarms import CompositeAlarm, MetricAlarm, alarms
from infra.monitoring.dashboards import dashboards
from infra.monitoring.panels import CloudWatchMetric
from infra.stacks.experiment_stack import ExperimentStack, encryption_key
from trnspec.benchmark.metrics import PERIOD_S
from trnspec.experiment import Experiment
from trnspec.experiment.naming import notices_topic


class ObservabilityStack(ExperimentStack):
    """It works before the first run and without the cluster.

    Alarms and dashboards are written as CloudFormation takes them: they are decided as data, and CDK's own constructs for them
    take a call to its process for every line of every graph.
    """

    def __init__(self, scope: Construct, *, experiment: Experiment, settings: DeploymentSettings) -> None:
        super().__init__(
            scope, "observability", "dashboards and alarms", experiment=experiment, settings=settings
        )
        made = Construct(self, "Alarms")
        topic = _topic(made, experiment, settings)
        if email := settings.alarm_email:  # the address first gets a mail to confirm
            sns.Subscription(
                topic,
                email,
                topic=topic,  # pyrefly: ignore[bad-argument-type]  # jsii names parameters of interfaces otherwise
                protocol=sns.SubscriptionProtocol.EMAIL,
                endpoint=email,
            )
        arns = _add_alarms(made, experiment, topic)
        for construct_id, page in dashboards(experiment, arns).items():
            body = {"DashboardName": page.name, "DashboardBody": page.body}
            cdk.CfnResource(self, construct_id, type="AWS::CloudWatch::Dashboard", properties=body)
        cdk.CfnOutput(self, "NoticesTopic", value=topic.topic_arn)


def _topic(scope: Construct, experiment: Experiment, settings: DeploymentSettings) -> sns.Topic:
    """Encrypted. CloudWatch can publish only under a key whose policy lets it, so AWS's own key for SNS does not do.

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
    return topic


def _add_alarms(scope: Construct, experiment: Experiment, topic: sns.Topic) -> list[str]:
    """Their ARNs."""
    arns: dict[str, str] = {}
    for alarm in alarms(experiment):
        notices = (
            {"AlarmActions": [topic.topic_arn], "OKActions": [topic.topic_arn]} if alarm.notifies else {}
        )
        about = {"AlarmName": alarm.name, **notices}
        if isinstance(alarm, CompositeAlarm):
            rule = " AND ".join(f'ALARM("{arns[part]}")' for part in alarm.parts)
            about |= {"AlarmDescription": alarm.message, "AlarmRule": f"({rule})"}
        else:
            about |= _watching(alarm)
        kind = "CompositeAlarm" if isinstance(alarm, CompositeAlarm) else "Alarm"
        made = cdk.CfnResource(scope, alarm.name, type=f"AWS::CloudWatch::{kind}", properties=about)
        arns[alarm.name] = made.get_att("Arn").to_string()
    return [*arns.values()]


def _watching(alarm: MetricAlarm) -> dict[str, Any]:
    """One metric, or an expression, over metrics or by itself."""
    judged = {
        "AlarmDescription": alarm.description,
        "ComparisonOperator": alarm.comparison,
        "Threshold": alarm.threshold,
        "EvaluationPeriods": alarm.periods,
        "DatapointsToAlarm": alarm.breaching,
        "TreatMissingData": alarm.missing,
    }
    metrics = [_metric(source) for source in alarm.sources]
    if not alarm.expression:
        return {**judged, **metrics[0], "Statistic": alarm.statistic, "Period": PERIOD_S}
    result = {"Id": "expr_1", "Expression": alarm.expression, "ReturnData": True}
    result |= {"Label": alarm.label} if alarm.label else {}
    result |= {} if metrics else {"Period": PERIOD_S}
    queries = [
        {
            "Id": f"m{place}",
            "MetricStat": {"Metric": metric, "Period": PERIOD_S, "Stat": alarm.statistic},
            "ReturnData": False,
        }
        for place, metric in enumerate(metrics)
    ]
    return {**judged, "Metrics": [result, *queries]}


def _metric(source: CloudWatchMetric) -> dict[str, Any]:
    dimensions = [{"Name": name, "Value": value} for name, value in sorted(source.dimensions.items())]
    return {"Namespace": source.namespace, "MetricName": source.name, "Dimensions": dimensions}
