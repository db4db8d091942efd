"""The rows of the dashboard, made from the registry of metrics, and what it says in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from benchmark.metrics import (
    COMPARED,
    ERRORS,
    OUTPUT_TOKENS_PER_S,
    PUBLISHED,
    TOKENS_PER_STEP,
    Metric,
)
from experiment.cost import arm_usd_per_hour
from experiment.naming import cluster_name, namespace
from infra.monitoring import container_insights as insights
from infra.monitoring.widgets import COLUMNS, Row, Widget, arm_lines, cost_lines, graph, ratio_lines

if TYPE_CHECKING:
    from experiment import Experiment


_MOST_NAMES = 8


def introduction(experiment: Experiment, *, page: int, pages: int, left_out: str) -> str:
    """What is compared, and what kind of numbers these are."""
    return (
        f"# {experiment.name}{f' ({page} of {pages})' if pages > 1 else ''}\n"
        f"{experiment.description}\n\n"
        f"Baseline **{experiment.baseline.name}** against {_others(experiment)}, by class of prompts. Time per output "
        "token is per token, not per streamed chunk. In the ratios, above 1 means better than the baseline.\n\n"
        "The values are *measured* when the benchmark ran against this cluster. They are *emulated* when someone "
        "published a run of the emulated arms here: CloudWatch cannot tell the two apart, the run's summary.json can. "
        "Intervals and verdicts stand in the report of a run, and so does the exact cost: the one here is an estimate, "
        "the arm's list price over concurrency times the mean throughput of a request."
        + (f" So many arms leave no room for {left_out}." if left_out else "")
    )


def node_words(experiment: Experiment) -> str:
    """What Container Insights can and cannot say about the devices."""
    if experiment.baseline.serving.allocation == "device-plugin":
        return (
            "## Nodes\nFrom Container Insights. The device plugin hands out the devices, so the agent knows which pod "
            "holds which NeuronCores."
        )
    return (
        "## Nodes\nFrom Container Insights, **by node only**: devices are held by resource claims (DRA), and the agent "
        "learns from the device plugin alone which pod holds which NeuronCores. The Neuron documentation says that its "
        "monitor does not support DRA yet, so an empty graph of NeuronCores does not mean that they are idle."
    )


def _others(experiment: Experiment) -> str:
    names = [arm.name for arm in experiment.served_arms if arm is not experiment.baseline]
    if not names:
        return "no other arm"
    left = len(names) - _MOST_NAMES
    return f"**{', '.join(names[:_MOST_NAMES])}**{f' and {left} more' if left > 0 else ''}"


HEADLINES: tuple[Metric, ...] = (*COMPARED, TOKENS_PER_STEP)
"""Metrics that have a row of ratios."""
FURTHER: tuple[Metric, ...] = tuple(m for m in PUBLISHED if m not in HEADLINES and m is not ERRORS)
LINES_IN_GRAPH = 24
"""More lines than that cannot be told apart, so that the classes are spread over several graphs."""
_GRAPH_HEIGHT = 7


@dataclass(frozen=True, kw_only=True)
class Detail:
    """How much is shown; a large sweep has to do with less, because a template holds 1 MB."""

    percentiles: tuple[str, ...]
    further: bool
    """Whether metrics that nobody compares have rows."""
    left_out: str
    """In words; empty where it is nothing."""

    def statistics(self, metric: Metric) -> tuple[str, ...]:
        """The registry's own statistic first where it is no percentile, then the percentiles."""
        own = () if metric.statistic.startswith("p") else (metric.statistic,)
        return (*own, *self.percentiles)


DETAILS = (
    Detail(percentiles=("p50", "p90", "p99"), further=True, left_out=""),
    Detail(percentiles=("p50", "p90", "p99"), further=False, left_out="metrics that are not compared"),
    Detail(percentiles=("p50", "p99"), further=False, left_out="p90, and metrics that are not compared"),
    Detail(percentiles=("p50",), further=False, left_out="p90, p99, and metrics that are not compared"),
)
"""The most first."""


def metric_rows(experiment: Experiment, detail: Detail) -> Iterator[Row]:
    """For each metric, concurrency and portion of the classes: the arms, and below them their ratio to the baseline;
    a column for each statistic."""
    for metric, concurrency in product(HEADLINES, experiment.benchmark.concurrency):
        for classes in _portions(experiment):
            yield _arms_row(experiment, metric, concurrency, classes, detail.statistics(metric))
            yield _ratio_row(experiment, metric, concurrency, classes, detail.statistics(metric))


