"""The dashboards of an experiment and of its promoted arm.

Every line names its full metric: a SEARCH would also find arms and classes of earlier versions of the file. Found by SEARCH
are only the load balancer of a promoted arm and the loads of a search, which are known when they exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product, zip_longest
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch

from benchmark.metrics import ERRORS, PERIOD_S, Metric
from core.findings import Misuse
from core.words import count
from experiment import Experiment
from experiment.cost import arm_usd_per_hour
from experiment.model import Serve
from experiment.naming import (
    cluster_name,
    container_insights_log_groups,
    dashboard_name,
    namespace,
    promoted_service,
    service_dashboard_name,
)
from infra.monitoring import container_insights
from infra.monitoring.details import (
    DETAILS,
    FURTHER,
    HEADLINES,
    Detail,
    baselines,
    introduction,
    node_words,
)
from infra.monitoring.graphs import (
    COLUMNS,
    GRAPH_HEIGHT,
    Cells,
    Graph,
    Lines,
    Row,
    arm_lines,
    calculated,
    cost_lines,
    graphs,
    insights,
    ratio_lines,
    sources,
    text,
)

MOST_CHARACTERS = 900_000
"""Of all pages together: they stand in one template, and CloudFormation takes 1 MB of it.

https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html
"""
MOST_WIDGETS = 500
MOST_METRICS_IN_GRAPH = 500
MOST_METRICS = 2500
"""Of all widgets of a dashboard. Expressions are counted too, since no page of the documentation excludes them.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_limits.html
"""
MOST_ALARMS_IN_WIDGET = 100
"""https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html"""
LINES_IN_GRAPH = 24
"""More lines cannot be distinguished, so the classes are spread over several graphs."""
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


def add_dashboards(
    stack: cdk.Stack, experiment: Experiment, alarms: Sequence[cloudwatch.IAlarm] = ()
) -> None:
    """A text, the alarms, then each metric with its ratios, cost, errors, nodes and further metrics; less of it where
    all would be too much for a template. And the promoted arm's own.

    Raises `Misuse` where CloudWatch or CloudFormation would refuse even that.
    """
    for detail in DETAILS:
        made = _pages(stack, experiment, alarms, detail)
        # As they stand in the template: a string, whose quotes are escaped.
        characters = sum(len(json.dumps(stack.resolve(body.dashboard_body))) for body in made.values())
        if characters <= MOST_CHARACTERS:
            break
        for page in made:
            stack.node.try_remove_child(page)
    else:
        raise Misuse(
            f"dashboard: {characters:,} characters on {len(made)} pages, one template takes {MOST_CHARACTERS:,}; "
            "use fewer arms, prompt classes or values of benchmark.concurrency"
        )
    if experiment.serve is not None:
        shown = _service_rows(experiment, experiment.serve)
        _dashboard(stack, "ServiceDashboard", service_dashboard_name(experiment), shown)


def _dashboard(
    stack: cdk.Stack, construct_id: str, name: str, shown: Iterable[Row]
) -> cloudwatch.CfnDashboard:
    made = cloudwatch.Dashboard(
        stack, construct_id, dashboard_name=name, widgets=[list(row.widgets) for row in shown]
    )
    resource = made.node.default_child
    assert isinstance(resource, cloudwatch.CfnDashboard)
    # Of one name there cannot be two, so what is deployed under this id stays under it.
    resource.override_logical_id(construct_id)
    resource.dashboard_body = _short(stack.resolve(resource.dashboard_body))
    return resource


def _short(body: Any) -> str:
    """A field that stands in the line before at the same place is written `.`, as the format allows: a template holds
    1 MB, and names are most of a large dashboard."""
    pieces = [body] if isinstance(body, str) else body["Fn::Join"][1]
    text = "".join(one if isinstance(one, str) else f"${{{place}}}" for place, one in enumerate(pieces))
    content = json.loads(text)
    for widget in content["widgets"]:
        before: list[Any] = []
        for line in widget["properties"].get("metrics", ()):
            names = [one for one in line if isinstance(one, str)]
            line[: len(names)] = [
                "." if one == former else one for one, former in zip_longest(names, before[: len(names)])
            ]
            before = names
    written = re.split(r"\$\{(\d+)\}", json.dumps(content, separators=(",", ":")))
    written[1::2] = [cdk.Token.as_string(pieces[int(place)]) for place in written[1::2]]
    return "".join(written)


def _pages(
    stack: cdk.Stack, experiment: Experiment, alarms: Sequence[cloudwatch.IAlarm], detail: Detail
) -> dict[str, cloudwatch.CfnDashboard]:
    """The rows on as few dashboards as CloudWatch's limits allow."""
    portions = _spread(
        [
            *_alarm_rows(alarms),
            *_metric_rows(experiment, detail),
            *_cost_and_error_rows(experiment),
            *_node_rows(experiment),
            *_further_rows(experiment, detail),
        ]
    )
    pages = {}
    for number, portion in enumerate(portions, start=1):
        words = introduction(experiment, page=number, pages=len(portions), left_out=detail.left_out)
        name = dashboard_name(experiment) + ("" if number == 1 else f"-{number}")
        shown = [text(words, height=_WORDS_HEIGHT), *portion]
        construct_id = "Dashboard" if number == 1 else f"Dashboard{number}"
        pages[construct_id] = _dashboard(stack, construct_id, name, shown)
    return pages


