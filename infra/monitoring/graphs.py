"""The graphs of the dashboards, from the registry of metrics.

A line has no statistic of its own and takes that of its graph, so that one object is drawn in the graphs of all statistics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch

from benchmark.metrics import OUTPUT_TOKENS_PER_S, PERIOD_S, Metric
from core.labels import as_ascii
from experiment import Experiment
from experiment.arms import Arm
from experiment.cost import arm_usd_per_hour
from experiment.naming import metrics_namespace
from infra.monitoring.container_insights import NAMESPACE, InsightsMetric
from infra.monitoring.details import cell_dimensions

PERIOD = cdk.Duration.seconds(PERIOD_S)
COLUMNS = 24
GRAPH_HEIGHT = 7


class Cells(NamedTuple):
    """What a graph compares the arms on."""

    classes: tuple[str, ...]
    concurrency: int | None
    """None: every load that a search comes to, or that of a replay."""

    @property
    def at(self) -> str:
        """In words."""
        return "every load" if self.concurrency is None else f"concurrency {self.concurrency}"


class Lines(NamedTuple):
    """What a graph shows."""

    shown: Sequence[cloudwatch.IMetric]
    hidden: int = 0
    """Metrics that only the expressions use; CloudWatch counts them too."""


class Graph(NamedTuple):
    """Lines over time from 0 upward, with a horizontal line at a level where there is one."""

    title: str
    statistic: str
    lines: Lines
    level: tuple[str, float] | None = None


class Row(NamedTuple):
    """Widgets side by side."""

    widgets: Sequence[cloudwatch.IWidget]
    metrics: Sequence[int] = ()
    """Metrics and expressions of each graph."""


def graphs(experiment: Experiment, *shown: Graph) -> Row:
    """A row of graphs, all of one width."""
    widgets = [
        cloudwatch.GraphWidget(
            title=one.title,
            left=list(one.lines.shown),
            statistic=one.statistic,
            period=PERIOD,
            region=experiment.cluster.region,
            width=COLUMNS // len(shown),
            height=GRAPH_HEIGHT,
            left_y_axis=cloudwatch.YAxisProps(min=0, show_units=False),
            left_annotations=(
                [cloudwatch.HorizontalAnnotation(label=one.level[0], value=one.level[1])]
                if one.level
                else None
            ),
        )
        for one in shown
    ]
    return Row(widgets, [len(one.lines.shown) + one.lines.hidden for one in shown])


def text(markdown: str, *, height: int) -> Row:
    """A row of text over the whole width."""
    return Row([cloudwatch.TextWidget(markdown=markdown, width=COLUMNS, height=height)])


def calculated(
    expression: str, label: str | None, using: Mapping[str, cloudwatch.IMetric] | None = None
) -> cloudwatch.MathExpression:
    """Metric math, or a search."""
    return cloudwatch.MathExpression(
        expression=expression,
        label=label,
        using_metrics=dict(using or {}),
        period=PERIOD,
    )


def insights(
    metric: InsightsMetric, values: Mapping[str, str], *, label: str | None = None
) -> cloudwatch.Metric:
    """A metric of the cluster's agent; `values` holds at least its dimensions."""
    return cloudwatch.Metric(
        namespace=NAMESPACE,
        metric_name=metric.name,
        dimensions_map={name: values[name] for name in metric.dimensions},
        label=label or metric.title,
    )


def sources(experiment: Experiment, metric: Metric, cells: Cells) -> dict[str, cloudwatch.Metric]:
    """Every arm on every class, by the id that expressions use; none where the load is not known beforehand."""
    if cells.concurrency is None:
        return {}
    return {
        f"c{row}a{column}": cloudwatch.Metric(
            namespace=metrics_namespace(experiment),
            metric_name=metric.cloudwatch_name,
            dimensions_map=cell_dimensions(
                experiment, metric, arm=arm, class_name=class_name, concurrency=cells.concurrency
            ),
            label=f"{class_name} {arm.name}",
        )
        for row, class_name in enumerate(cells.classes)
        for column, arm in enumerate(experiment.served_arms)
    }


def arm_lines(
    experiment: Experiment,
    metric: Metric,
    cells: Cells,
    statistic: str,
    measured: Mapping[str, cloudwatch.Metric],
) -> Lines:
    """Every arm on every class, as measured; where the load is not known beforehand, a line for each that is found.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/search-expression-syntax.html
    """
    if measured:
        return Lines([*measured.values()])
    schema = ",".join((f'"{metrics_namespace(experiment)}"', *metric.dimensions))
    found = [
        calculated(
            f'SEARCH(\'{{{schema}}} MetricName="{metric.cloudwatch_name}" Arm="{arm.name}" Class="{as_ascii(class_name)}"\', '
            f"'{statistic}', {PERIOD_S})",
            f"{class_name} {arm.name}",
        )
        for class_name, arm in product(cells.classes, experiment.served_arms)
    ]
    return Lines(found)


def ratio_lines(
    experiment: Experiment, metric: Metric, cells: Cells, measured: Mapping[str, cloudwatch.Metric]
) -> Lines:
    """How many times better than the baseline of its batch each other arm is."""

    def ratio(arm: Arm, own: str, base: str) -> str | None:
        if arm is experiment.baseline_of(arm):
            return None
        return f"{base}/{own}" if metric.better == "lower" else f"{own}/{base}"

    return _over(experiment, cells, measured, ratio)


def cost_lines(experiment: Experiment, cells: Cells) -> Lines:
    """Dollars per million output tokens: an arm's price over the concurrency times the throughput of a request.

    An estimate: the report divides by the tokens and the time themselves, which CloudWatch does not hold.
    """

    def usd(arm: Arm, own: str, base: str) -> str:
        return f"{arm_usd_per_hour(experiment, arm) / 3600 * 1e6:.6g}/({cells.concurrency}*{own})"

    return _over(experiment, cells, sources(experiment, OUTPUT_TOKENS_PER_S, cells), usd)


def _over(
    experiment: Experiment,
    cells: Cells,
    measured: Mapping[str, cloudwatch.Metric],
    expression: Callable[[Arm, str, str], str | None],
) -> Lines:
    """Metric math: what `expression` makes of an arm's line and its baseline's."""
    shown, used = [], set[str]()
    arms = experiment.served_arms
    for (row, class_name), (column, arm) in product(enumerate(cells.classes), enumerate(arms)):
        base = arms.index(experiment.baseline_of(arm))
        if (text := expression(arm, f"c{row}a{column}", f"c{row}a{base}")) is not None:
            using = {one: measured[one] for one in re.findall(r"c\d+a\d+", text)}
            used |= using.keys()
            shown.append(calculated(text, f"{class_name} {arm.name}", using))
    return Lines(shown, len(used))
