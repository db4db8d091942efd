"""Which alarms an experiment has, and why each treats missing data as it does. Pure.

A run publishes while it is on: `RunActive` every minute, a last 0 when it ends, and its requests as they finish. What is
quiet is therefore known from the requests, that it should not be quiet from `RunActive` or from the nodes, and a
composite alarm joins the two: neither metric math nor its FILL sees a metric that has no point at all in the range.
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/alarms-and-missing-data.html
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from benchmark.metrics import ERRORS, RUN_ACTIVE, TPOT, Metric
from experiment.catalogue.published import SLOWEST_TPOT_S
from experiment.naming import cluster_name, metrics_namespace, schedule_group
from infra.monitoring.container_insights import NAMESPACE as INSIGHTS
from infra.monitoring.container_insights import NODE_COUNT
from infra.monitoring.widgets import cell_dimensions

if TYPE_CHECKING:
    from experiment import Experiment
    from experiment.arms import Arm


PERIOD_S = 300
MOST_METRICS_IN_ALARM = 10
"""https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_limits.html"""
MOST_ERRORS = 0.05
"""Share of failed requests. A healthy arm fails none; one in twenty is past coincidence."""
QUIET_PERIODS = 3
"""Of a run: no request takes a quarter of an hour."""
IDLE_PERIODS = 12
"""Of a paid node: an hour. Compiling is quiet too and takes longer, which the message says."""


@dataclass(frozen=True, kw_only=True)
class MetricAlarm:
    """An alarm over one number, the last of `queries`."""

    name: str
    message: str
    """What it means and what to do, for who gets the mail."""
    queries: tuple[dict[str, Any], ...]
    """As `MetricDataQuery` of CloudFormation."""
    comparison: Literal["GreaterThanThreshold", "LessThanThreshold"]
    threshold: float
    periods: int
    breaching: int
    """How many of the `periods` must be beyond the threshold."""
    missing: Literal["breaching", "notBreaching", "ignore"]
    missing_because: str
    notifies: bool
    """False where only a composite alarm asks for its state."""


@dataclass(frozen=True, kw_only=True)
class CompositeAlarm:
    """In alarm while all of its parts are."""

    name: str
    message: str
    parts: tuple[str, ...]

    @property
    def notifies(self) -> bool:
        """Always: that is what it is for."""
        return True


Alarm = MetricAlarm | CompositeAlarm


def alarms(experiment: Experiment, *, system_nodes: int) -> tuple[Alarm, ...]:
    """All alarms, parts before what is composed of them; `system_nodes` stand whether or not a Trn2 node does."""
    silence, run = no_data(experiment)
    quiet, paid, idle = idle_node(experiment, system_nodes=system_nodes)
    return (
        *(error_rate(experiment, arm) for arm in experiment.served_arms),
        *(alarm for arm in experiment.served_arms for alarm in slow_tokens(experiment, arm)),
        *silence,
        run,
        quiet,
        paid,
        idle,
        failed_switch_off(experiment),
    )


def error_rate(experiment: Experiment, arm: Arm) -> MetricAlarm:
    """The share of an arm's requests that fail: `Errors` is 1 or 0 for each request, so its mean is the share."""
    return MetricAlarm(
        name=_name(experiment, f"error-rate-{arm.name}"),
        message=f"More than {MOST_ERRORS:.0%} of the requests to {arm.name} fail: look at its pod's log.",
        queries=(_query(experiment, "AVG", ERRORS, arm=arm),),
        comparison="GreaterThanThreshold",
        threshold=MOST_ERRORS,
        periods=3,
        breaching=2,
        missing="notBreaching",
        missing_because="without requests none fails",
        notifies=True,
    )


def slow_tokens(experiment: Experiment, arm: Arm) -> Iterator[MetricAlarm]:
    """p99 of the time per output token, the worst of an arm's cells; percentiles cannot be had over cells together.

    As many alarms as ten metrics each demand.
    """
    limit = experiment.benchmark.objectives.get(TPOT.name, SLOWEST_TPOT_S)
    cells = list(product(experiment.classes, experiment.benchmark.concurrency))
    for start in range(0, len(cells), MOST_METRICS_IN_ALARM):
        portion = cells[start : start + MOST_METRICS_IN_ALARM]
        number = start // MOST_METRICS_IN_ALARM + 1
        queries = [
            _metric(experiment, TPOT, "p99", f"m{place}", arm=arm, class_name=name, concurrency=concurrency)
            for place, (name, concurrency) in enumerate(portion)
        ]
        # One cell at a time is loaded, so the others have no point; max over an array passes over those.
        worst = {"Id": "worst", "Expression": "MAX(METRICS())", "Label": f"worst p99 of {arm.name}"}
        yield MetricAlarm(
            name=_name(experiment, f"p99-tpot-{arm.name}" + (f"-{number}" if number > 1 else "")),
            message=f"One token in a hundred of {arm.name} takes longer than {limit:g} s in some class of prompts.",
            queries=(*queries, worst),
            comparison="GreaterThanThreshold",
            threshold=limit,
            periods=3,
            breaching=2,
            missing="notBreaching",
            missing_because="without requests none is slow",
            notifies=True,
        )


