"""Dashboards and alarms, and the topic that the alarms notify."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from constructs import Construct

from experiment import Experiment
from experiment.naming import notices_topic
from infra.constructs.conventions import encryption_key
from infra.deployment_file import Lasting
from infra.monitoring.alarms import Alarm, alarms
from infra.monitoring.pages import Page, dashboard_pages, service_page
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
        decided = alarms(experiment)
        _add_alarms(made, decided, topic.topic_arn)
        here = f"arn:{self.partition}:cloudwatch:{self.region}:{self.account}:alarm"
        pages = dashboard_pages(experiment, alarm_arns=[f"{here}:{alarm.name}" for alarm in decided])
        for number, page in enumerate(pages, start=1):
            self._add_dashboard("Dashboard" if number == 1 else f"Dashboard{number}", page)
        if (service := service_page(experiment)) is not None:
            self._add_dashboard("ServiceDashboard", service)
        cdk.CfnOutput(self, "NoticesTopic", value=topic.topic_arn)

    def _add_dashboard(self, construct_id: str, page: Page) -> None:
        cdk.CfnResource(
            self,
            construct_id,
            type="AWS::CloudWatch::Dashboard",
            properties={"DashboardName": page.name, "DashboardBody": page.body},
        )


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


def _add_alarms(scope: Construct, decided: tuple[Alarm, ...], topic: str) -> None:
    """As CloudFormation takes them: its words are those of the dashboards, and the typed classes would only rename them."""
    told: dict[str, Any] = {"AlarmActions": [topic], "OKActions": [topic]}
    made: dict[str, cdk.CfnResource] = {}
    for alarm in decided:
        made[alarm.name] = cdk.CfnResource(
            scope,
            alarm.name,
            type=alarm.type,
            properties={**alarm.properties, **(told if alarm.notifies else {})},
        )
        for part in alarm.parts:
            # A composite's rule names them, which CloudFormation does not see.
            made[alarm.name].add_resource_dependency(made[part])
