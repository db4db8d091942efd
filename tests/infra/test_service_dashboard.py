from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from experiment import Experiment
from experiment.model import Serve
from infra.monitoring.pages import service_page
from tests.infra.cloudwatch_rules import expanded, violations
from tests.infra.templates import Deployment, resolved

SERVE = Serve(
    arm="qwen-sd-vllm",
    replicas=1,
    max_replicas=2,
    certificate_arn="arn:aws:acm:us-east-2:123456789012:certificate/a",
    client_cidrs=("10.20.0.0/16",),
)


def widgets(experiment: Experiment, serve: Serve = SERVE) -> list[dict[str, Any]]:
    page = service_page(replace(experiment, serve=serve))
    assert page is not None
    found: list[dict[str, Any]] = json.loads(page.body)["widgets"]
    return found


def titled(experiment: Experiment, beginning: str) -> dict[str, Any]:
    found = (one["properties"] for one in widgets(experiment))
    return next(one for one in found if one.get("title", "").startswith(beginning))


@pytest.mark.parametrize("serve", [SERVE, Serve(arm="qwen-vllm", replicas=2, max_replicas=2)])
def test_cloudwatch_takes_the_page(experiment: Experiment, serve: Serve) -> None:
    assert violations({"widgets": widgets(experiment, serve)}) == []


def test_nothing_is_shown_while_nothing_is_promoted(experiment: Experiment) -> None:
    assert service_page(experiment) is None


def test_the_cost_is_the_arms_share_of_its_node_for_each_replica(experiment: Experiment) -> None:
    shown, source = expanded(titled(experiment, "USD an hour")["metrics"])
    assert re.fullmatch(r"\d+\.\d+\*replicas", shown[-1]["expression"])
    assert source[1] == "service_number_of_running_pods"
    assert source[source.index("Service") + 1] == "qwen3-32b-service"
    assert source[-1]["id"] == "replicas"


@pytest.mark.parametrize(
    ("line", "running", "waiting"),
    [
        (
            "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 1.0 tokens/s, "
            "Running: 4 reqs, Waiting: 11 reqs, GPU KV cache usage: 0.1%",
            "4",
            "11",
        ),
        ("throughput: 1.0 tokens/s, Running: 2 reqs, Swapped: 0 reqs, Pending: 7 reqs, GPU KV", "2", "7"),
    ],
)
def test_the_log_query_reads_the_lines_of_both_engines(
    experiment: Experiment, line: str, running: str, waiting: str
) -> None:
    query = titled(experiment, "Requests in one replica")["query"]
    assert query.startswith("SOURCE '/aws/containerinsights/qwen3-32b/application'")
    pattern = query.split(" | parse log /")[1].split("/ | filter")[0].replace("(?<", "(?P<")
    match = re.search(pattern, line)
    assert match is not None
    assert (match["running"], match["waiting"]) == (running, waiting)


def test_the_query_keeps_to_the_pods_of_the_arm(experiment: Experiment) -> None:
    query = titled(experiment, "Requests in one replica")["query"]
    (pattern,) = re.findall(r"pod_name like /(.+?)/", query)
    assert re.search(pattern, "qwen-sd-vllm-5d9c7b6f4-x2x9z")
    assert not re.search(pattern, "qwen-sd-vllm-k3-5d9c7b6f4-x2x9z")


def test_the_load_balancer_is_shown_where_there_is_one(experiment: Experiment) -> None:
    def searches(serve: Serve) -> list[str]:
        lines = [line for one in widgets(experiment, serve) for line in one["properties"].get("metrics", ())]
        return [line[-1]["expression"] for line in lines if "SEARCH" in str(line)]

    assert len(searches(SERVE)) == 4
    assert searches(SERVE.model_copy(update={"certificate_arn": None})) == []


def test_a_promoted_experiment_deploys_the_page(rented_deployment: Deployment, rented: Experiment) -> None:
    page = service_page(rented)
    assert page is not None
    found = {
        one.properties["DashboardName"]: resolved(one.properties["DashboardBody"])
        for one in rented_deployment.resources("AWS::CloudWatch::Dashboard")
    }
    assert found[page.name] == page.body
    assert page.name == "rented-us-east-2-service"
