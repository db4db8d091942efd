"""Dashboards, alarms, and the log groups that the agent in the cluster would otherwise make and keep for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch

from infra.constructs.experiment_alarms import ExperimentAlarms
from infra.constructs.kept_logs import log_group
from infra.dashboard import dashboard_pages
from infra.dashboard.container_insights import LOG_GROUPS
from infra.naming import container_insights_log_group
from infra.stacks.experiment_stack import ExperimentStack

if TYPE_CHECKING:
    from constructs import Construct

    from experiment import Experiment
    from infra.settings import Settings


class ObservabilityStack(ExperimentStack):
    """It works before the first run and without the cluster, and is there before the cluster: an agent that finds no
    log group makes one without retention."""

    def __init__(
        self,
        scope: Construct,
        part: str,
        *,
        experiment: Experiment,
        settings: Settings,
        alarm_email: str = "",
    ) -> None:
        super().__init__(scope, part, experiment=experiment, description="dashboards, alarms, log groups")
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
        for kind in LOG_GROUPS:
            log_group(
                self,
                f"{kind.capitalize()}Logs",
                days=settings.log_days,
                name=container_insights_log_group(experiment, kind),
            )
        cdk.CfnOutput(self, "NoticesTopic", value=alarms.topic.topic_arn)