def no_data(experiment: Experiment) -> tuple[tuple[MetricAlarm, MetricAlarm], CompositeAlarm]:
    """A run is on, and no request finishes."""
    active = MetricAlarm(
        name=_name(experiment, "run-is-on"),
        message="Not a fault: a benchmark run is on.",
        queries=(
            {
                "Id": "active",
                "MetricStat": {
                    "Metric": _names(
                        metrics_namespace(experiment),
                        RUN_ACTIVE.cloudwatch_name,
                        (("Experiment", experiment.name),),
                    ),
                    "Period": PERIOD_S,
                    "Stat": RUN_ACTIVE.statistic,
                },
                "ReturnData": True,
            },
        ),
        comparison="GreaterThanThreshold",
        threshold=0,
        periods=1,
        breaching=1,
        missing="ignore",
        missing_because="a run that vanishes says nothing more: it counts as on until one says that it has ended",
        notifies=False,
    )
    silence = _silence(experiment, "no-requests", QUIET_PERIODS)
    both = CompositeAlarm(
        name=_name(experiment, "no-data"),
        message="A benchmark run is on, and no request has finished for "
        f"{QUIET_PERIODS * PERIOD_S // 60} minutes: the pod is gone, an arm hangs, or nothing is published. When the "
        "run is over, scripts/scale 0 says so.",
        parts=(active.name, silence.name),
    )
    return (active, silence), both


def idle_node(
    experiment: Experiment, *, system_nodes: int
) -> tuple[MetricAlarm, MetricAlarm, CompositeAlarm]:
    """A Trn2 node is paid for, and no request finishes."""
    silence = _silence(experiment, "no-requests-for-long", IDLE_PERIODS)
    paid = MetricAlarm(
        name=_name(experiment, "paid-nodes"),
        message="Not a fault: Trn2 nodes stand.",
        queries=(
            {
                "Id": "nodes",
                "MetricStat": {
                    "Metric": _names(INSIGHTS, NODE_COUNT.name, (("ClusterName", cluster_name(experiment)),)),
                    "Period": PERIOD_S,
                    "Stat": NODE_COUNT.statistic,
                },
                "ReturnData": True,
            },
        ),
        comparison="GreaterThanThreshold",
        threshold=system_nodes,
        periods=IDLE_PERIODS,
        breaching=IDLE_PERIODS,
        missing="notBreaching",
        missing_because="no cluster, or no agent in it: nothing is known, and the daily switch-off stands anyway",
        notifies=False,
    )
    both = CompositeAlarm(
        name=_name(experiment, "paid-node-idle"),
        message=f"Trn2 nodes have stood for {IDLE_PERIODS * PERIOD_S // 60} minutes without a finished request. "
        "Expected while weights are compiled; otherwise set the group of Trn2 nodes to 0.",
        parts=(paid.name, silence.name),
    )
    return silence, paid, both


_SCHEDULES = "AWS/Scheduler"
_FAILED = (
    "InvocationsSentToDeadLetterCount",
    "InvocationsFailedToBeSentToDeadLetterCount",
    "InvocationDroppedCount",
)
"""Each says that a schedule has given up, in its own case: with its queue, with a queue that refuses, without one
(https://docs.aws.amazon.com/scheduler/latest/UserGuide/monitoring-cloudwatch.html)."""


def failed_switch_off(experiment: Experiment) -> MetricAlarm:
    """A schedule that sets the nodes to 0 could not."""
    group = (("ScheduleGroup", schedule_group(experiment)),)
    counts = tuple(
        {
            "Id": f"m{place}",
            "MetricStat": {"Metric": _names(_SCHEDULES, name, group), "Period": PERIOD_S, "Stat": "Sum"},
            "ReturnData": False,
        }
        for place, name in enumerate(_FAILED)
    )
    return MetricAlarm(
        name=_name(experiment, "switch-off-failed"),
        message="A schedule could not set the Trn2 nodes to 0, and they may bill on: run scripts/scale 0, then read why in "
        "the queue of the nodes stack.",
        queries=(
            *counts,
            {"Id": "failed", "Expression": "MAX(METRICS())", "Label": "switch-offs that failed"},
        ),
        comparison="GreaterThanThreshold",
        threshold=0,
        periods=1,
        breaching=1,
        missing="notBreaching",
        missing_because="nothing failed",
        notifies=True,
    )


def _silence(experiment: Experiment, name: str, periods: int) -> MetricAlarm:
    """No request of any arm has finished."""
    return MetricAlarm(
        name=_name(experiment, name),
        message="Not a fault by itself: no request has finished.",
        queries=(_query(experiment, "COUNT", ERRORS),),
        comparison="LessThanThreshold",
        threshold=1,
        periods=periods,
        breaching=periods,
        missing="breaching",
        missing_because="missing is what it looks for",
        notifies=False,
    )


def _name(experiment: Experiment, what: str) -> str:
    return f"{experiment.name}-{what}"


def _query(
    experiment: Experiment, function: Literal["AVG", "COUNT"], metric: Metric, *, arm: Arm | None = None
) -> dict[str, Any]:
    """A Metrics Insights query over all cells: metric math takes ten metrics, and there may be more cells.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch-metrics-insights-querylanguage.html
    """
    schema = ", ".join(f'"{text}"' for text in (metrics_namespace(experiment), *metric.dimensions))
    where = f" WHERE Arm = '{arm.name}'" if arm else ""
    return {
        "Id": "q",
        "Expression": f"SELECT {function}({metric.cloudwatch_name}) FROM SCHEMA({schema}){where}",
        "Period": PERIOD_S,
        "ReturnData": True,
    }


def _metric(
    experiment: Experiment,
    metric: Metric,
    statistic: str,
    id_: str,
    *,
    arm: Arm,
    class_name: str,
    concurrency: int,
) -> dict[str, Any]:
    where = cell_dimensions(experiment, metric, arm=arm, class_name=class_name, concurrency=concurrency)
    return {
        "Id": id_,
        "MetricStat": {
            "Metric": _names(metrics_namespace(experiment), metric.cloudwatch_name, where),
            "Period": PERIOD_S,
            "Stat": statistic,
        },
        "ReturnData": False,
    }


def _names(namespace: str, name: str, dimensions: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    return {
        "Namespace": namespace,
        "MetricName": name,
        "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions],
    }
