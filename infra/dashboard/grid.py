"""The shape of a dashboard: rows of widgets on a grid of 24 columns, and how many CloudWatch takes.

Structure: https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html
Limits: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_limits.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
