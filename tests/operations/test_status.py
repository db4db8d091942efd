"""`status`: what there is, what is well, what to do about what is not."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID

from cdk8s_charts.manifests import output_of
from experiment import Experiment
from operations import status
from operations.cloud import cloudformation
from operations.cloud.aws import Aws
from tests.conftest import NODE_USD
from tests.operations.clients import make_stacks, stubbed
from tests.operations.conftest import Say
from tests.operations.world import World

pytestmark = pytest.mark.usefixtures("direct")


def test_status_shows_what_there_is(world: World, say: Say) -> None:
    say("scale", "1")
    world.tick()
    world.compiled("qwen-vllm")
    world.api.objects[("deployments", "qwen3-32b", "qwen-vllm")]["spec"]["replicas"] = 1
    world.tick()
    allocation = {"devices": {"results": [{"device": "neuron-0", "pool": "trn2-0"}]}}
    world.api.put("resourceclaims", "held", {"status": {"allocation": allocation}}, namespace="qwen3-32b")
    code, out, _ = say("status", "--json")
    page = json.loads(out)
    assert code == 0
    assert page["trn2"]["nodes"] == 1
    assert page["trn2"]["usd_per_hour"] == pytest.approx(NODE_USD)
    assert page["cluster"]["nodes"] == [{"name": "trn2-0", "role": "neuron", "ready": True}]
    assert page["cluster"]["claims"] == [{"name": "held", "state": "allocated: neuron-0 on trn2-0"}]
    assert [(arm["name"], arm["ready"]) for arm in page["cluster"]["arms"]] == [
        ("qwen-vllm", 1),
        ("qwen-sd-vllm", 0),
    ]
    assert page["artifacts"]["compiled"] == {"qwen-vllm": True, "qwen-sd-vllm": False}
    assert {one["status"] for one in page["stacks"]} == {"absent"}
    assert page["run"] is None
    _, text, _ = say("status")
    assert "1 of 1 ready" in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_status_says_that_gitops_applies_the_objects(world: World, say: Say) -> None:
    make_stacks("qwen3-32b", "workloads", outputs={output_of("BENCHMARK_IMAGE"): "registry.example/tools:1"})
    assert "CREATE_COMPLETE (GitOps applies the objects)" in say("status")[1]
    stacks = {one["name"]: one for one in json.loads(say("status", "--json")[1])["stacks"]}
    assert stacks["qwen3-32b-workloads"]["by_gitops"] is True
    assert stacks["qwen3-32b-nodes"]["by_gitops"] is False


def test_status_shows_the_composite_alarms_too(experiment: Experiment) -> None:
    """CloudWatch answers with them only when asked for them; moto does not know them."""
    cloudwatch, stub = stubbed("cloudwatch")
    for kind, name in (("MetricAlarm", "run-is-on"), ("CompositeAlarm", "no-data")):
        stub.add_response(
            "describe_alarms",
            {f"{kind}s": [{"AlarmName": f"qwen3-32b-{name}", "StateValue": "OK"}]},
            {"AlarmNamePrefix": "qwen3-32b-", "AlarmTypes": [kind]},
        )
    found = status._Look(experiment, Aws("us-east-2", make_client=lambda _: cloudwatch)).alarms()
    assert [one["name"] for one in found] == ["qwen3-32b-run-is-on", "qwen3-32b-no-data"]


def test_no_nodes_means_that_no_run_is_on(world: World, say: Say) -> None:
    assert say("scale", "0")[0] == 0
    found = world.client("cloudwatch").get_metric_statistics(
        Namespace="SpeculativeDecoding/qwen3-32b",
        MetricName="RunActive",
        Dimensions=[{"Name": "Experiment", "Value": "qwen3-32b"}],
        StartTime=datetime.now(UTC) - timedelta(hours=1),
        EndTime=datetime.now(UTC) + timedelta(hours=1),
        Period=7200,
        Statistics=["Minimum"],
    )
    assert [point["Minimum"] for point in found["Datapoints"]] == [0.0]


def test_status_shows_the_rest_when_the_cluster_does_not_answer(world: World, say: Say) -> None:
    world.api.refusal = (401, "Unauthorized", "no")
    code, out, err = say("status", "--json")
    page = json.loads(out)
    assert code == 3
    assert page["cluster"] is None
    assert page["trn2"]["nodes"] == 0
    assert "write its ARN into admins of deployment.yaml" in err


HALFWAY = {
    "ROLLBACK_COMPLETE": "its first deployment failed and left nothing: fix what its events name, then run ./trnspec deploy experiments/qwen3-32b.yaml",
    "UPDATE_ROLLBACK_FAILED": "aws cloudformation continue-update-rollback --stack-name qwen3-32b-cluster --region us-east-2",
    "REVIEW_IN_PROGRESS": "./trnspec teardown removes it; to go on, run ./trnspec deploy experiments/qwen3-32b.yaml",
    "DELETE_FAILED": "./trnspec teardown goes on",
}
WELL = ("CREATE_COMPLETE", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS", "absent")


def test_status_says_what_to_do_about_a_deployment_that_broke_off(
    world: World, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    for state in (*HALFWAY, *WELL):
        stack = cloudformation.Stack(name="qwen3-32b-cluster", status=state, reason="Subnet is full.")
        monkeypatch.setattr(cloudformation, "deployed", lambda *_, one=stack: (one,))
        code, out, err = say("status", "--json")
        problems = json.loads(out)["problems"]
        assert (code, len(problems)) == ((1, 1) if state in HALFWAY else (0, 0))
        for problem in problems:
            assert HALFWAY[state] in problem["remedy"]
            why = f"trnspec status: stack qwen3-32b-cluster: is {state} (Subnet is full)"
            assert err == f"{why}; {problem['remedy']}\n"


def test_in_the_account_of_a_stage_no_remedy_deploys_from_a_workstation(
    world: World, say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """docs/pipeline.md forbids it: the pipeline's role would be taken out of the cluster."""
    stage = f'{{account: "{DEFAULT_ACCOUNT_ID}", experiment: experiments/qwen3-32b.yaml}}'
    monkeypatch.setattr(cloudformation, "PIPELINE", tmp_path / "pipeline.yaml")
    for text, delivered in (
        (f"stages: {{dev: {stage}}}", True),
        ("stages: [", False),
        ("stages: {dev: 1}", False),
    ):
        (tmp_path / "pipeline.yaml").write_text(text, encoding="utf-8")
        for state in HALFWAY:
            stack = cloudformation.Stack(name="qwen3-32b-network", status=state)
            monkeypatch.setattr(cloudformation, "deployed", lambda *_, one=stack: (one,))
            (problem,) = json.loads(say("status", "--json")[1])["problems"]
            if state != "DELETE_FAILED":
                assert ("./trnspec deploy" not in problem["remedy"]) is delivered
                assert (
                    "merge the change: the pipeline deletes an empty stack" in problem["remedy"]
                ) is delivered


def test_status_says_who_receives_alarms(world: World, say: Say) -> None:
    sns = world.client("sns")
    assert "notices" not in say("status")[1], "without the topic nothing is deployed that could be silent"
    topic = sns.create_topic(Name="qwen3-32b-notices")["TopicArn"]
    shown = " ".join(say("status")[1].split())
    assert "nobody receives alarms; write alarm_email into deployment.yaml, then ./trnspec deploy" in shown
    sns.subscribe(TopicArn=topic, Protocol="email", Endpoint="team@example.com")
    (told,) = json.loads(say("status", "--json")[1])["notices"]
    assert told["name"] == "team@example.com"