def cost_and_error_rows(experiment: Experiment) -> Iterator[Row]:
    """Dollars per million output tokens, share of requests that failed, how many failed."""
    prices = [arm_usd_per_hour(experiment, arm) for arm in experiment.served_arms]
    region = experiment.cluster.region
    for concurrency, classes in product(experiment.benchmark.concurrency, _portions(experiment)):
        costs = cost_lines(
            experiment,
            OUTPUT_TOKENS_PER_S,
            classes=classes,
            concurrency=concurrency,
            usd_per_hour=prices,
        )
        errors = arm_lines(experiment, ERRORS, classes=classes, concurrency=concurrency)
        width = COLUMNS // 3
        yield Row(
            height=_GRAPH_HEIGHT,
            widgets=(
                graph(
                    title=f"USD per million output tokens, estimate, concurrency {concurrency} (lower is better)",
                    lines=costs,
                    statistic="Average",
                    region=region,
                    width=width,
                ),
                graph(
                    title=f"{ERRORS.cloudwatch_name} Average: share of requests that failed, concurrency {concurrency}",
                    lines=errors,
                    statistic="Average",
                    region=region,
                    width=width,
                ),
                graph(
                    title=f"{ERRORS.cloudwatch_name} Sum: requests that failed, concurrency {concurrency}",
                    lines=errors,
                    statistic="Sum",
                    region=region,
                    width=width,
                ),
            ),
        )


def further_rows(experiment: Experiment, detail: Detail) -> Iterator[Row]:
    """What is published and compared by nobody."""
    if not detail.further:
        return
    for metric, concurrency in product(FURTHER, experiment.benchmark.concurrency):
        for classes in _portions(experiment):
            yield _arms_row(experiment, metric, concurrency, classes, detail.statistics(metric))


def node_rows(experiment: Experiment) -> Iterator[Row]:
    """Nodes and NeuronCores; by pod only where the device plugin hands the devices out."""
    yield _insights_row(experiment, "Nodes", insights.NODE_METRICS)
    yield _insights_row(experiment, "Trainium nodes", insights.NEURON_NODE_METRICS)
    if experiment.baseline.serving.allocation == "device-plugin":
        values = {"ClusterName": cluster_name(experiment), "Namespace": namespace(experiment)}
        (metric,) = insights.NEURON_POD_METRICS
        lines = [
            insights.insights_line(metric, {**values, "PodName": arm.name}, label=arm.name)
            for arm in experiment.served_arms
        ]
        yield _full_row(experiment, metric.title, lines)


def _portions(experiment: Experiment) -> list[tuple[str, ...]]:
    """The classes, as many together as a graph can show."""
    size = max(1, LINES_IN_GRAPH // max(1, len(experiment.served_arms)))
    classes = experiment.classes
    return [tuple(classes[start : start + size]) for start in range(0, len(classes), size)]


def _arms_row(
    experiment: Experiment, metric: Metric, concurrency: int, classes: tuple[str, ...], shown: tuple[str, ...]
) -> Row:
    lines = arm_lines(experiment, metric, classes=classes, concurrency=concurrency)
    return Row(
        height=_GRAPH_HEIGHT,
        widgets=tuple(
            graph(
                title=f"{metric.cloudwatch_name} {statistic}, {metric.unit}, concurrency {concurrency} "
                f"({metric.better} is better)",
                width=COLUMNS // len(shown),
                region=experiment.cluster.region,
                lines=lines,
                statistic=statistic,
            )
            for statistic in shown
        ),
    )


def _ratio_row(
    experiment: Experiment, metric: Metric, concurrency: int, classes: tuple[str, ...], shown: tuple[str, ...]
) -> Row:
    lines = ratio_lines(experiment, metric, classes=classes, concurrency=concurrency)
    return Row(
        height=_GRAPH_HEIGHT,
        widgets=tuple(
            graph(
                title=f"{metric.cloudwatch_name} {statistic}: times better than {experiment.baseline.name}",
                width=COLUMNS // len(shown),
                region=experiment.cluster.region,
                lines=lines,
                statistic=statistic,
                level=1,
                level_label="no difference",
            )
            for statistic in shown
        ),
    )


def _insights_row(experiment: Experiment, subject: str, metrics: tuple[insights.InsightsMetric, ...]) -> Row:
    """A narrow graph for each metric: their units have nothing in common."""
    values = {"ClusterName": cluster_name(experiment)}
    width = COLUMNS // len(metrics)
    widgets = [
        graph(
            title=f"{subject}: {metric.title}",
            width=width,
            region=experiment.cluster.region,
            lines=[insights.insights_line(metric, values)],
            statistic=metric.statistic,
        )
        for metric in metrics
    ]
    return Row(height=_GRAPH_HEIGHT, widgets=tuple(widgets))


def _full_row(experiment: Experiment, title: str, lines: list[list[object]]) -> Row:
    widget: Widget = graph(
        title=title, width=COLUMNS, region=experiment.cluster.region, lines=lines, statistic="Average"
    )
    return Row(height=_GRAPH_HEIGHT, widgets=(widget,))
