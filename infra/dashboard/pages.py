"""The rows spread over as few dashboards as CloudWatch's limits allow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiment.finding import Misuse
from infra.dashboard import rows
from infra.dashboard.grid import (
    COLUMNS,
    MOST_METRICS,
    MOST_METRICS_IN_GRAPH,
    MOST_WIDGETS,
    Row,
    Widget,
    placed,
    text,
)
from infra.dashboard.words import introduction, node_words
from infra.naming import dashboard_name

if TYPE_CHECKING:
    from experiment import Experiment

MOST_CHARACTERS = 900_000
"""Of all pages together: they stand in one template, and CloudFormation takes 1 MB of it.

https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html
"""
MOST_ALARMS_IN_WIDGET = 100
"""https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html"""
_INTRODUCTION_HEIGHT, _NODES_HEIGHT, _ALARMS_HEIGHT = 5, 3, 3
_ALARMS_IN_ROW = 6


@dataclass(frozen=True, kw_only=True)
class Page:
    """One dashboard."""

    name: str
    widgets: tuple[dict[str, Any], ...]

    @property
    def body(self) -> str:
        """What `PutDashboard` takes; whatever is a token inside stays one."""
        return json.dumps({"widgets": self.widgets}, separators=(",", ":"))


def dashboard_pages(experiment: Experiment, *, alarm_arns: Sequence[str] = ()) -> tuple[Page, ...]:
    """A text, the alarms, then each metric with its ratios, cost, errors, nodes and further metrics; less of it where
    all would be too much for a template.

    Raises `Misuse` where CloudWatch or CloudFormation would refuse even that.
    """
    for detail in rows.DETAILS:
        pages = _pages(experiment, alarm_arns, detail)
        # As they stand in the template: a string, whose quotes are escaped.
        characters = sum(len(json.dumps(page.body)) for page in pages)
        if characters <= MOST_CHARACTERS:
            return pages
    raise Misuse(
        f"dashboard: {characters:,} characters on {len(pages)} pages, one template takes {MOST_CHARACTERS:,}; "
        "use fewer arms, prompt classes or values of benchmark.concurrency"
    )


def _pages(experiment: Experiment, alarm_arns: Sequence[str], detail: rows.Detail) -> tuple[Page, ...]:
    portions = _spread([*_alarm_rows(alarm_arns), *_metric_rows(experiment, detail)])
    pages = []
    for number, portion in enumerate(portions, start=1):
        words = introduction(experiment, page=number, pages=len(portions), left_out=detail.left_out)
        name = dashboard_name(experiment) + ("" if number == 1 else f"-{number}")
        head = text(words, height=_INTRODUCTION_HEIGHT)
        pages.append(Page(name=name, widgets=tuple(placed([head, *portion]))))
    return tuple(pages)


def _metric_rows(experiment: Experiment, detail: rows.Detail) -> Iterable[Row]:
    yield from rows.metric_rows(experiment, detail)
    yield from rows.cost_and_error_rows(experiment)
    yield text(node_words(experiment), height=_NODES_HEIGHT)
    yield from rows.node_rows(experiment)
    yield from rows.further_rows(experiment, detail)


def _alarm_rows(arns: Sequence[str]) -> Iterable[Row]:
    for start in range(0, len(arns), MOST_ALARMS_IN_WIDGET):
        portion = list(arns[start : start + MOST_ALARMS_IN_WIDGET])
        height = _ALARMS_HEIGHT + (len(portion) - 1) // _ALARMS_IN_ROW
        properties = {"title": "Alarms", "alarms": portion}
        yield Row(height=height, widgets=(Widget(kind="alarm", width=COLUMNS, properties=properties),))


def _spread(all_rows: Sequence[Row]) -> list[list[Row]]:
    """Rows in order, a new page where the next row would be too much for the present one."""
    pages: list[list[Row]] = [[]]
    for row in all_rows:
        for widget in row.widgets:
            if widget.metrics > MOST_METRICS_IN_GRAPH:
                raise Misuse(
                    f"dashboard: {widget.metrics} metrics in one graph, CloudWatch takes {MOST_METRICS_IN_GRAPH}; "
                    "use fewer arms"
                )
        metrics = sum(one.metrics for one in pages[-1]) + row.metrics
        widgets = 1 + sum(len(one.widgets) for one in pages[-1]) + len(row.widgets)
        if metrics > MOST_METRICS or widgets > MOST_WIDGETS:
            pages.append([])
        pages[-1].append(row)
    return pages
