"""One promoted variant of the reference experiment, rendered: the winner stands, scales and is called; the loser waits."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from cdk8s_charts.engine.command import serve_argv
from cdk8s_charts.manifests import ManifestFile
from cdk8s_charts.parity import options
from cdk8s_charts.render import render
from cdk8s_charts.workloads.promoted import ANNOTATION, scaled_object
from experiment import Experiment, load
from experiment.model import Serve
from tests.cdk8s_charts.conftest import of_kind
from tests.conftest import REFERENCE

CERTIFICATE = "arn:aws:acm:us-east-2:123456789012:certificate/0a1b2c3d-0000-4444-8888-0123456789ab"
SERVE = Serve(
    arm="qwen-sd-vllm",
    replicas=1,
    max_replicas=2,
    certificate_arn=CERTIFICATE,
    client_cidrs=("10.20.0.0/16", "10.30.0.0/16"),
)
SERVICE, BALANCER = "qwen3-32b-service", "qwen3-32b-service-tls"


def promoted_from(reference: Experiment, serve: Serve) -> Experiment:
    serving = reference.baseline.serving.model_copy(update={"api_key_secret": "vllm-key"})
    arms = tuple(replace(arm, serving=serving) for arm in reference.arms)
    return replace(reference, arms=arms, serve=serve)


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return promoted_from(load(REFERENCE), SERVE)


@pytest.fixture(scope="module")
def promoted(experiment: Experiment) -> tuple[ManifestFile, ...]:
    return render(experiment)


def objects(files: tuple[ManifestFile, ...]) -> list[dict[str, Any]]:
    return [copy.deepcopy(item) for file in files for item in file.objects]


def test_the_winner_stands_and_the_loser_waits_at_zero(promoted: tuple[ManifestFile, ...]) -> None:
    replicas = {name: item["spec"]["replicas"] for name, item in of_kind(promoted, "Deployment").items()}
    assert replicas == {"qwen-sd-vllm": 1, "qwen-vllm": 0}


def test_the_stable_name_leads_to_the_winner_and_only_within_the_cluster(
    promoted: tuple[ManifestFile, ...],
) -> None:
    spec = of_kind(promoted, "Service")[SERVICE]["spec"]
    assert spec["selector"] == {"app.kubernetes.io/name": "qwen-sd-vllm"}
    assert spec["type"] == "ClusterIP"
    assert [port["port"] for port in spec["ports"]] == [8000]


def test_the_load_balancer_is_internal_ends_tls_and_names_its_callers(
    promoted: tuple[ManifestFile, ...],
) -> None:
    balancer = of_kind(promoted, "Service")[BALANCER]
    annotations = balancer["metadata"]["annotations"]
    assert annotations[f"{ANNOTATION}type"] == "nlb"
    assert annotations[f"{ANNOTATION}internal"] == "true"
    assert annotations[f"{ANNOTATION}ssl-cert"] == CERTIFICATE
    assert annotations[f"{ANNOTATION}additional-resource-tags"] == "experiment=qwen3-32b"
    assert all(isinstance(value, str) for value in annotations.values())
    assert balancer["spec"]["loadBalancerSourceRanges"] == ["10.20.0.0/16", "10.30.0.0/16"]
    assert balancer["spec"]["externalTrafficPolicy"] == "Local"
    assert [port["port"] for port in balancer["spec"]["ports"]] == [443]


def test_replicas_follow_the_waiting_requests_of_all_pods(promoted: tuple[ManifestFile, ...]) -> None:
    spec = of_kind(promoted, "ScaledObject")[SERVICE]["spec"]
    assert spec["scaleTargetRef"]["name"] == "qwen-sd-vllm"
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 2)
    (trigger,) = spec["triggers"]
    assert trigger["type"] == "metrics-api"
    metadata = trigger["metadata"]
    assert metadata["url"] == "http://qwen3-32b-service.qwen3-32b.svc.cluster.local:8000/metrics"
    assert metadata["format"] == "prometheus"
    assert metadata["aggregationType"] == "sum"
    assert metadata["targetValue"] == "4"
    assert all(isinstance(value, str) for value in metadata.values())


def test_the_metric_that_scales_is_one_that_the_runtime_publishes(experiment: Experiment) -> None:
    (trigger,) = scaled_object(experiment, SERVE)["spec"]["triggers"]
    runtime = experiment.baseline.runtime
    assert trigger["metadata"]["valueLocation"] in runtime.metrics


def test_callers_and_the_autoscaler_alone_are_let_in_beside_the_benchmark(
    promoted: tuple[ManifestFile, ...],
) -> None:
    policy = of_kind(promoted, "NetworkPolicy")["promoted"]["spec"]
    assert policy["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == "qwen-sd-vllm"
    (rule,) = policy["ingress"]
    assert [peer["ipBlock"]["cidr"] for peer in rule["from"][:2]] == ["10.20.0.0/16", "10.30.0.0/16"]
    (keda,) = rule["from"][2:]
    assert keda["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "keda"}
    assert rule["ports"] == [{"port": 8000, "protocol": "TCP"}]
    assert policy["egress"] == []


def test_what_is_not_asked_for_is_not_rendered() -> None:
    plain = promoted_from(load(REFERENCE), Serve(arm="qwen-vllm", replicas=2, max_replicas=2))
    files = render(plain)
    assert {file.name for file in files if file.name >= "6"} == {"60-service.yaml"}
    assert "promoted" not in of_kind(files, "NetworkPolicy")
    assert of_kind(files, "Deployment")["qwen-vllm"]["spec"]["replicas"] == 2


def test_answers_of_a_drafting_arm_are_limited_to_what_was_measured(
    promoted: tuple[ManifestFile, ...],
) -> None:
    """Both arms alike, so that the promoted one stays the Deployment that was compared."""
    for deployment in of_kind(promoted, "Deployment").values():
        (server,) = deployment["spec"]["template"]["spec"]["containers"]
        assert options(server["command"])["--override-generation-config"] == {"max_new_tokens": 600}
        assert server["lifecycle"]["preStop"]["exec"]["command"][-1] == "135", "600 tokens at 0.2 s, and 15 s"


@pytest.mark.parametrize("serve", [None, Serve(arm="qwen-vllm", replicas=1, max_replicas=1)])
def test_answers_of_others_are_as_long_as_the_context_lets_them(serve: Serve | None) -> None:
    experiment = replace(load(REFERENCE), serve=serve)
    assert experiment.answer_limit is None
    for arm in experiment.arms:
        assert "--override-generation-config" not in serve_argv(arm, answer_limit=experiment.answer_limit)


def test_a_longer_answer_of_one_prompt_is_the_limit() -> None:
    reference = load(REFERENCE)
    prompts = (replace(reference.prompts[0], max_tokens=700), *reference.prompts[1:])
    assert replace(reference, serve=SERVE, prompts=prompts).answer_limit == 700


def test_without_a_promoted_arm_there_is_no_service_of_it() -> None:
    assert not [file.name for file in render(load(REFERENCE)) if file.name >= "6"]
