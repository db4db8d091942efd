"""The dashboards of an experiment and of its promoted arm, as the JSON documents that CloudWatch takes.

Every line names its full metric: a SEARCH would also find arms and classes of earlier versions of the file. Found by SEARCH
are only the load balancer of a promoted arm and the loads of a search, which are known when they exist.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from benchmark.metrics import PERIOD_S
from experiment import Experiment
from experiment.cost import arm_usd_per_hour
from experiment.finding import Misuse
from experiment.model import Serve
from experiment.naming import (
    cluster_name,
    container_insights_log_groups,
    dashboard_name,
    namespace,
    promoted_service,
    service_dashboard_name,
)
from infra.monitoring import rows
from infra.monitoring.container_insights import SERVICE_PODS, insights_line
from infra.monitoring.widgets import (
    GRAPH_HEIGHT,
    MOST_METRICS,
    MOST_METRICS_IN_GRAPH,
    MOST_WIDGETS,
    Graph,
    Row,
    Widget,
    graphs,
    placed,
    text,
)

MOST_CHARACTERS = 900_000
"""Of all pages together: they stand in one template, and CloudFormation takes 1 MB of it.

https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html
"""
MOST_ALARMS_IN_WIDGET = 100
"""https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html"""
BALANCER_METRICS = (
    ("NewFlowCount_TLS", "Sum", "new connections"),
    ("ActiveFlowCount_TLS", "Average", "open connections"),
    ("HealthyHostCount", "Minimum", "nodes that answer"),
    ("ClientTLSNegotiationErrorCount", "Sum", "failed handshakes"),
)
"""Name, statistic, title
(https://docs.aws.amazon.com/elasticloadbalancing/latest/network/load-balancer-cloudwatch-metrics.html)."""
_BY_TARGET_GROUP = {"HealthyHostCount"}
_WORDS_HEIGHT, _ALARMS_HEIGHT = 5, 3
_ALARMS_IN_ROW = 6


class Page(NamedTuple):
    """One dashboard."""

    name: str
    body: str
    """What `PutDashboard` takes; tokens inside stay tokens."""


def _page(name: str, shown: Sequence[Row]) -> Page:
    return Page(name, json.dumps({"widgets": placed(shown)}, separators=(",", ":")))


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
    """The rows on as few dashboards as CloudWatch's limits allow."""
    portions = _spread(
        [
            *_alarm_rows(alarm_arns),
            *rows.metric_rows(experiment, detail),
            *rows.cost_and_error_rows(experiment),
            *rows.node_rows(experiment),
            *rows.further_rows(experiment, detail),
        ]
    )
    pages = []
    for number, portion in enumerate(portions, start=1):
        words = rows.introduction(experiment, page=number, pages=len(portions), left_out=detail.left_out)
        name = dashboard_name(experiment) + ("" if number == 1 else f"-{number}")
        pages.append(_page(name, [text(words, height=_WORDS_HEIGHT), *portion]))
    return tuple(pages)


def _alarm_rows(arns: Sequence[str]) -> Iterable[Row]:
    for start in range(0, len(arns), MOST_ALARMS_IN_WIDGET):
        portion = list(arns[start : start + MOST_ALARMS_IN_WIDGET])
        height = _ALARMS_HEIGHT + (len(portion) - 1) // _ALARMS_IN_ROW
        yield Row(height, (Widget(kind="alarm", properties={"title": "Alarms", "alarms": portion}),))


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


def service_page(experiment: Experiment) -> Page | None:
    """The promoted arm's own dashboard: is it up, is it busy, what does it cost; none while nothing is promoted.

    The server's requests come from the lines that vLLM logs every ten seconds, so that no other data is collected.
    Not run on AWS.
    """
    serve = experiment.serve
    if serve is None:
        return None
    price = arm_usd_per_hour(experiment, next(arm for arm in experiment.arms if arm.name == serve.arm))
    shown = [
        text(_words(experiment, serve, price), height=_WORDS_HEIGHT),
        _requests_row(experiment, serve),
        _replicas_row(experiment, serve, price),
    ]
    if serve.certificate_arn is not None:
        balancers = (
            Graph(
                f"Load balancers: {title}",
                statistic,
                [[{"expression": _search(name, statistic), "id": "found", "label": ""}]],
            )
            for name, statistic, title in BALANCER_METRICS
        )
        shown.append(graphs(experiment, *balancers))
    return _page(service_dashboard_name(experiment), [*shown, *rows.node_rows(experiment)])


def _words(experiment: Experiment, serve: Serve, price: float) -> str:
    count = f"{serve.replicas} to {serve.max_replicas}" if serve.scales else str(serve.replicas)
    return (
        f"# {promoted_service(experiment.name)}\n**{serve.arm}** of {experiment.name}, {count} replicas at "
        f"${price:.2f} an hour each (its share of a Trn2 node, list price; the node bills whole).\n\n"
        "Requests are read from the server's log. The load balancer is made by Kubernetes and has a name of its own, so "
        "its graphs show every Network Load Balancer of the region. The Trn2 nodes are turned off "
        f"{experiment.cluster.off_when}: then replicas are 0 until `./trnspec scale` starts nodes again."
    )


def _requests_row(experiment: Experiment, serve: Serve) -> Row:
    """Both of vLLM's engines: one says Waiting, the older one Swapped and Pending."""
    group = next(name for name in container_insights_log_groups(experiment) if name.endswith("/application"))
    query = (
        f"SOURCE '{group}' | fields @timestamp"
        f" | filter kubernetes.namespace_name = '{namespace(experiment)}'"
        f" and kubernetes.pod_name like /^{serve.arm}-[0-9a-f]+-/"
        " | parse log /Running: (?<running>\\d+) reqs?, (?:Swapped: \\d+ reqs?, )?(?:Waiting|Pending): (?<waiting>\\d+) reqs?/"
        " | filter ispresent(running)"
        f" | stats max(running) as running_most, max(waiting) as waiting_most by bin({PERIOD_S}s)"
    )
    properties = {
        "title": f"Requests in one replica of {serve.arm}, most in {PERIOD_S // 60} minutes (scales above "
        f"{serve.waiting_per_replica} waiting)",
        "view": "timeSeries",
        "stacked": False,
        "region": experiment.cluster.region,
        "query": query,
    }
    return Row(GRAPH_HEIGHT, (Widget(kind="log", properties=properties),))


def _replicas_row(experiment: Experiment, serve: Serve, price: float) -> Row:
    values = {
        "ClusterName": cluster_name(experiment),
        "Namespace": namespace(experiment),
        "Service": promoted_service(experiment.name),
    }
    replicas = insights_line(SERVICE_PODS, values)
    hidden = insights_line(SERVICE_PODS, values, id="replicas", visible=False)
    cost = [{"expression": f"{price:.6g}*replicas", "id": "cost", "label": "USD an hour"}]
    return graphs(
        experiment,
        Graph("Replicas", "Maximum", [replicas], ("most", serve.max_replicas)),
        Graph("USD an hour of the running replicas, list price", "Maximum", [cost, hidden]),
    )


def _search(name: str, statistic: str) -> str:
    group = "TargetGroup," if name in _BY_TARGET_GROUP else ""
    return (
        f"SEARCH('{{AWS/NetworkELB,{group}LoadBalancer}} MetricName=\"{name}\"', '{statistic}', {PERIOD_S})"
    )