def _alarm_rows(alarms: Sequence[cloudwatch.IAlarm]) -> Iterator[Row]:
    for start in range(0, len(alarms), MOST_ALARMS_IN_WIDGET):
        portion = list(alarms[start : start + MOST_ALARMS_IN_WIDGET])
        height = _ALARMS_HEIGHT + (len(portion) - 1) // _ALARMS_IN_ROW
        yield Row(
            [cloudwatch.AlarmStatusWidget(title="Alarms", alarms=portion, width=COLUMNS, height=height)]
        )


def _spread(all_rows: Sequence[Row]) -> list[list[Row]]:
    """Rows in order, a new page where the next row would be too much for the present one."""
    pages: list[list[Row]] = [[]]
    for row in all_rows:
        if (most := max(row.metrics, default=0)) > MOST_METRICS_IN_GRAPH:
            raise Misuse(
                f"dashboard: {most} metrics in one graph, CloudWatch takes {MOST_METRICS_IN_GRAPH}; use fewer arms"
            )
        metrics = sum(sum(one.metrics) for one in (*pages[-1], row))
        widgets = 1 + sum(len(one.widgets) for one in (*pages[-1], row))
        if metrics > MOST_METRICS or widgets > MOST_WIDGETS:
            pages.append([])
        pages[-1].append(row)
    return pages


def _metric_rows(experiment: Experiment, detail: Detail) -> Iterator[Row]:
    """For each metric, concurrency and portion of the classes: the arms, and below them their ratio to the baseline;
    a column for each statistic."""
    for metric, cells in product(HEADLINES, _cells(experiment)):
        measured = sources(experiment, metric, cells)
        yield _arms_row(experiment, metric, cells, detail.statistics(metric), measured)
        if cells.concurrency is None:
            continue  # which loads two arms share is known when they were measured, and the report compares them
        ratios = ratio_lines(experiment, metric, cells, measured)
        yield graphs(
            experiment,
            *(
                Graph(
                    f"{metric.cloudwatch_name} {statistic}: times better than {baselines(experiment)}",
                    statistic,
                    ratios,
                    ("no difference", 1),
                )
                for statistic in detail.statistics(metric)
            ),
        )


def _cost_and_error_rows(experiment: Experiment) -> Iterator[Row]:
    """Dollars per million output tokens, share of requests that failed, how many failed."""
    name = ERRORS.cloudwatch_name
    titles = {"Average": "share of requests that failed", "Sum": "requests that failed"}
    for cells in _cells(experiment):
        measured = sources(experiment, ERRORS, cells)
        shown = [
            Graph(
                f"{name} {statistic}: {title}, {cells.at}",
                statistic,
                arm_lines(experiment, ERRORS, cells, statistic, measured),
            )
            for statistic, title in titles.items()
        ]
        if cells.concurrency is not None:  # else the load that the price is divided by is not known
            title = f"USD per million output tokens, estimate, {cells.at} (lower is better)"
            shown.insert(0, Graph(title, "Average", cost_lines(experiment, cells)))
        yield graphs(experiment, *shown)


def _further_rows(experiment: Experiment, detail: Detail) -> Iterator[Row]:
    """Published metrics that are not compared."""
    if detail.further:
        for metric, cells in product(FURTHER, _cells(experiment)):
            measured = sources(experiment, metric, cells)
            yield _arms_row(experiment, metric, cells, detail.statistics(metric), measured)


def _node_rows(experiment: Experiment) -> Iterator[Row]:
    """Nodes and NeuronCores, a narrow graph for each metric: their units differ. By pod only where the
    device plugin hands the devices out."""
    yield text(node_words(experiment), height=3)
    values = {"ClusterName": cluster_name(experiment), "Namespace": namespace(experiment)}
    for subject, metrics in (
        ("Nodes", container_insights.NODE_METRICS),
        ("Trainium nodes", container_insights.NEURON_NODE_METRICS),
    ):
        yield graphs(
            experiment,
            *(
                Graph(f"{subject}: {one.title}", one.statistic, Lines([insights(one, values)]))
                for one in metrics
            ),
        )
    if experiment.baseline.serving.allocation == "device-plugin":
        metric = container_insights.NEURON_POD
        lines = [
            insights(metric, {**values, "PodName": arm.name}, label=arm.name)
            for arm in experiment.served_arms
        ]
        yield graphs(experiment, Graph(metric.title, metric.statistic, Lines(lines)))


