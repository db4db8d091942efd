"""A Prometheus of the team's own: what it may read, what it is told, and that without one nothing changes."""

from __future__ import annotations

import pytest

from cdk8s_charts.render import render_for_prometheus
from experiment import Experiment
from experiment.model import Prometheus
from experiment.naming import METRICS_PORT
from tests.cdk8s_charts.objects import Object, Pod, committed, named
from tests.cdk8s_charts.variations import rendered, with_cluster
from tests.conftest import REFERENCE

READER = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
}


@pytest.fixture(scope="module")
def watched(reference: Experiment) -> Experiment:
    labels = {"release": "kube-prometheus-stack"}
    return with_cluster(reference, prometheus=Prometheus(namespace="monitoring", labels=labels))


@pytest.fixture(scope="module")
def objects(watched: Experiment) -> list[Object]:
    return rendered(watched)


@pytest.fixture(scope="module")
def for_operator(watched: Experiment) -> list[Object]:
    return list(render_for_prometheus(watched, [{"name": "mine", "rules": []}]).objects)


def test_pods_of_prometheus_alone_are_let_in_where_metrics_are_and_nothing_else_changes(
    objects: list[Object],
) -> None:
    plain = {(item["kind"], item["metadata"]["name"]): item for item in committed(REFERENCE)}
    other = {(item["kind"], item["metadata"]["name"]): item for item in objects}
    assert other.keys() == plain.keys()
    changed = {key: other[key] for key in plain if plain[key] != other[key]}
    assert changed.pop(("CronJob", "qwen-llmperf"))
    assert {key: item["spec"]["ingress"] for key, item in changed.items()} == {
        ("NetworkPolicy", f"prometheus-{name}"): [
            {"from": [READER], "ports": [{"port": port, "protocol": "TCP"}]}
        ]
        for name, port in (("servers", 8000), ("clients", METRICS_PORT))
    }


def test_the_benchmarks_sidecar_answers_where_the_monitor_asks(
    objects: list[Object], for_operator: list[Object]
) -> None:
    benchmark = Pod(named(objects, "CronJob")["qwen-llmperf"])
    follow = benchmark.container("follow")
    assert follow["args"][-2:] == ["--listen", f"0.0.0.0:{METRICS_PORT}"]
    monitor = named(for_operator, "PodMonitor")["clients"]["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert {"name": endpoint["port"], "containerPort": METRICS_PORT} in follow["ports"]
    assert monitor["selector"]["matchLabels"].items() <= benchmark.metadata["labels"].items()


def test_every_server_is_selected_by_its_port_and_gets_its_arm_as_a_label(
    objects: list[Object], for_operator: list[Object]
) -> None:
    monitor = named(for_operator, "PodMonitor")["servers"]["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    for name, deployment in named(objects, "Deployment").items():
        server = Pod(deployment)
        assert monitor["selector"]["matchLabels"].items() <= server.metadata["labels"].items()
        assert endpoint["port"] in [port["name"] for port in server.container("vllm")["ports"]]
        assert server.metadata["labels"]["app.kubernetes.io/name"] == name
    sources = {one["targetLabel"]: one["sourceLabels"] for one in endpoint["relabelings"]}
    assert sources["arm"] == ["__meta_kubernetes_pod_label_app_kubernetes_io_name"]
    assert sources["experiment"] == ["__meta_kubernetes_pod_label_app_kubernetes_io_part_of"]
