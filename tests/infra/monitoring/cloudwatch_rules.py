"""CloudWatch's rules for the body of a dashboard, written down from its documentation.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_limits.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

BODY_FIELDS = {"start", "end", "periodOverride", "variables", "widgets"}
WIDGET_FIELDS = {"type", "x", "y", "width", "height", "properties"}
PROPERTIES: dict[str, tuple[set[str], set[str]]] = {
    "text": ({"markdown"}, {"background"}),
    "alarm": ({"alarms"}, {"sortBy", "states", "title", "accountId"}),
    "log": ({"query", "region"}, {"accountId", "stacked", "title", "view", "queryLanguage"}),
    "metric": (
        {"metrics", "region"},
        {
            "accountId", "annotations", "legend", "liveData", "period", "setPeriodToTimeRange",
            "singleValueFullPrecision", "sparkline", "stacked", "start", "end", "stat", "table", "timezone",
            "title", "view", "yAxis", "trend", "labels",
        },
    ),
}  # fmt: skip
"""Kind of widget -> properties that it must have, and those that it may have beside them."""
RENDERING = {
    "accountId", "color", "expression", "id", "label", "period", "region", "stat", "visible", "yAxis",
}  # fmt: skip
VIEWS = {"timeSeries", "singleValue", "gauge", "bar", "pie", "table"}
_NAME = re.compile(r"[a-z][A-Za-z0-9_]*")
_STATISTIC = re.compile(r"SampleCount|Average|Sum|Minimum|Maximum|p\d{1,2}(\.\d+)?|p100")


def violations(body: dict[str, Any]) -> list[str]:
    """Everything in `body` that CloudWatch would refuse, or draw otherwise than it says."""
    widgets = body.get("widgets", [])
    found = [f"body: unknown field {name}" for name in body.keys() - BODY_FIELDS]
    if "widgets" not in body or len(widgets) > 500:
        found.append(f"body: {len(widgets)} widgets, 0 to 500 are allowed")
    total = 0
    for number, widget in enumerate(widgets):
        total += len(widget["properties"].get("metrics", ()))
        found += [f"widgets[{number}]: {one}" for one in _widget(widget)]
    if total > 2500:
        found.append(f"body: {total} metrics, 2500 are allowed")
    return found + list(_overlaps(widgets))


def expanded(metrics: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The lines of a graph with every `.` replaced by what stands there in the line before."""
    lines: list[list[Any]] = []
    before: list[Any] = []
    for metric in metrics:
        names = [
            before[place] if one == "." else one
            for place, one in enumerate(metric)
            if not isinstance(one, dict)
        ]
        rendering = metric[-1] if isinstance(metric[-1], dict) else {}
        lines.append([*names, rendering])
        before = names
    return lines


def _widget(widget: dict[str, Any]) -> Iterator[str]:
    if widget.keys() != WIDGET_FIELDS:
        yield f"fields {sorted(widget)}"
    if not (0 <= widget["x"] <= 23 and 1 <= widget["width"] <= 24 and widget["x"] + widget["width"] <= 24):
        yield f"x {widget['x']} and width {widget['width']} leave the 24 columns"
    if not (widget["y"] >= 0 and 1 <= widget["height"] <= 1000):
        yield f"height {widget['height']}, 1 to 1000 are allowed"
    if widget["type"] not in PROPERTIES:
        yield f"type {widget['type']}"
        return
    required, optional = PROPERTIES[widget["type"]]
    properties = widget["properties"]
    yield from (f"lacks {name}" for name in required - properties.keys())
    yield from (f"unknown property {name}" for name in properties.keys() - required - optional)
    if widget["type"] == "alarm" and not 1 <= len(properties["alarms"]) <= 100:
        yield f"{len(properties['alarms'])} alarms, 1 to 100 are allowed"
    if widget["type"] == "log" and not properties.get("query", "").startswith("SOURCE '"):
        yield "a query without SOURCE"
    if widget["type"] == "metric":
        yield from _graph(properties)


def _graph(properties: dict[str, Any]) -> Iterator[str]:
    metrics = properties["metrics"]
    if not 1 <= len(metrics) <= 500:
        yield f"{len(metrics)} metrics, 1 to 500 are allowed"
    if properties.get("view", "timeSeries") not in VIEWS:
        yield f"view {properties['view']}"
    if not _STATISTIC.fullmatch(properties.get("stat", "Average")):
        yield f"stat {properties['stat']}"
    period = properties.get("period", 60)
    if period not in (1, 5, 10, 30) and period % 60:
        yield f"period {period}"
    ids: list[str] = []
    for line in expanded(metrics):
        yield from _line(line)
        if "id" in line[-1]:
            ids.append(line[-1]["id"])
    yield from (f"id {name} twice" for name in set(ids) if ids.count(name) > 1)
    known = set(ids)
    for line in expanded(metrics):
        used = set(re.findall(r"\b[a-z]\w*", line[-1].get("expression", "")))
        yield from (f"expression uses {name}, which no line has" for name in used - known)


def _line(line: list[Any]) -> Iterator[str]:
    *names, rendering = line
    yield from (f"unknown rendering {name}" for name in rendering.keys() - RENDERING)
    if "id" in rendering and not (_NAME.fullmatch(rendering["id"]) and len(rendering["id"]) <= 255):
        yield f"id {rendering['id']}"
    if "expression" in rendering:
        if names:
            yield "an expression beside a metric"
        if len(rendering["expression"]) > 1024:
            yield "an expression of more than 1024 characters"
        return
    if len(names) < 2 or len(names) % 2 or not all(isinstance(one, str) and one for one in names):
        yield f"metric {names}: namespace, name, then names and values of dimensions in turn"
    if len(names) > 2 + 2 * 30:
        yield "more than 30 dimensions"


def _overlaps(widgets: list[dict[str, Any]]) -> Iterator[str]:
    taken: dict[tuple[int, int], int] = {}
    for number, widget in enumerate(widgets):
        for column in range(widget["x"], widget["x"] + widget["width"]):
            for row in range(widget["y"], widget["y"] + widget["height"]):
                if (column, row) in taken:
                    yield f"widgets[{number}] lies over widgets[{taken[column, row]}]"
                    return
                taken[column, row] = number
