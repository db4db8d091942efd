"""A promoted variant of the reference experiment: the winner stands and is called by a fixed name; the loser waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdk8s_charts.parity import options
from cdk8s_charts.workloads.serving import deployment
from tests.cdk8s_charts.objects import Object, Pod, named, pods_of
from tests.cdk8s_charts.variations import rendered
from trnspec.experiment import Experiment
from trnspec.experiment.model import Serve
from trnspec.experiment.naming import ROLE

SERVE = Serve(arm="qwen-sd-vllm", replicas=2)


@pytest.fixture(scope="module")
def promoted(reference: Experiment) -> list[Object]:
    return rendered(replace(reference, serve=SERVE))


def test_the_winner_stands_behind_a_stable_name_within_the_cluster_and_the_loser_waits_at_zero(
    promoted: list[Object],
) -> None:
    replicas = {name: item["spec"]["replicas"] for name, item in named(promoted, "Deployment").items()}
    assert replicas == {"qwen-sd-vllm": 2, "qwen-vllm": 0}
    spec = named(promoted, "Service")["qwen3-32b-service"]["spec"]
    assert spec["selector"] == {"app.kubernetes.io/name": "qwen-sd-vllm", ROLE: "server"}
    assert spec["type"] == "ClusterIP"
    assert [port["port"] for port in spec["ports"]] == [8000]


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


@pytest.mark.parametrize("serve", [None, Serve(arm="qwen-vllm")])
def test_answers_of_others_are_as_long_as_the_context_lets_them(
    reference: Experiment, serve: Serve | None
) -> None:
    experiment = replace(reference, serve=serve)
    server = Pod(deployment(experiment, experiment.arms[0])).container("vllm")
    assert "--override-generation-config" not in server["command"]
