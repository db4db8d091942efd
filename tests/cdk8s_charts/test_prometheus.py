"""A Prometheus of the team's own: what it may read, what it is told, and that without one nothing changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdk8s_charts.manifests import ManifestFile
from cdk8s_charts.render import render, render_for_prometheus
from experiment import Experiment
from experiment.model import Prometheus
from experiment.naming import METRICS_PORT
from tests.cdk8s_charts.conftest import objects_in
from tests.cdk8s_charts.objects import Object, named

READER = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
}


@pytest.fixture(scope="module")
def watched(reference: Experiment) -> Experiment:
    prometheus = Prometheus(namespace="monitoring", labels={"release": "kube-prometheus-stack"})
    cluster = reference.cluster.model_copy(update={"prometheus": prometheus})
    return replace(reference, cluster=cluster)


@pytest.fixture(scope="module")
def objects(watched: Experiment) -> list[Object]:
    return objects_in(render(watched))


@pytest.fixture(scope="module")
def for_operator(watched: Experiment) -> list[Object]:
    return list(render_for_prometheus(watched, [{"name": "mine", "rules": []}]).objects)


def test_only_pods_of_prometheus_are_let_in_and_only_where_metrics_are(objects: list[Object]) -> None:
    policies = named(objects, "NetworkPolicy")
    ingress = {name: policies[f"prometheus-{name}"]["spec"]["ingress"] for name in ("servers", "clients")}
    assert ingress["servers"] == [{"from": [READER], "ports": [{"port": 8000, "protocol": "TCP"}]}]
    assert ingress["clients"] == [{"from": [READER], "ports": [{"port": METRICS_PORT, "protocol": "TCP"}]}]


def test_the_benchmarks_sidecar_answers_where_the_monitor_asks(
    objects: list[Object], for_operator: list[Object]
) -> None:
    body = named(objects, "CronJob")["qwen-llmperf"]["spec"]["jobTemplate"]["spec"]["template"]
    (follow,) = (one for one in body["spec"]["initContainers"] if one["name"] == "follow")
    assert follow["args"][-2:] == ["--listen", f"0.0.0.0:{METRICS_PORT}"]
    monitor = named(for_operator, "PodMonitor")["clients"]["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert {"name": endpoint["port"], "containerPort": METRICS_PORT} in follow["ports"]
    assert monitor["selector"]["matchLabels"].items() <= body["metadata"]["labels"].items()


def test_every_server_is_selected_by_its_port_and_gets_its_arm_as_a_label(
    objects: list[Object], for_operator: list[Object]
) -> None:
    monitor = named(for_operator, "PodMonitor")["servers"]["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    for name, deployment in named(objects, "Deployment").items():
        template = deployment["spec"]["template"]
        assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert endpoint["port"] in [port["name"] for port in template["spec"]["containers"][0]["ports"]]
        assert template["metadata"]["labels"]["app.kubernetes.io/name"] == name
    sources = {one["targetLabel"]: one["sourceLabels"] for one in endpoint["relabelings"]}
    assert sources["arm"] == ["__meta_kubernetes_pod_label_app_kubernetes_io_name"]
    assert sources["experiment"] == ["__meta_kubernetes_pod_label_app_kubernetes_io_part_of"]


def test_monitors_and_rules_have_the_labels_that_prometheus_selects_by(for_operator: list[Object]) -> None:
    assert [item["kind"] for item in for_operator] == ["PodMonitor", "PodMonitor", "PrometheusRule"]
    for item in for_operator:
        assert item["apiVersion"] == "monitoring.coreos.com/v1"
        assert item["metadata"]["namespace"] == "qwen3-32b"
        assert item["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    assert for_operator[-1]["spec"]["groups"] == [{"name": "mine", "rules": []}]


def test_nothing_else_changes(files: tuple[ManifestFile, ...], objects: list[Object]) -> None:
    plain = {(item["kind"], item["metadata"]["name"]): item for item in objects_in(files)}
    other = {(item["kind"], item["metadata"]["name"]): item for item in objects}
    added = {name for kind, name in other.keys() - plain.keys() if kind == "NetworkPolicy"}
    assert added == {"prometheus-servers", "prometheus-clients"}
    assert len(other) == len(plain) + 2
    assert {key for key in plain if plain[key] != other[key]} == {("CronJob", "qwen-llmperf")}
