"""Pods that hold devices while they wait for others: every order in which they may come."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from cdk8s_charts.scheduling import verdicts
from tests.cdk8s_charts.committed import experiment_at, objects_of, pod_spec, the
from tests.conftest import REFERENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    Edit = Callable[[list[dict[str, Any]]], object]

ARMS = ("qwen-vllm", "qwen-sd-vllm")
KEY = "speculation.trn2/artifact-key"


def _compile_jobs(objects: list[dict[str, Any]], *, suspended: bool = False) -> list[dict[str, Any]]:
    """The render with a compile Job an arm, each on the arm's own devices, in place of any that it has."""
    kept = [item for item in objects if item["kind"] != "Job"]
    for name in ARMS:
        deployment = the(kept, "Deployment", name)
        template = copy.deepcopy(deployment["spec"]["template"])
        template["spec"].pop("initContainers")
        template["spec"]["restartPolicy"] = "Never"
        metadata = {"name": f"compile-{name}", "namespace": "qwen3-32b"}
        spec = {"backoffLimit": 1, "suspend": suspended, "template": template}
        kept.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
    return kept


def _raise(objects: list[dict[str, Any]], *names: str) -> None:
    for name in names:
        the(objects, "Deployment", name)["spec"]["replicas"] = 1


def _loop(objects: list[dict[str, Any]], name: str) -> None:
    init = pod_spec(the(objects, "Deployment", name))["initContainers"][0]
    init["command"] = ["/bin/sh", "-c", f"until kubectl get job/compile-{name} -o name; do sleep 5; done"]


def _problems(objects: list[dict[str, Any]]) -> list[str]:
    return verdicts(experiment_at(REFERENCE), objects)[1]


def test_servers_at_zero_and_jobs_that_start_do_not_wait_for_each_other() -> None:
    assert _problems(_compile_jobs(objects_of(REFERENCE))) == []


def test_two_servers_that_fill_the_node_while_their_compile_jobs_wait_is_a_deadlock() -> None:
    objects = _compile_jobs(objects_of(REFERENCE))
    _raise(objects, *ARMS)
    (problem,) = _problems(objects)
    assert "Deployment/qwen-sd-vllm, Deployment/qwen-vllm hold devices while waiting for Job" in problem
    assert "render the waiting pods at 0 replicas" in problem


def test_one_server_leaves_room_for_the_job_that_it_waits_for() -> None:
    objects = _compile_jobs(objects_of(REFERENCE))
    _raise(objects, "qwen-vllm")
    assert _problems(objects) == []


def test_servers_that_wait_in_a_loop_deadlock_even_when_they_are_raised_by_hand() -> None:
    objects = _compile_jobs(objects_of(REFERENCE), suspended=True)
    for name in ARMS:
        _loop(objects, name)
    (problem,) = _problems(objects)
    assert "waiting for Job compile-qwen-sd-vllm, compile-qwen-vllm" in problem


def test_one_server_of_a_whole_node_that_waits_for_its_job_is_a_deadlock() -> None:
    objects = _compile_jobs(objects_of(REFERENCE))
    whole = copy.deepcopy(the(objects, "ResourceClaimTemplate"))
    whole["metadata"]["name"] = "whole"
    devices = whole["spec"]["spec"]["devices"]
    devices["requests"][0]["exactly"]["count"] = 16
    devices["constraints"][0]["matchAttribute"] = "resource.aws.com/devicegroup16_id"
    objects.append(whole)
    pod_spec(the(objects, "Deployment", "qwen-vllm"))["resourceClaims"][0]["resourceClaimTemplateName"] = (
        "whole"
    )
    _loop(objects, "qwen-vllm")
    problems = _problems(objects)
    assert any(
        "Deployment/qwen-vllm holds devices while waiting for Job compile-qwen-vllm" in each
        for each in problems
    )


def test_jobs_that_wait_for_each_other_are_a_deadlock() -> None:
    objects = _compile_jobs(objects_of(REFERENCE))
    for name, other in (ARMS, ARMS[::-1]):
        pod_spec(the(objects, "Job", f"compile-{name}"))["initContainers"] = [
            {
                "name": "wait",
                "image": "a:1.2.3",
                "command": ["sh", "-c", f"until test -e /done/compile-{other}; do sleep 1; done"],
            }
        ]
    (problem,) = _problems(objects)
    assert "waiting for Job" in problem


def test_a_job_that_waits_for_an_earlier_one_is_none() -> None:
    objects = _compile_jobs(objects_of(REFERENCE))
    pod_spec(the(objects, "Job", "compile-qwen-sd-vllm"))["initContainers"] = [
        {
            "name": "wait",
            "image": "a:1.2.3",
            "command": ["sh", "-c", "until compile-qwen-vllm; do sleep 1; done"],
        }
    ]
    assert _problems(objects) == []


@pytest.mark.parametrize("order", [ARMS, ARMS[::-1]])
def test_the_order_of_the_objects_does_not_matter(order: tuple[str, str]) -> None:
    objects = _compile_jobs(objects_of(REFERENCE))
    _raise(objects, *ARMS)
    rest = [item for item in objects if item["kind"] != "Deployment"]
    deployments = [the(objects, "Deployment", name) for name in order]
    for shuffled in (rest + deployments, deployments + rest):
        assert "hold devices while waiting" in _problems(shuffled)[0]


def test_a_hundred_jobs_beside_a_waiting_server_are_no_reason_to_search_long() -> None:
    objects = _compile_jobs(objects_of(REFERENCE))
    _raise(objects, "qwen-vllm")
    for number in range(100):
        job = copy.deepcopy(the(objects, "Job", "compile-qwen-sd-vllm"))
        job["metadata"]["name"] = f"compile-{number}"
        objects.append(job)
    assert _problems(objects) == []
