"""The promoted arm's own dashboard: is it up, is it busy, what does it cost.

The server's requests come from the lines that vLLM logs every ten seconds, so that nothing more has to be collected.
Not run on AWS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiment.cost import arm_usd_per_hour
from experiment.naming import cluster_name, namespace, promoted_service
from infra.dashboard import container_insights as insights
from infra.dashboard.grid import COLUMNS, PERIOD_S, Row, Widget, graph, placed, text
from infra.dashboard.pages import Page
from infra.dashboard.rows import node_rows
from infra.dashboard.words import node_words
from infra.naming import container_insights_log_groups, service_dashboard_name

if TYPE_CHECKING:
    from experiment import Experiment
    from experiment.schema import Serve

BALANCER_METRICS = (
    ("NewFlowCount_TLS", "Sum", "new connections"),
    ("ActiveFlowCount_TLS", "Average", "open connections"),
    ("HealthyHostCount", "Minimum", "nodes that answer"),
    ("ClientTLSNegotiationErrorCount", "Sum", "failed handshakes"),
)
"""Name, statistic, title
(https://docs.aws.amazon.com/elasticloadbalancing/latest/network/load-balancer-cloudwatch-metrics.html)."""
_BY_TARGET_GROUP = {"HealthyHostCount"}
_HEIGHT, _WORDS_HEIGHT, _NODES_HEIGHT = 7, 5, 3


def service_page(experiment: Experiment) -> Page | None:
    """`<experiment>-service`; none while nothing is promoted."""
    serve = experiment.serve
    if serve is None:
        return None
    rows = [
        text(_words(experiment, serve), height=_WORDS_HEIGHT),
        _requests_row(experiment, serve),
        _replicas_row(experiment, serve),
    ]
    if serve.certificate_arn is not None:
        rows.append(_balancer_row(experiment))
    rows.append(text(node_words(experiment), height=_NODES_HEIGHT))
    rows += node_rows(experiment)
    return Page(name=service_dashboard_name(experiment), widgets=tuple(placed(rows)))


def _words(experiment: Experiment, serve: Serve) -> str:
    price = _usd_per_hour(experiment, serve)
    count = f"{serve.replicas} to {serve.max_replicas}" if serve.scales else str(serve.replicas)
    return (
        f"# {promoted_service(experiment.name)}\n**{serve.arm}** of {experiment.name}, {count} replicas at "
        f"${price:.2f} an hour each (its share of a Trn2 node, list price; the node bills whole).\n\n"
        "Requests are read from the server's log. The load balancer is made by Kubernetes and has a name of its own, so "
        "its graphs show every Network Load Balancer of the region. Every day at "
        f"{experiment.cluster.off_at_utc} UTC the Trn2 nodes are turned off: then replicas are 0 until "
        "`scripts/scale` starts nodes again."
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
    properties: dict[str, Any] = {
        "title": f"Requests in one replica of {serve.arm}, most in {PERIOD_S // 60} minutes (scales above "
        f"{serve.waiting_per_replica} waiting)",
        "view": "timeSeries",
        "stacked": False,
        "region": experiment.cluster.region,
        "query": query,
    }
    return Row(height=_HEIGHT, widgets=(Widget(kind="log", width=COLUMNS, properties=properties),))


def _replicas_row(experiment: Experiment, serve: Serve) -> Row:
    values = {
        "ClusterName": cluster_name(experiment),
        "Namespace": namespace(experiment),
        "Service": promoted_service(experiment.name),
    }
    replicas = insights.insights_line(insights.SERVICE_PODS, values)
    hidden = insights.insights_line(insights.SERVICE_PODS, values, id="replicas", visible=False)
    price = _usd_per_hour(experiment, serve)
    cost = [{"expression": f"{price:.6g}*replicas", "id": "cost", "label": "USD an hour"}]
    width, region = COLUMNS // 2, experiment.cluster.region
    return Row(
        height=_HEIGHT,
        widgets=(
            graph(
                title="Replicas",
                width=width,
                region=region,
                lines=[replicas],
                statistic="Maximum",
                level=serve.max_replicas,
                level_label="most",
            ),
            graph(
                title="USD an hour of the running replicas, list price",
                width=width,
                region=region,
                lines=[cost, hidden],
                statistic="Maximum",
            ),
        ),
    )


def _balancer_row(experiment: Experiment) -> Row:
    width = COLUMNS // len(BALANCER_METRICS)
    return Row(
        height=_HEIGHT,
        widgets=tuple(
            graph(
                title=f"Load balancers: {title}",
                width=width,
                region=experiment.cluster.region,
                lines=[[{"expression": _search(name, statistic), "id": "found", "label": ""}]],
                statistic=statistic,
            )
            for name, statistic, title in BALANCER_METRICS
        ),
    )


def _search(name: str, statistic: str) -> str:
    group = "TargetGroup," if name in _BY_TARGET_GROUP else ""
    return (
        f"SEARCH('{{AWS/NetworkELB,{group}LoadBalancer}} MetricName=\"{name}\"', '{statistic}', {PERIOD_S})"
    )


def _usd_per_hour(experiment: Experiment, serve: Serve) -> float:
    return arm_usd_per_hour(experiment, next(arm for arm in experiment.arms if arm.name == serve.arm))
