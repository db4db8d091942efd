"""Dashboards and alarms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch

from infra.constructs.experiment_alarms import ExperimentAlarms
from infra.dashboard.pages import dashboard_pages
from infra.dashboard.service import service_page
from infra.stacks.experiment_stack import ExperimentStack

if TYPE_CHECKING:
    from constructs import Construct

    from experiment import Experiment
    from infra.settings import Settings


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
