"""Tells the alarms that no run is on: the benchmark says so when it ends, but not when it is killed outright."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmark.metrics import RUN_ACTIVE
from experiment.naming import metrics_namespace

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.aws import Aws


def say_over(experiment: Experiment, aws: Aws) -> None:
    """`RunActive` 0. The alarm takes the least of a period, so it counts beside a 1 of the same minutes."""
    datum = {
        "MetricName": RUN_ACTIVE.cloudwatch_name,
        "Dimensions": [{"Name": "Experiment", "Value": experiment.name}],
        "Value": 0.0,
        "Unit": RUN_ACTIVE.cloudwatch_unit,
    }
    aws.client("cloudwatch").put_metric_data(Namespace=metrics_namespace(experiment), MetricData=[datum])
