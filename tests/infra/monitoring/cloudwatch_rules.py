"""CloudWatch's rules for the body of a dashboard, written down from its documentation.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_limits.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

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
_ID = re.compile(r"[a-z][A-Za-z0-9_]{0,254}")
_STATISTIC = re.compile(r"SampleCount|Average|Sum|Minimum|Maximum|p\d{1,2}(\.\d+)?|p100")


def violations(body: dict[str, Any]) -> list[str]:
    """Everything in `body` that CloudWatch would refuse, or draw otherwise than it says."""
    widgets = body["widgets"]
    total = sum(len(widget["properties"].get("metrics", ())) for widget in widgets)
    found = [f"{len(widgets)} widgets, 500 are allowed"] if len(widgets) > 500 else []
    found += [f"{total} metrics, 2500 are allowed"] if total > 2500 else []
    found += [f"widgets[{number}]: {one}" for number, widget in enumerate(widgets) for one in _widget(widget)]
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
    if widget["x"] < 0 or widget["width"] < 1 or widget["x"] + widget["width"] > 24:
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
    if widget["type"] == "log" and not properties["query"].startswith("SOURCE '"):
        yield "a query without SOURCE"
    if widget["type"] == "metric":
        yield from _graph(properties)


def _graph(properties: dict[str, Any]) -> Iterator[str]:
    lines = expanded(properties["metrics"])
    if not 1 <= len(lines) <= 500:
        yield f"{len(lines)} metrics, 1 to 500 are allowed"
    if not _STATISTIC.fullmatch(properties.get("stat", "Average")):
        yield f"stat {properties['stat']}"
    if properties.get("period", 60) % 60:
        yield f"period {properties['period']}"
    ids = [line[-1]["id"] for line in lines if "id" in line[-1]]
    yield from (f"id {name}" for name in ids if ids.count(name) > 1 or not _ID.fullmatch(name))
    for *names, rendering in lines:
        yield from (f"unknown rendering {name}" for name in rendering.keys() - RENDERING)
        expression = rendering.get("expression", "")
        used = set(re.findall(r"\b[a-z]\w*", re.sub(r"'[^']*'", "", expression)))
        yield from (f"expression uses {name}, which no line has" for name in used - {*ids})
        if len(expression) > 1024:
            yield "an expression of more than 1024 characters"
        whole = len(names) >= 2 and not len(names) % 2 and all(isinstance(one, str) for one in names)
        if bool(expression) == bool(names) or (names and not whole):
            yield f"metric {names}: namespace, name, then names and values of dimensions in turn"


def _overlaps(widgets: list[dict[str, Any]]) -> Iterator[str]:
    taken: dict[tuple[int, int], int] = {}
    for number, widget in enumerate(widgets):
        columns = range(widget["x"], widget["x"] + widget["width"])
        for cell in product(columns, range(widget["y"], widget["y"] + widget["height"])):
            if cell in taken:
                yield f"widgets[{number}] lies over widgets[{taken[cell]}]"
                return
            taken[cell] = number
