"""A promoted variant of the reference experiment: the winner stands, scales and is called; the loser waits."""

from __future__ import annotations

from dataclasses import replace

import kubernetes_validate
import pytest

from cdk8s_charts.parity import options
from cdk8s_charts.workloads.namespace import policies
from cdk8s_charts.workloads.serving import ANNOTATION, deployment, promoted_objects
from experiment import Experiment
from experiment.model import Prometheus, Serve
from experiment.naming import ROLE
from tests.cdk8s_charts.objects import Object, Pod, named, pods_of
from tests.cdk8s_charts.variations import rendered, with_cluster, with_serving

CERTIFICATE = "arn:aws:acm:us-east-2:123456789012:certificate/0a1b2c3d-0000-4444-8888-0123456789ab"
CALLERS = ("10.20.0.0/16", "10.30.0.0/16")
SERVE = Serve(
    arm="qwen-sd-vllm", replicas=1, max_replicas=2, certificate_arn=CERTIFICATE, client_cidrs=CALLERS
)
SERVICE, BALANCER = "qwen3-32b-service", "qwen3-32b-service-tls"


def promoted_from(reference: Experiment, serve: Serve) -> Experiment:
    return replace(with_serving(reference, api_key_secret="vllm-key"), serve=serve)


@pytest.fixture(scope="module")
def promoted(reference: Experiment) -> list[Object]:
    return rendered(promoted_from(reference, SERVE))


def test_the_winner_stands_behind_a_stable_name_within_the_cluster_and_the_loser_waits_at_zero(
    promoted: list[Object],
) -> None:
    replicas = {name: item["spec"]["replicas"] for name, item in named(promoted, "Deployment").items()}
    assert replicas == {"qwen-sd-vllm": 1, "qwen-vllm": 0}
    spec = named(promoted, "Service")[SERVICE]["spec"]
    assert spec["selector"] == {"app.kubernetes.io/name": "qwen-sd-vllm", ROLE: "server"}
    assert spec["type"] == "ClusterIP"
    assert [port["port"] for port in spec["ports"]] == [8000]


def test_the_load_balancer_is_internal_ends_tls_and_names_its_callers(promoted: list[Object]) -> None:
    balancer = named(promoted, "Service")[BALANCER]
    annotations = balancer["metadata"]["annotations"]
    assert annotations[f"{ANNOTATION}type"] == "nlb"
    assert annotations[f"{ANNOTATION}internal"] == "true"
    assert annotations[f"{ANNOTATION}ssl-cert"] == CERTIFICATE
    assert annotations[f"{ANNOTATION}additional-resource-tags"] == "experiment=qwen3-32b"
    assert balancer["spec"]["loadBalancerSourceRanges"] == list(CALLERS)
    assert balancer["spec"]["externalTrafficPolicy"] == "Local"
    assert [port["port"] for port in balancer["spec"]["ports"]] == [443]


def test_replicas_follow_a_metric_of_the_runtime_that_counts_waiting_requests_of_all_pods(
    promoted: list[Object], reference: Experiment
) -> None:
    spec = named(promoted, "ScaledObject")[SERVICE]["spec"]
    assert spec["scaleTargetRef"]["name"] == "qwen-sd-vllm"
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 2)
    (trigger,) = spec["triggers"]
    told = trigger["metadata"]
    assert trigger["type"] == "metrics-api"
    assert told["url"] == "http://qwen3-32b-service.qwen3-32b.svc.cluster.local:8000/metrics"
    assert (told["format"], told["aggregationType"], told["targetValue"]) == ("prometheus", "sum", "4")
    assert told["valueLocation"] in reference.baseline.runtime.metrics


