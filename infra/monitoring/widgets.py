"""The shape of a dashboard: rows of widgets on a grid of 24 columns, how many CloudWatch takes, and the lines of a graph.

Structure: https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html
Limits: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_limits.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from experiment.naming import metrics_namespace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmark.metrics import Metric
    from experiment import Experiment
    from experiment.arms import Arm


COLUMNS = 24
MOST_WIDGETS = 500
MOST_METRICS_IN_GRAPH = 500
MOST_METRICS = 2500
"""Of all widgets of a dashboard. Expressions are counted too, since no page says that they are not."""
PERIOD_S = 300
"""Long enough that both requests of most pairs fall into one."""


@dataclass(frozen=True, kw_only=True)
class Widget:
    """One widget without its place."""

    kind: Literal["metric", "text", "alarm", "log"]
    width: int
    properties: Mapping[str, Any]

    @property
    def metrics(self) -> int:
        """Metrics and expressions in it."""
        return len(self.properties.get("metrics", ()))


@dataclass(frozen=True, kw_only=True)
class Row:
    """Widgets side by side, all of one height."""

    height: int
    widgets: tuple[Widget, ...]

    @property
    def metrics(self) -> int:
        """Metrics and expressions of all its widgets."""
        return sum(widget.metrics for widget in self.widgets)


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
    return Row(
        height=height, widgets=(Widget(kind="text", width=COLUMNS, properties={"markdown": markdown}),)
    )


def graph(
    *,
    title: str,
    width: int,
    region: str,
    lines: Sequence[Sequence[Any]],
    statistic: str,
    level: float | None = None,
    level_label: str = "",
) -> Widget:
    """Lines over time from 0 upward, with a horizontal line at `level` where there is one."""
    properties: dict[str, Any] = {
        "title": title,
        "view": "timeSeries",
        "stacked": False,
        "region": region,
        "stat": statistic,
        "period": PERIOD_S,
        "yAxis": {"left": {"min": 0, "showUnits": False}},
        "metrics": _without_repetition(lines),
    }
    if level is not None:
        properties["annotations"] = {"horizontal": [{"label": level_label, "value": level}]}
    return Widget(kind="metric", width=width, properties=properties)


def _without_repetition(lines: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """A field that stands in the line before at the same place is written `.`, as the format allows: a template holds
    1 MB, and names are most of a large dashboard."""
    written: list[list[Any]] = []
    before: list[Any] = []
    for line in lines:
        names, rendering = list(line[:-1]), line[-1]
        short = [
            "." if place < len(before) and before[place] == name else name for place, name in enumerate(names)
        ]
        written.append([*short, rendering])
        before = names
    return written


class _Place(TypedDict):
    arm: Arm
    class_name: str
    concurrency: int


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


def cell_line(
    experiment: Experiment,
    metric: Metric,
    *,
    arm: Arm,
    class_name: str,
    concurrency: int,
    **rendering: Any,
) -> list[Any]:
    """The metric in full, then how it is drawn."""
    where = cell_dimensions(experiment, metric, arm=arm, class_name=class_name, concurrency=concurrency)
    names = [text for pair in where for text in pair]
    return [metrics_namespace(experiment), metric.cloudwatch_name, *names, rendering]


def arm_lines(
    experiment: Experiment, metric: Metric, *, classes: Sequence[str], concurrency: int
) -> list[list[Any]]:
    """Every arm on every one of `classes`."""
    return [
        cell_line(
            experiment,
            metric,
            arm=arm,
            class_name=class_name,
            concurrency=concurrency,
            label=f"{class_name} {arm.name}",
        )
        for class_name, arm in product(classes, experiment.served_arms)
    ]


def ratio_lines(
    experiment: Experiment, metric: Metric, *, classes: Sequence[str], concurrency: int
) -> list[list[Any]]:
    """How many times better than the baseline each other arm is, by metric math over hidden lines."""
    shown: list[list[Any]] = []
    sources: list[list[Any]] = []
    for row, class_name in enumerate(classes):
        for column, arm in enumerate(experiment.served_arms):
            name, base = f"c{row}a{column}", f"c{row}a0"
            place: _Place = {"arm": arm, "class_name": class_name, "concurrency": concurrency}
            sources.append(cell_line(experiment, metric, **place, id=name, visible=False))
            if arm is experiment.baseline:
                continue
            expression = f"{base}/{name}" if metric.better == "lower" else f"{name}/{base}"
            shown.append(_expression(expression, f"r{row}a{column}", f"{class_name} {arm.name}"))
    return [*shown, *sources]


def cost_lines(
    experiment: Experiment,
    throughput: Metric,
    *,
    classes: Sequence[str],
    concurrency: int,
    usd_per_hour: Iterable[float],
) -> list[list[Any]]:
    """Dollars per million output tokens: an arm's price over `concurrency` times the throughput of a request.

    An estimate: the report divides by the tokens and the time themselves, which CloudWatch does not hold.
    """
    prices = tuple(usd_per_hour)
    shown: list[list[Any]] = []
    sources: list[list[Any]] = []
    for row, class_name in enumerate(classes):
        for column, (arm, price) in enumerate(zip(experiment.served_arms, prices, strict=True)):
            name = f"c{row}a{column}"
            place: _Place = {"arm": arm, "class_name": class_name, "concurrency": concurrency}
            sources.append(cell_line(experiment, throughput, **place, id=name, visible=False))
            expression = f"{price / 3600 * 1e6:.6g}/({concurrency}*{name})"
            shown.append(_expression(expression, f"u{row}a{column}", f"{class_name} {arm.name}"))
    return [*shown, *sources]


def _expression(expression: str, name: str, label: str) -> list[Any]:
    return [{"expression": expression, "id": name, "label": label}]