def _cells(experiment: Experiment) -> list[Cells]:
    """For each concurrency the classes, as many together as a graph can show."""
    size = max(1, LINES_IN_GRAPH // max(1, len(experiment.served_arms)))
    classes = experiment.classes
    return [
        Cells(tuple(classes[start : start + size]), concurrency)
        for concurrency in experiment.benchmark.known_concurrency or (None,)
        for start in range(0, len(classes), size)
    ]


def _arms_row(
    experiment: Experiment,
    metric: Metric,
    cells: Cells,
    statistics: Sequence[str],
    measured: Mapping[str, cloudwatch.Metric],
) -> Row:
    return graphs(
        experiment,
        *(
            Graph(
                f"{metric.cloudwatch_name} {statistic}, {metric.unit}, {cells.at} ({metric.better} is better)",
                statistic,
                arm_lines(experiment, metric, cells, statistic, measured),
            )
            for statistic in statistics
        ),
    )


def _service_rows(experiment: Experiment, serve: Serve) -> Iterator[Row]:
    """Is it up, is it busy, what does it cost?

    The server's requests come from the lines that vLLM logs every ten seconds, so that no other data is collected.
    Not run on AWS.
    """
    price = arm_usd_per_hour(experiment, next(arm for arm in experiment.arms if arm.name == serve.arm))
    yield text(_words(experiment, serve, price), height=_WORDS_HEIGHT)
    yield _requests_row(experiment, serve)
    yield _replicas_row(experiment, serve, price)
    if serve.certificate_arn is not None:
        yield graphs(
            experiment,
            *(
                Graph(
                    f"Load balancers: {title}", statistic, Lines([calculated(_search(name, statistic), "")])
                )
                for name, statistic, title in BALANCER_METRICS
            ),
        )
    yield from _node_rows(experiment)


def _words(experiment: Experiment, serve: Serve, price: float) -> str:
    replicas = (
        f"{serve.replicas} to {count(serve.max_replicas, 'replica')}"
        if serve.scales
        else count(serve.replicas, "replica")
    )
    return (
        f"# {promoted_service(experiment.name)}\n**{serve.arm}** of {experiment.name}, {replicas} at "
        f"${price:.2f} an hour each (its share of a Trn2 node, list price; the node bills whole).\n\n"
        "Requests are read from the server's log. The load balancer is made by Kubernetes and has a name of its own, so "
        "its graphs show every Network Load Balancer of the region. The Trn2 nodes are turned off "
        f"{experiment.cluster.off_when}: then replicas are 0 until `./trnspec scale` starts nodes again."
    )


def _requests_row(experiment: Experiment, serve: Serve) -> Row:
    """Both of vLLM's engines: one says Waiting, the older one Swapped and Pending."""
    group = next(name for name in container_insights_log_groups(experiment) if name.endswith("/application"))
    query = (
        "fields @timestamp"
        f" | filter kubernetes.namespace_name = '{namespace(experiment)}'"
        f" and kubernetes.pod_name like /^{serve.arm}-[0-9a-f]+-/"
        " | parse log /Running: (?<running>\\d+) reqs?, (?:Swapped: \\d+ reqs?, )?(?:Waiting|Pending): (?<waiting>\\d+) reqs?/"
        " | filter ispresent(running)"
        f" | stats max(running) as running_most, max(waiting) as waiting_most by bin({PERIOD_S}s)"
    )
    return Row(
        [
            cloudwatch.LogQueryWidget(
                title=f"Requests in one replica of {serve.arm}, most in {PERIOD_S // 60} minutes (scales above "
                f"{serve.waiting_per_replica} waiting)",
                view=cloudwatch.LogQueryVisualizationType.LINE,
                region=experiment.cluster.region,
                log_group_names=[group],
                query_string=query,
                width=COLUMNS,
                height=GRAPH_HEIGHT,
            )
        ]
    )


def _replicas_row(experiment: Experiment, serve: Serve, price: float) -> Row:
    values = {
        "ClusterName": cluster_name(experiment),
        "Namespace": namespace(experiment),
        "Service": promoted_service(experiment.name),
    }
    replicas = insights(container_insights.SERVICE_PODS, values)
    cost = calculated(f"{price:.6g}*replicas", "USD an hour", {"replicas": replicas})
    return graphs(
        experiment,
        Graph("Replicas", "Maximum", Lines([replicas]), ("most", serve.max_replicas)),
        Graph("USD an hour of the running replicas, list price", "Maximum", Lines([cost], hidden=1)),
    )


def _search(name: str, statistic: str) -> str:
    group = "TargetGroup," if name in _BY_TARGET_GROUP else ""
    return (
        f"SEARCH('{{AWS/NetworkELB,{group}LoadBalancer}} MetricName=\"{name}\"', '{statistic}', {PERIOD_S})"
    )
