"""The alarms of an experiment, and why each treats missing data as it does.

A run publishes while it is on: `RunActive` every minute, a last 0 when it ends, and its requests as they finish. So the
requests show that nothing happens, `RunActive` or the nodes show that something should, and a composite alarm joins the two:
neither metric math nor its FILL sees a metric that has no point at all in the range.
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/alarms-and-missing-data.html
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Literal

from infra.monitoring.panels import INSIGHTS, NODE_COUNT, CloudWatchMetric, Watched, cell, watched
from trnspec.benchmark.metrics import ERRORS, PERIOD_S, RUN_ACTIVE, Metric
from trnspec.experiment import Experiment
from trnspec.experiment.arms import Arm
from trnspec.experiment.cost import SYSTEM_NODES
from trnspec.experiment.naming import cluster_name, metrics_namespace, schedule_group

MAX_METRICS_PER_ALARM = 10
"""https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_limits.html"""
_GREATEST = "MAX(METRICS())"
QUIET_PERIODS = 3
"""Periods without a finished request that raise the alarm during a run: no request takes a quarter of an hour."""
IDLE_PERIODS = 12
"""Periods without a finished request that raise the alarm while a node is paid: an hour. Compiling is quiet too and takes longer, which the message says."""
_FAILED = (
    "TargetErrorCount",
    "InvocationsSentToDeadLetterCount",
    "InvocationsFailedToBeSentToDeadLetterCount",
    "InvocationDroppedCount",
)
"""The first counts each attempt that EKS refused; a schedule repeats it for up to two hours, in which the nodes bill. The others count
schedules that gave up, in one of three cases: with its queue, with a queue that refuses, without one
(https://docs.aws.amazon.com/scheduler/latest/UserGuide/monitoring-cloudwatch.html)."""


@dataclass(frozen=True, kw_only=True)
class MetricAlarm:
    name: str
    message: str
    """What it means and what to do, for the person who gets the mail."""
    sources: tuple[CloudWatchMetric, ...] = ()
    """The metrics of `expression`; without an expression, the one metric that is watched."""
    statistic: str = ""
    """The statistic of the sources."""
    expression: str = ""
    """An expression of metric math or of Metrics Insights."""
    label: str | None = None
    comparison: Literal["GreaterThanThreshold", "LessThanThreshold"] = "GreaterThanThreshold"
    threshold: float
    periods: int = 3
    breaching: int = 2
    """How many of the `periods` must be beyond the threshold."""
    missing: Literal["breaching", "notBreaching", "ignore"] = "notBreaching"
    missing_because: str
    notifies: bool = True
    """False where only a composite alarm uses its state."""

    @property
    def description(self) -> str:
        """The message with the treatment of missing data, which the number alone does not say."""
        return f"{self.message} Missing data: {self.missing}, {self.missing_because}."


@dataclass(frozen=True, kw_only=True)
class CompositeAlarm:
    """An alarm that is on while all of its parts are."""

    name: str
    message: str
    parts: tuple[str, ...]

    notifies = True


Alarm = MetricAlarm | CompositeAlarm


def alarms(experiment: Experiment) -> tuple[Alarm, ...]:
    """Return all alarms, the parts before their composites."""
    limited = [one for one in watched(experiment).values() if one.limit < inf]
    by_arm = (
        alarm
        for one, makes in zip(limited, (_error_rate, _slow), strict=True)
        for arm in one.arms
        for alarm in makes(experiment, one, arm)
    )
    return (*by_arm, *_no_data(experiment), *_idle_node(experiment), _failed_switch_off(experiment))


def _error_rate(experiment: Experiment, one: Watched, arm: Arm) -> Iterator[MetricAlarm]:
    """Yield the alarm on the share of an arm's requests that fail: `Errors` is 1 or 0 for each request, so its mean is the share."""
    yield MetricAlarm(
        name=f"{experiment.name}-error-rate-{arm.name}",
        message=f"More than {one.limit:.0%} of the requests to {arm.name} fail: look at its pod's log.",
        expression=_over_all_cells(experiment, one.metric, "AVG", arm),
        threshold=one.limit,
        missing_because="without requests nothing fails",
    )


def _slow(experiment: Experiment, one: Watched, arm: Arm) -> Iterator[MetricAlarm]:
    """Yield alarms on the p99 of a time in the worst cell of an arm. Percentiles cannot be combined over cells, so there are several
    alarms, of ten metrics each."""
    # One cell at a time is loaded, so the others have no data point; max over an array ignores those.
    cells = [
        cell(experiment, one.metric, arm=arm, class_name=name, concurrency=concurrency)
        for name, concurrency in product(experiment.classes, experiment.benchmark.concurrency)
    ]
    for number, start in enumerate(range(0, len(cells), MAX_METRICS_PER_ALARM), start=1):
        yield MetricAlarm(
            name=f"{experiment.name}-p99-tpot-{arm.name}" + (f"-{number}" if number > 1 else ""),
            message=f"One token in a hundred of {arm.name} takes longer than {one.limit:g} s in some class of prompts.",
            sources=tuple(cells[start : start + MAX_METRICS_PER_ALARM]),
            statistic="p99",
            expression=_GREATEST,
            label=f"worst p99 of {arm.name}",
            threshold=one.limit,
            missing_because="without requests nothing is slow",
        )


def _no_data(experiment: Experiment) -> tuple[Alarm, ...]:
    """Return the alarm for a run in which no request finishes, after its parts."""
    run = {"Experiment": experiment.name}
    active = MetricAlarm(
        name=f"{experiment.name}-run-is-on",
        message="Not a fault: a benchmark run is on.",
        sources=(CloudWatchMetric(metrics_namespace(experiment), RUN_ACTIVE.cloudwatch_name, run),),
        statistic=RUN_ACTIVE.statistic,
        threshold=0,
        periods=1,
        breaching=1,
        missing="ignore",
        missing_because="a run that vanishes publishes nothing more: it counts as running until its end is published",
        notifies=False,
    )
    silence = _silence(experiment, "no-requests", QUIET_PERIODS)
    message = (
        f"A benchmark run is on, and no request has finished for {QUIET_PERIODS * PERIOD_S // 60} minutes: the pod is gone, an arm "
        "hangs, or nothing is published. When the run is over, ./trnspec nodes 0 says so."
    )
    parts = (active.name, silence.name)
    return active, silence, CompositeAlarm(name=f"{experiment.name}-no-data", message=message, parts=parts)


def _idle_node(experiment: Experiment) -> tuple[Alarm, ...]:
    """Return the alarm for Trn2 nodes that are paid for while no request finishes, after its parts."""
    silence = _silence(experiment, "no-requests-for-long", IDLE_PERIODS)
    paid = MetricAlarm(
        name=f"{experiment.name}-paid-nodes",
        message="Not a fault: Trn2 nodes run.",
        sources=(CloudWatchMetric(INSIGHTS, NODE_COUNT.name, {"ClusterName": cluster_name(experiment)}),),
        statistic=NODE_COUNT.statistic,
        threshold=SYSTEM_NODES,
        periods=IDLE_PERIODS,
        breaching=IDLE_PERIODS,
        missing_because="no cluster, or no agent in it: nothing is known, and the daily switch-off acts anyway",
        notifies=False,
    )
    message = (
        f"Trn2 nodes have run for {IDLE_PERIODS * PERIOD_S // 60} minutes without a finished request. "
        "Expected while weights are compiled; otherwise set the group of Trn2 nodes to 0."
    )
    name, parts = f"{experiment.name}-paid-node-idle", (paid.name, silence.name)
    return silence, paid, CompositeAlarm(name=name, message=message, parts=parts)


def _failed_switch_off(experiment: Experiment) -> MetricAlarm:
    """Return the alarm for a schedule that could not set the nodes to 0."""
    group = {"ScheduleGroup": schedule_group(experiment)}
    return MetricAlarm(
        name=f"{experiment.name}-switch-off-failed",
        message="A schedule could not set the Trn2 nodes to 0. It tries again for up to two hours, and they may bill on: run "
        "./trnspec nodes 0. What it gave up is in the queue of the nodes stack, with the reason.",
        sources=tuple(CloudWatchMetric("AWS/Scheduler", name, group) for name in _FAILED),
        statistic="Sum",
        expression=_GREATEST,
        label="switch-offs that failed",
        threshold=0,
        periods=1,
        breaching=1,
        missing_because="nothing failed",
    )


def _silence(experiment: Experiment, name: str, periods: int) -> MetricAlarm:
    """Return an alarm that is on while no request of any arm finishes."""
    return MetricAlarm(
        name=f"{experiment.name}-{name}",
        message="Not a fault by itself: no request has finished.",
        expression=_over_all_cells(experiment, ERRORS, "COUNT"),
        comparison="LessThanThreshold",
        threshold=1,
        periods=periods,
        breaching=periods,
        missing="breaching",
        missing_because="missing data is what it looks for",
        notifies=False,
    )


def _over_all_cells(experiment: Experiment, metric: Metric, function: str, arm: Arm | None = None) -> str:
    """Return a Metrics Insights query, since metric math takes ten metrics and there may be more cells.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch-metrics-insights-querylanguage.html
    """
    schema = ", ".join(f'"{text}"' for text in (metrics_namespace(experiment), *metric.dimensions))
    where = f" WHERE Arm = '{arm.name}'" if arm else ""
    return f"SELECT {function}({metric.cloudwatch_name}) FROM SCHEMA({schema}){where}"