def test_callers_and_the_autoscaler_alone_are_let_in_beside_the_benchmark(promoted: list[Object]) -> None:
    policy = named(promoted, "NetworkPolicy")["promoted"]["spec"]
    assert policy["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == "qwen-sd-vllm"
    (rule,) = policy["ingress"]
    *blocks, keda = rule["from"]
    assert [peer["ipBlock"]["cidr"] for peer in blocks] == list(CALLERS)
    assert keda["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "keda"}
    assert rule["ports"] == [{"port": 8000, "protocol": "TCP"}]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy


def test_once_a_service_and_a_prometheus_have_ended_nobody_they_let_in_is_let_in_though_nothing_is_deleted(
    reference: Experiment,
) -> None:
    """Whoever applies the manifests, an object that is no longer among them stays."""
    watched = with_cluster(reference, prometheus=Prometheus(namespace="monitoring"))
    cluster: dict[str, Object] = {}

    def let_in(experiment: Experiment) -> list[Object]:
        cluster.update(named(policies(experiment), "NetworkPolicy"))
        rules = [rule for one in cluster.values() for rule in one["spec"].get("ingress", ())]
        return [peer for rule in rules for peer in rule["from"]]

    (client,) = let_in(reference)
    assert len(let_in(promoted_from(watched, SERVE))) == 1 + len(CALLERS) + 3
    assert let_in(reference) == [client] == [{"podSelector": {"matchLabels": {ROLE: "client"}}}]


def test_what_is_not_asked_for_is_not_rendered(reference: Experiment) -> None:
    plain = promoted_from(reference, Serve(arm="qwen-vllm", replicas=2, max_replicas=2))
    assert promoted_objects(plain).keys() == {"60-service"}
    assert not named(policies(plain), "NetworkPolicy")["promoted"]["spec"].get("ingress")
    assert deployment(plain, plain.baseline)["spec"]["replicas"] == 2


def test_answers_of_a_drafting_arm_are_limited_to_what_was_measured(
    promoted: list[Object], reference: Experiment
) -> None:
    """Both arms alike, so that the promoted one stays the Deployment that was compared."""
    for pod in pods_of(named(promoted, "Deployment").values()):
        server = pod.container("vllm")
        assert options(server["command"])["--override-generation-config"] == {"max_new_tokens": 600}
        assert server["lifecycle"]["preStop"]["exec"]["command"][-1] == "135", "600 tokens at 0.2 s, and 15 s"
    prompts = (replace(reference.prompts[0], max_tokens=700), *reference.prompts[1:])
    assert replace(reference, serve=SERVE, prompts=prompts).answer_limit == 700


@pytest.mark.parametrize("serve", [None, Serve(arm="qwen-vllm", replicas=1, max_replicas=1)])
def test_answers_of_others_are_as_long_as_the_context_lets_them(
    reference: Experiment, serve: Serve | None
) -> None:
    experiment = replace(reference, serve=serve)
    server = Pod(deployment(experiment, experiment.arms[0])).container("vllm")
    assert "--override-generation-config" not in server["command"]


ROUTED = Serve(
    routes={"json": "qwen-sd-vllm", "code": "qwen-sd-vllm", "*": "qwen-vllm"},
    most_at_once={"qwen-sd-vllm": 11},
    certificate_arn=CERTIFICATE,
    client_cidrs=CALLERS,
)


@pytest.fixture(scope="module")
def routed(reference: Experiment) -> list[Object]:
    return rendered(promoted_from(reference, ROUTED))


def test_with_routes_both_arms_are_up_and_every_caller_meets_the_gateway(routed: list[Object]) -> None:
    replicas = {name: item["spec"]["replicas"] for name, item in named(routed, "Deployment").items()}
    assert replicas == {"qwen-sd-vllm": 1, "qwen-vllm": 1, "qwen3-32b-gateway": 2}
    services = named(routed, "Service")
    for name in (SERVICE, BALANCER):
        chosen = services[name]["spec"]["selector"]
        assert chosen == {"app.kubernetes.io/name": "qwen3-32b-gateway", ROLE: "gateway"}
    assert [port["port"] for port in services["qwen-vllm"]["spec"]["ports"]] == [8000, 8001]
    assert {port["targetPort"] for port in services["qwen-vllm"]["spec"]["ports"]} == {"http"}


def test_its_objects_are_strictly_valid(reference: Experiment) -> None:
    for objects in promoted_objects(promoted_from(reference, ROUTED)).values():
        for item in objects:
            kubernetes_validate.validate(item, "1.36", strict=True)


def test_each_nginx_gets_half_of_the_limit_and_every_arm_has_a_second_choice(
    routed: list[Object], reference: Experiment
) -> None:
    (file,) = (
        item["data"]["nginx.conf"]
        for item in named(routed, "ConfigMap").values()
        if "nginx.conf" in item["data"]
    )
    host = "{}.qwen3-32b.svc.cluster.local".format
    assert f"server {host('qwen-sd-vllm')}:8000 max_conns=5 max_fails=2" in file
    assert f"server {host('qwen-vllm')}:8001 backup;" in file
    assert f"server {host('qwen-vllm')}:8000 max_fails=2" in file
    assert f"server {host('qwen-sd-vllm')}:8001 backup;" in file
    assert r'"~^=json\z" qwen-sd-vllm;' in file
    # 1,024 tokens of context less 600 of the longest answer and the 7 of a drafted step, at four bytes.
    assert f"client_max_body_size {4 * (1024 - 600 - 7)};" in file
    assert "return 401;" in file
    alone = promoted_from(reference, Serve(routes={"*": "qwen-vllm"}))
    assert (
        "backup"
        not in next(iter(named(promoted_objects(alone)["58-gateway"], "ConfigMap").values()))["data"][
            "nginx.conf"
        ]
    )


def test_the_gateway_alone_calls_the_routed_arms_and_runs_as_nobody_in_particular(
    routed: list[Object],
) -> None:
    rules = named(routed, "NetworkPolicy")
    gateway = {"podSelector": {"matchLabels": {ROLE: "gateway"}}}
    assert rules["promoted"]["spec"]["ingress"][0]["from"] == [gateway]
    callers = rules["gateway"]["spec"]["ingress"][0]
    assert callers["ports"] == [{"port": 8080, "protocol": "TCP"}]
    assert [peer["ipBlock"]["cidr"] for peer in callers["from"][1:]] == list(CALLERS)
    assert {"to": [gateway], "ports": [{"port": 8080, "protocol": "TCP"}]} in rules["clients"]["spec"][
        "egress"
    ]
    (servers, _) = rules["gateway"]["spec"]["egress"]
    assert servers["ports"] == [{"port": 8000, "endPort": 8001, "protocol": "TCP"}], "both ports of a Service"
    pod = Pod(named(routed, "Deployment")["qwen3-32b-gateway"])
    security = pod.container("nginx")["securityContext"]
    assert pod.container("nginx")["livenessProbe"]["httpGet"]["path"] == "/ready"
    assert security["readOnlyRootFilesystem"]
    assert pod.spec["securityContext"]["runAsNonRoot"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert pod.spec["terminationGracePeriodSeconds"] >= 600 * 0.2, "the longest answer ends"
