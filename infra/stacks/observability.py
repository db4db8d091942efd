"""Dashboards and alarms, and the topic that these report to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from experiment.naming import notices_topic
from infra.monitoring.alarms import CompositeAlarm, MetricAlarm, alarms
from infra.monitoring.pages import dashboard_pages, service_page
from infra.stacks.experiment_stack import ExperimentStack

if TYPE_CHECKING:
    from experiment import Experiment

if TYPE_CHECKING:
    from constructs import Construct

    from experiment import Experiment
    from infra.settings import Settings


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
        self._notices = [self.topic.topic_arn]
        self.arns: list[str] = []
        """Of every alarm, in the order of `infra.monitoring.alarms`."""
        stack = cdk.Stack.of(self)
        arn_of_alarms = f"arn:{stack.partition}:cloudwatch:{stack.region}:{stack.account}:alarm"
        made: dict[str, cdk.CfnResource] = {}
        for alarm in alarms(experiment, system_nodes=system_nodes):
            if isinstance(alarm, CompositeAlarm):
                made[alarm.name] = self._composite(alarm, made)
            else:
                made[alarm.name] = self._metric(alarm)
            self.arns.append(f"{arn_of_alarms}:{alarm.name}")

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
            topic_name=notices_topic(experiment),
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

    def _metric(self, alarm: MetricAlarm) -> cdk.CfnResource:
        # The queries are already in CloudFormation's own words, which are those of the dashboards.
        return cdk.CfnResource(
            self,
            alarm.name,
            type="AWS::CloudWatch::Alarm",
            properties={
                "AlarmName": alarm.name,
                "AlarmDescription": f"{alarm.message} Missing data: {alarm.missing}, {alarm.missing_because}.",
                "Metrics": [{"ReturnData": True, **query} for query in alarm.queries],
                "ComparisonOperator": alarm.comparison,
                "Threshold": alarm.threshold,
                "EvaluationPeriods": alarm.periods,
                "DatapointsToAlarm": alarm.breaching,
                "TreatMissingData": alarm.missing,
                **({"AlarmActions": self._notices, "OKActions": self._notices} if alarm.notifies else {}),
            },
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
            alarm_actions=self._notices,
            ok_actions=self._notices,
        )
        for part in alarm.parts:
            composite.add_resource_dependency(
                made[part]
            )  # the rule names them, which CloudFormation does not see
        return composite


class ObservabilityStack(ExperimentStack):
    """It works before the first run and without the cluster."""

    def __init__(
        self,
        scope: Construct,
        part: str,
        *,
        experiment: Experiment,
        settings: Settings,
        alarm_email: str = "",
    ) -> None:
        super().__init__(scope, part, experiment=experiment, description="dashboards and alarms")
        alarms = ExperimentAlarms(
            self, "Alarms", experiment=experiment, system_nodes=settings.system_nodes, email=alarm_email
        )
        for number, page in enumerate(dashboard_pages(experiment, alarm_arns=alarms.arns), start=1):
            cloudwatch.CfnDashboard(
                self,
                "Dashboard" if number == 1 else f"Dashboard{number}",
                dashboard_name=page.name,
                dashboard_body=page.body,
            )
        if (service := service_page(experiment)) is not None:
            cloudwatch.CfnDashboard(
                self, "ServiceDashboard", dashboard_name=service.name, dashboard_body=service.body
            )
        cdk.CfnOutput(self, "NoticesTopic", value=alarms.topic.topic_arn)
