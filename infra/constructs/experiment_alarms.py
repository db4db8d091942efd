"""The alarms of an experiment, and the topic that they report to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from infra.alarms import CompositeAlarm, MetricAlarm, alarms

if TYPE_CHECKING:
    from experiment import Experiment

_CLOUDWATCH = "cloudwatch.amazonaws.com"


class ExperimentAlarms(Construct):
    """Alarms, and an encrypted topic; with an address, who reads it gets a mail to confirm first."""

    def __init__(
        self, scope: Construct, construct_id: str, *, experiment: Experiment, system_nodes: int, email: str
    ) -> None:
        super().__init__(scope, construct_id)
        self.topic = self._topic(experiment)
        if email:
            self.topic.add_subscription(subscriptions.EmailSubscription(email))
        self.arns: list[str] = []
        """Of every alarm, in the order of `infra.alarms`."""
        made: dict[str, cdk.CfnResource] = {}
        for alarm in alarms(experiment, system_nodes=system_nodes):
            if isinstance(alarm, CompositeAlarm):
                made[alarm.name] = self._composite(alarm, made)
            else:
                made[alarm.name] = self._metric(alarm)
            stack = cdk.Stack.of(self)
            self.arns.append(
                f"arn:{stack.partition}:cloudwatch:{stack.region}:{stack.account}:alarm:{alarm.name}"
            )

    def _topic(self, experiment: Experiment) -> sns.Topic:
        """CloudWatch can publish only under a key whose policy lets it, so AWS's own key for SNS does not do.

        https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Notify_Users_Alarm_Changes.html
        """
        stack = cdk.Stack.of(self)
        key = kms.Key(
            self,
            "Key",
            description=f"Notices of {experiment.name}",
            enable_key_rotation=True,
            removal_policy=cdk.RemovalPolicy.DESTROY,  # it opens nothing once the topic is gone
        )
        ours: dict[str, Any] = {"StringEquals": {"aws:SourceAccount": stack.account}}
        key.add_to_resource_policy(
            iam.PolicyStatement(
                principals=[iam.ServicePrincipal(_CLOUDWATCH)],
                actions=["kms:Decrypt", "kms:GenerateDataKey*"],
                resources=["*"],  # in the policy of a key: this key
                conditions=ours,
            )
        )
        topic = sns.Topic(
            self,
            "Notices",
            topic_name=f"{experiment.name}-notices",
            master_key=key,
            enforce_ssl=True,
        )
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                principals=[iam.ServicePrincipal(_CLOUDWATCH)],
                actions=["sns:Publish"],
                resources=[topic.topic_arn],
                conditions=ours,
            )
        )
        return topic

    def _metric(self, alarm: MetricAlarm) -> cloudwatch.CfnAlarm:
        return cloudwatch.CfnAlarm(
            self,
            alarm.name,
            alarm_name=alarm.name,
            alarm_description=f"{alarm.message} Missing data: {alarm.missing}, {alarm.missing_because}.",
            metrics=[_query(query) for query in alarm.queries],
            comparison_operator=alarm.comparison,
            threshold=alarm.threshold,
            evaluation_periods=alarm.periods,
            datapoints_to_alarm=alarm.breaching,
            treat_missing_data=alarm.missing,
            alarm_actions=[self.topic.topic_arn] if alarm.notifies else None,
            ok_actions=[self.topic.topic_arn] if alarm.notifies else None,
        )

    def _composite(
        self, alarm: CompositeAlarm, made: dict[str, cdk.CfnResource]
    ) -> cloudwatch.CfnCompositeAlarm:
        composite = cloudwatch.CfnCompositeAlarm(
            self,
            alarm.name,
            alarm_name=alarm.name,
            alarm_description=alarm.message,
            alarm_rule=" AND ".join(f'ALARM("{part}")' for part in alarm.parts),
            alarm_actions=[self.topic.topic_arn],
            ok_actions=[self.topic.topic_arn],
        )
        for part in alarm.parts:
            composite.add_resource_dependency(
                made[part]
            )  # the rule names them, which CloudFormation does not see
        return composite


def _query(query: dict[str, Any]) -> cloudwatch.CfnAlarm.MetricDataQueryProperty:
    found = query.get("MetricStat")
    stat = found and cloudwatch.CfnAlarm.MetricStatProperty(
        metric=cloudwatch.CfnAlarm.MetricProperty(
            namespace=found["Metric"]["Namespace"],
            metric_name=found["Metric"]["MetricName"],
            dimensions=[
                cloudwatch.CfnAlarm.DimensionProperty(name=one["Name"], value=one["Value"])
                for one in found["Metric"]["Dimensions"]
            ],
        ),
        period=found["Period"],
        stat=found["Stat"],
    )
    return cloudwatch.CfnAlarm.MetricDataQueryProperty(
        id=query["Id"],
        expression=query.get("Expression"),
        label=query.get("Label"),
        period=query.get("Period"),
        metric_stat=stat,
        return_data=query.get("ReturnData", True),
    )
