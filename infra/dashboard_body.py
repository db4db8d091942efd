"""What the dashboard shows, as the JSON document that CloudWatch takes. Pure.

Every line names its metric in full: a SEARCH would also find the arms and classes of yesterday's file.
Structure: https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from benchmark.metrics import COMPARED, PUBLISHED, Metric
from experiment.naming import metrics_namespace
from infra.errors import InfraError

if TYPE_CHECKING:
    from experiment import Experiment
    from experiment.arms import Arm

GRID = 24
"""Columns of a dashboard."""
MOST_METRICS_IN_GRAPH = 500
MOST_METRICS = 2500
"""https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_limits.html"""
PERIOD_S = 300
"""Long enough that both requests of most pairs fall into one."""
_TEXT_HEIGHT, _GRAPH_HEIGHT, _RATIO_WIDTH = 5, 7, 9


def dashboard_body(experiment: Experiment) -> dict[str, Any]:
    """A text, then a row for each published metric and concurrency: the arms by class, and their ratio where arms
    are compared by that metric.

    Raises `InfraError` where CloudWatch would refuse it.
    """
    widgets = [_widget(_text(experiment), x=0, y=0, width=GRID, height=_TEXT_HEIGHT, kind="text")]
    y = _TEXT_HEIGHT
    for metric, concurrency in product(PUBLISHED, experiment.benchmark.concurrency):
        compared = metric in COMPARED
        width = GRID - _RATIO_WIDTH if compared else GRID
        arms = _arms_graph(experiment, metric, concurrency)
        widgets.append(_widget(arms, x=0, y=y, width=width, height=_GRAPH_HEIGHT))
        if compared:
            ratio = _ratio_graph(experiment, metric, concurrency)
            widgets.append(_widget(ratio, x=width, y=y, width=_RATIO_WIDTH, height=_GRAPH_HEIGHT))
        y += _GRAPH_HEIGHT
    _refuse_too_many(widgets)
    return {"widgets": widgets}


def dimensions(
    experiment: Experiment, metric: Metric, *, arm: Arm, class_name: str, concurrency: int
) -> list[str]:
    """Names and values in turn, as the benchmark publishes them."""
    values = {
        "Experiment": experiment.name,
        "Arm": arm.name,
        "Class": class_name,
        "Concurrency": str(concurrency),
    }
    return [text for name in metric.dimensions for text in (name, values[name])]


def _arms_graph(experiment: Experiment, metric: Metric, concurrency: int) -> dict[str, Any]:
    lines = [
        _line(experiment, metric, arm, class_name, concurrency, label=f"{class_name} {arm.name}")
        for class_name, arm in product(experiment.classes, experiment.arms)
    ]
    return _graph(
        experiment,
        title=f"{metric.cloudwatch_name} {metric.statistic}, {metric.unit}, concurrency {concurrency} "
        f"({metric.better} is better)",
        lines=lines,
        statistic=metric.statistic,
    )


def _ratio_graph(experiment: Experiment, metric: Metric, concurrency: int) -> dict[str, Any]:
    lines: list[list[Any]] = []
    sources: list[list[Any]] = []
    for row, class_name in enumerate(experiment.classes):
        for column, arm in enumerate(experiment.arms):
            name = f"c{row}a{column}"
            sources.append(_line(experiment, metric, arm, class_name, concurrency, id=name, visible=False))
            if arm is experiment.baseline:
                continue
            base = f"c{row}a0"
            expression = f"{base}/{name}" if metric.better == "lower" else f"{name}/{base}"
            lines.append(
                [{"expression": expression, "id": f"r{row}a{column}", "label": f"{class_name} {arm.name}"}]
            )
    graph = _graph(
        experiment,
        title=f"{metric.cloudwatch_name}: times better than {experiment.baseline.name}",
        lines=[*lines, *sources],
        statistic=metric.statistic,
    )
    return {**graph, "annotations": {"horizontal": [{"label": "no difference", "value": 1}]}}


def _line(
    experiment: Experiment, metric: Metric, arm: Arm, class_name: str, concurrency: int, **rendering: Any
) -> list[Any]:
    where = dimensions(experiment, metric, arm=arm, class_name=class_name, concurrency=concurrency)
    return [metrics_namespace(experiment), metric.cloudwatch_name, *where, rendering]


def _graph(experiment: Experiment, *, title: str, lines: list[list[Any]], statistic: str) -> dict[str, Any]:
    return {
        "title": title,
        "view": "timeSeries",
        "stacked": False,
        "region": experiment.cluster.region,
        "stat": statistic,
        "period": PERIOD_S,
        "yAxis": {"left": {"min": 0, "showUnits": False}},
        "metrics": lines,
    }


def _text(experiment: Experiment) -> dict[str, Any]:
    others = ", ".join(arm.name for arm in experiment.arms[1:])
    return {
        "markdown": f"# {experiment.name}\n"
        f"{experiment.description}\n\n"
        f"Baseline **{experiment.baseline.name}** against **{others}**, by class of prompts. Time per output token is "
        "per token, not per streamed chunk. In the graphs on the right, above 1 means that the treatment is better.\n\n"
        "The values are *measured* when the benchmark ran against this cluster. They are *emulated* when someone "
        "published a run of the emulated arms here: CloudWatch cannot tell the two apart, the run's summary.json can. "
        "Intervals and verdicts stand in the report of a run."
    }


def _widget(
    properties: dict[str, Any], *, x: int, y: int, width: int, height: int, kind: str = "metric"
) -> dict[str, Any]:
    return {"type": kind, "x": x, "y": y, "width": width, "height": height, "properties": properties}


def _refuse_too_many(widgets: list[dict[str, Any]]) -> None:
    counts = [len(widget["properties"].get("metrics", ())) for widget in widgets]
    for count, most, what in (
        (max(counts), MOST_METRICS_IN_GRAPH, "a graph"),
        (sum(counts), MOST_METRICS, "the dashboard"),
    ):
        if count > most:
            raise InfraError(
                f"dashboard: {count} metrics in {what}, CloudWatch takes {most}; use fewer prompt classes or "
                "values of benchmark.concurrency"
            )
