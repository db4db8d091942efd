"""What the Prometheus Operator reads: which pods to scrape, and the alert rules. Not run on a cluster.

Fields: https://prometheus-operator.dev/docs/api-reference/api/
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cdk8s_charts.plain_objects import kubernetes_object
from experiment.naming import METRICS_PORT_NAME, NAME, PART_OF, ROLE

if TYPE_CHECKING:
    from experiment.arms import Experiment

INTERVAL = "30s"
_FROM_POD = {"experiment": PART_OF, "arm": NAME}
"""Labels of a server's series, and the labels of its pod that they come from. The benchmark's page has them itself."""


def pod_monitors(experiment: Experiment) -> list[dict[str, Any]]:
    """The servers, labelled with their arm, and the benchmark while it runs: its sidecar answers then. Its pod is Pending
    all that time, because measuring is an init container; the operator drops pods that have ended and no others
    (https://github.com/prometheus-operator/prometheus-operator/pull/5049).
    """
    relabelings = [
        {"sourceLabels": ["__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", label)], "targetLabel": name}
        for name, label in _FROM_POD.items()
    ]
    return [
        _monitor(experiment, "server", {"port": "http", "relabelings": relabelings}),
        _monitor(experiment, "client", {"port": METRICS_PORT_NAME}),
    ]


def rules(experiment: Experiment, groups: list[dict[str, Any]]) -> dict[str, Any]:
    """A PrometheusRule with these groups."""
    return _object(experiment, "PrometheusRule", experiment.name, {"groups": groups})


def _monitor(experiment: Experiment, role: str, endpoint: dict[str, Any]) -> dict[str, Any]:
    spec = {
        "selector": {"matchLabels": {PART_OF: experiment.name, ROLE: role}},
        "podMetricsEndpoints": [{**endpoint, "path": "/metrics", "interval": INTERVAL}],
    }
    return _object(experiment, "PodMonitor", f"{role}s", spec)


def _object(experiment: Experiment, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    selected = experiment.cluster.prometheus.labels if experiment.cluster.prometheus else {}
    marks = {PART_OF: experiment.name, **selected}
    return kubernetes_object(
        "monitoring.coreos.com/v1", kind, name, within=experiment, labels=marks, spec=spec
    )
