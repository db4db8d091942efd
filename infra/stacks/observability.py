"""The dashboard."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aws_cdk import aws_cloudwatch as cloudwatch

from infra.dashboard_body import dashboard_body
from infra.naming import dashboard_name
from infra.stacks.experiment_stack import ExperimentStack

if TYPE_CHECKING:
    from constructs import Construct

    from experiment import Experiment


class ObservabilityStack(ExperimentStack):
    """A dashboard over what the benchmark publishes; it works before the first run and without the cluster."""

    def __init__(self, scope: Construct, part: str, *, experiment: Experiment) -> None:
        super().__init__(scope, part, experiment=experiment, description="dashboard")
        cloudwatch.CfnDashboard(
            self,
            "Dashboard",
            dashboard_name=dashboard_name(experiment),
            dashboard_body=json.dumps(dashboard_body(experiment), separators=(",", ":")),
        )
