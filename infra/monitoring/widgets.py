"""The shape of a dashboard: rows of widgets on a grid of 24 columns, how many CloudWatch takes, and the lines of a graph.

Structure: https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html
Limits: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_limits.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, NamedTuple

from benchmark.metrics import OUTPUT_TOKENS_PER_S, PERIOD_S, Metric
from experiment import Experiment
from experiment.arms import Arm
from experiment.cost import arm_usd_per_hour
from experiment.naming import metrics_namespace

COLUMNS = 24
MOST_WIDGETS = 500
MOST_METRICS_IN_GRAPH = 500
MOST_METRICS = 2500
"""Of all widgets of a dashboard. Expressions are counted too, since no page of the documentation excludes them."""
GRAPH_HEIGHT = 7
Line = list[Any]


@dataclass(frozen=True, kw_only=True)
class Widget:
    """One widget without its position."""

    kind: Literal["metric", "text", "alarm", "log"]
    width: int = COLUMNS
    properties: Mapping[str, Any]

    @property
    def metrics(self) -> int:
        """Metrics and expressions in it."""
        return len(self.properties.get("metrics", ()))


@dataclass(frozen=True)
class Row:
    """Widgets side by side, all of one height."""

    height: int
    widgets: tuple[Widget, ...]

    @property
    def metrics(self) -> int:
        """Metrics and expressions of all its widgets."""
        return sum(widget.metrics for widget in self.widgets)


class Graph(NamedTuple):
    """Lines over time from 0 upward, with a horizontal line at a level where there is one."""

    title: str
    statistic: str
    lines: Sequence[Line]
    level: tuple[str, float] | None = None


class Cells(NamedTuple):
    """What a graph compares the arms on."""

    classes: tuple[str, ...]
    concurrency: int | None
    """None: every load that a search comes to, or that of a replay."""

    @property
    def at(self) -> str:
        """In words."""
        return "every load" if self.concurrency is None else f"concurrency {self.concurrency}"


def placed(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows from the top down, as `widgets` of a dashboard body."""
    found: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        x = 0
        for widget in row.widgets:
            found.append(
                {
                    "type": widget.kind,
                    "x": x,
                    "y": y,
                    "width": widget.width,
                    "height": row.height,
                    "properties": dict(widget.properties),
                }
            )
            x += widget.width
        y += row.height
    return found


def text(markdown: str, *, height: int) -> Row:
    """A row of text over the whole width."""
    return Row(height, (Widget(kind="text", properties={"markdown": markdown}),))


def graphs(experiment: Experiment, *shown: Graph) -> Row:
    """A row of graphs, all of one width."""
    width = COLUMNS // len(shown)
    return Row(
        GRAPH_HEIGHT,
        tuple(
            Widget(kind="metric", width=width, properties=_drawn(one, experiment.cluster.region))
            for one in shown
        ),
    )


def _drawn(graph: Graph, region: str) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "title": graph.title,
        "view": "timeSeries",
        "stacked": False,
        "region": region,
        "stat": graph.statistic,
        "period": PERIOD_S,
        "yAxis": {"left": {"min": 0, "showUnits": False}},
        "metrics": _without_repetition(graph.lines),
    }
    if graph.level is not None:
        label, value = graph.level
        properties["annotations"] = {"horizontal": [{"label": label, "value": value}]}
    return properties


def _without_repetition(lines: Sequence[Line]) -> list[Line]:
    """A field that stands in the line before at the same place is written `.`, as the format allows: a template holds
    1 MB, and names are most of a large dashboard."""
    written: list[Line] = []
    before: Line = []
    for line in lines:
        names, rendering = line[:-1], line[-1]
        short = [
            "." if place < len(before) and before[place] == name else name for place, name in enumerate(names)
        ]
        written.append([*short, rendering])
        before = names
    return written


def cell_dimensions(
    experiment: Experiment, metric: Metric, *, arm: Arm, class_name: str, concurrency: int
) -> tuple[tuple[str, str], ...]:
    """Names and values in the registry's order, as the benchmark publishes them."""
    values = {
        "Experiment": experiment.name,
        "Arm": arm.name,
        "Class": class_name,
        "Concurrency": str(concurrency),
    }
    return tuple((name, values[name]) for name in metric.dimensions)


def arm_lines(experiment: Experiment, metric: Metric, cells: Cells, statistic: str) -> list[Line]:
    """Every arm on every class; one that loads are searched for has a line for each load that is found.

    https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/search-expression-syntax.html
    """
    lines = []
    for number, (class_name, arm) in enumerate(product(cells.classes, experiment.served_arms)):
        label = f"{class_name} {arm.name}"
        if cells.concurrency is not None:
            lines.append(_line(experiment, metric, arm, class_name, cells.concurrency, label=label))
            continue
        schema = ",".join((f'"{metrics_namespace(experiment)}"', *metric.dimensions))
        sought = f'MetricName="{metric.cloudwatch_name}" Arm="{arm.name}" Class="{class_name}"'
        expression = f"SEARCH('{{{schema}}} {sought}', '{statistic}', {PERIOD_S})"
        lines.append([{"expression": expression, "id": f"s{number}", "label": label}])
    return lines


def ratio_lines(experiment: Experiment, metric: Metric, cells: Cells) -> list[Line]:
    """How many times better than the baseline of its batch each other arm is."""

    def ratio(arm: Arm, own: str, base: str) -> str | None:
        if arm is experiment.baseline_of(arm):
            return None
        return f"{base}/{own}" if metric.better == "lower" else f"{own}/{base}"

    return _calculated(experiment, metric, cells, "r", ratio)


def cost_lines(experiment: Experiment, cells: Cells) -> list[Line]:
    """Dollars per million output tokens: an arm's price over the concurrency times the throughput of a request.

    An estimate: the report divides by the tokens and the time themselves, which CloudWatch does not hold. None for loads that
    are searched.
    """
    if cells.concurrency is None:
        return []

    def usd(arm: Arm, own: str, base: str) -> str:
        return f"{arm_usd_per_hour(experiment, arm) / 3600 * 1e6:.6g}/({cells.concurrency}*{own})"

    return _calculated(experiment, OUTPUT_TOKENS_PER_S, cells, "u", usd)


def _calculated(
    experiment: Experiment,
    metric: Metric,
    cells: Cells,
    kind: str,
    expression: Callable[[Arm, str, str], str | None],
) -> list[Line]:
    """Metric math over hidden lines: what `expression` makes of an arm's line and its baseline's."""
    assert cells.concurrency is not None
    shown: list[Line] = []
    sources: list[Line] = []
    for row, class_name in enumerate(cells.classes):
        for column, arm in enumerate(experiment.served_arms):
            own = f"c{row}a{column}"
            sources.append(
                _line(experiment, metric, arm, class_name, cells.concurrency, id=own, visible=False)
            )
            base = experiment.served_arms.index(experiment.baseline_of(arm))
            if (text := expression(arm, own, f"c{row}a{base}")) is not None:
                label = f"{class_name} {arm.name}"
                shown.append([{"expression": text, "id": f"{kind}{row}a{column}", "label": label}])
    return [*shown, *sources]


def _line(
    experiment: Experiment, metric: Metric, arm: Arm, class_name: str, concurrency: int, **rendering: Any
) -> Line:
    """The full metric, then how it is drawn."""
    where = cell_dimensions(experiment, metric, arm=arm, class_name=class_name, concurrency=concurrency)
    names = [text for pair in where for text in pair]
    return [metrics_namespace(experiment), metric.cloudwatch_name, *names, rendering]
