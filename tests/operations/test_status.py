"""`scale`: nodes up with a time to live, down whatever happens; `status`: what there is, and what to do about what is not well."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID

from tests.conftest import NODE_USD
from tests.operations.clients import make_stacks, stubbed
from tests.operations.conftest import Say
from tests.operations.world import World
from trnspec.core.findings import Refusal
from trnspec.experiment import Experiment
from trnspec.experiment.cost import idle, per_hour
from trnspec.experiment.naming import neuron_nodegroup
from trnspec.operations import status
from trnspec.operations.cloud import cloudformation, nodegroup
from trnspec.operations.cloud.aws import Aws

pytestmark = pytest.mark.usefixtures("direct")
RENTAL = {"Name": "qwen3-32b-scale-to-zero", "GroupName": "qwen3-32b-off"}


def test_scale_sets_nodes_with_a_time_to_live_and_back(world: World, say: Say) -> None:
    code, out, _ = say("nodes", "1", "--hours", "2")
    assert code == 0
    set_to_1 = f"set from 0 to 1 node; ${NODE_USD:.2f} an hour (quoted: Capacity Block rate, ap-south-2, 2026-10-03). They are set to 0 at 20"
    assert set_to_1 in " ".join(out.split())
    assert world.nodes == 1
    schedule = world.client("scheduler").get_schedule(**RENTAL)
    assert schedule["ScheduleExpression"].startswith("at(20")
    assert schedule["ActionAfterCompletion"] == "DELETE"
    assert schedule["Target"]["RoleArn"] == world.off_role()
    assert schedule["Target"]["DeadLetterConfig"]["Arn"].endswith(":failures")
    assert json.loads(schedule["Target"]["Input"]) == {
        "ClusterName": "qwen3-32b",
        "NodegroupName": "qwen3-32b-trn2-a-on-demand-d2-28",
        "ScalingConfig": {"MinSize": 0, "DesiredSize": 0},
    }
    assert say("nodes", "1", "--hours", "1")[0] == 0  # replaces the schedule
    code, out, _ = say("nodes", "0", "--json")
    assert (code, json.loads(out)["nodes"], world.nodes, world.rentals()) == (0, 0, 0, [])
    day = timedelta(days=1)
    (point,) = world.client("cloudwatch").get_metric_statistics(
        Namespace="SpeculativeDecoding/qwen3-32b",
        MetricName="RunActive",
        Dimensions=[{"Name": "Experiment", "Value": "qwen3-32b"}],
        StartTime=datetime.now(UTC) - day,
        EndTime=datetime.now(UTC) + day,
        Period=172800,
        Statistics=["Minimum"],
    )["Datapoints"]
    assert point["Minimum"] == 0, "no nodes means that no run is on"


def test_what_is_tried_only_or_refused_changes_nothing(world: World, say: Say) -> None:
    code, out, _ = say("nodes", "1", "--dry-run")
    assert (code, "would be set" in out) == (0, True)
    code, out, err = say("nodes", "2")
    assert (code, out, "2 nodes: qwen3-32b allows 1; raise cluster.max_nodes of the" in err) == (2, "", True)
    assert (world.nodes, world.rentals()) == (0, [])
    world.client("eks").delete_nodegroup(
        clusterName="qwen3-32b", nodegroupName=neuron_nodegroup(world.experiment)
    )
    code, _, err = say("nodes", "1")
    absent = (
        "node group qwen3-32b-trn2-a-on-demand-d2-28: none in account 123456789012, us-east-2; run ./trnspec"
    )
    assert (code, absent in err) == (1, True)


def test_a_group_that_the_file_no_longer_describes_can_be_turned_off_and_not_on(
    world: World, say: Say
) -> None:
    """The file was changed and not deployed: what stands must not bill on because its name is another."""
    eks, standing = world.client("eks"), "qwen3-32b-trn2-b-reservation-9abcdef0"
    more: dict[str, Any] = {"subnets": ["subnet-0a"], "nodeRole": "arn:aws:iam::123456789012:role/nodes"}
    more["scalingConfig"] = {"minSize": 0, "desiredSize": 1, "maxSize": 1}
    eks.delete_nodegroup(clusterName="qwen3-32b", nodegroupName=neuron_nodegroup(world.experiment))
    for name in (standing, "qwen3-32b-system"):
        eks.create_nodegroup(clusterName="qwen3-32b", nodegroupName=name, **more)
    for dry in ((), ("--dry-run",)):
        code, _, err = say("nodes", "1", *dry)
        assert (code, f"node group {standing}: exists, and the experiment now describes " in err) == (1, True)
        assert "take the change of cluster.capacity and cluster.availability_zones back" in err
    assert world.rentals() == []
    code, out, _ = say("nodes", "0")
    assert (code, f"{standing}: set from 1 to 0 nodes" in out) == (0, True)
    for name, nodes in ((standing, 0), ("qwen3-32b-system", 1)):
        found = eks.describe_nodegroup(clusterName="qwen3-32b", nodegroupName=name)["nodegroup"]
        assert found["scalingConfig"]["desiredSize"] == nodes


DAILY = {"Name": "qwen3-32b-daily", "GroupName": "qwen3-32b-off"}


def _without_schedule(world: World) -> None:
    world.client("scheduler").delete_schedule(**DAILY)


def _with_schedule(**changes: Any) -> Callable[[World], None]:
    def change(world: World) -> None:
        scheduler = world.client("scheduler")
        kept = scheduler.get_schedule(**DAILY)
        names = ("ScheduleExpression", "FlexibleTimeWindow", "State", "Target")
        scheduler.update_schedule(**DAILY, **({name: kept[name] for name in names} | changes))

    return change


def _of_another_group(world: World) -> None:
    target = world.client("scheduler").get_schedule(**DAILY)["Target"]
    told = json.loads(target["Input"]) | {"NodegroupName": "qwen3-32b-trn2-b-on-demand"}
    _with_schedule(Target={**target, "Input": json.dumps(told)})(world)


def _without_role(world: World) -> None:
    iam = world.client("iam")
    iam.delete_role_policy(RoleName="qwen3-32b-us-east-2-trn2-off", PolicyName="off")
    iam.delete_role(RoleName="qwen3-32b-us-east-2-trn2-off")


def test_a_rental_ends_with_the_daily_hour_where_that_comes_first_and_says_so(world: World, say: Say) -> None:
    daily = (datetime.now(UTC) + timedelta(hours=1)).replace(second=0, microsecond=0)
    _with_schedule(ScheduleExpression=f"cron({daily.minute} {daily.hour} * * ? *)")(world)
    for dry in (["--dry-run"], []):
        code, out, err = say("nodes", "1", "--hours", "3", *dry)
        assert (code, f"set to 0 at {daily:%Y-%m-%dT%H:%M:%SZ}" in " ".join(out.split())) == (0, True)
        assert "before 3 hours are over: every day at 22:00 UTC" in err
    (rental,) = world.rentals()
    found = world.client("scheduler").get_schedule(Name=rental["Name"], GroupName=rental["GroupName"])
    assert found["ScheduleExpression"] == f"at({daily:%Y-%m-%dT%H:%M:%S})"
    assert json.loads(say("status", "--json")[1])["trn2"]["off_at"] == f"{daily:%Y-%m-%dT%H:%M:%SZ}"
    assert "before" not in say("nodes", "1", "--hours", "0.5")[2]
    _with_schedule(ScheduleExpression="rate(1 day)")(world)
    code, _, err = say("nodes", "1", "--hours", "3")
    assert (code, "qwen3-32b-daily: acts at rate(1 day), which no deployment set" in err) == (1, True)


ROLE = "role qwen3-32b-us-east-2-trn2-off: "


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (_without_schedule, "schedule qwen3-32b-daily: does not exist"),
        (_with_schedule(State="DISABLED"), "schedule qwen3-32b-daily: is DISABLED"),
        (_of_another_group, "schedule qwen3-32b-daily: is about node group qwen3-32b-trn2-b-on-demand"),
        (_without_role, f"{ROLE}does not exist"),
        (lambda world: world.allow_off("Deny"), f"{ROLE}may not do eks:UpdateNodegroupConfig"),
    ],
)
def test_no_node_starts_where_the_schedule_could_not_act_and_one_that_stands_goes_down(
    broken: Callable[[World], None], words: str, world: World, say: Say
) -> None:
    broken(world)
    code, _, err = say("nodes", "1")
    assert (code, world.nodes, world.rentals()) == (1, 0, [])
    assert words in err
    assert "so nothing would set the nodes back to 0; no nodes are started" in err
    assert len(err.splitlines()) == 1
    world.group.scaling_config["desiredSize"] = 1
    assert (say("nodes", "0")[0], world.nodes) == (0, 0)


def test_a_group_that_eks_is_changing_is_one_line(world: World, aws: Aws) -> None:
    group = nodegroup.read(world.experiment, aws)
    eks, stub = stubbed("eks")
    stub.add_client_error("update_nodegroup_config", "ResourceInUseException")
    busy = Aws("us-east-2", make_client=lambda _: eks)
    with pytest.raises(Refusal, match=f"{group.name}: EKS is changing it .*run this again"):
        nodegroup.set_size(world.experiment, busy, nodes=1, group=group)


@pytest.mark.parametrize(
    "refused", [("describe_nodegroup",), ("describe_nodegroup", "update_nodegroup_config")]
)
def test_nodes_are_said_to_be_at_0_only_once_they_were_set(
    refused: tuple[str, ...], world: World, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    eks, stub = stubbed("eks")
    for call in refused:
        stub.add_client_error(call, "AccessDeniedException", "not you")
    if len(refused) == 1:
        stub.add_response("update_nodegroup_config", {"update": {"id": "1"}})
    theirs = Aws._boto_client
    ours = {"eks": eks}
    monkeypatch.setattr(Aws, "_boto_client", lambda own, name: ours.get(name) or theirs(own, name))
    code, out, err = say("nodes", "0")
    _asked, line = err.splitlines()
    assert code == 3
    if len(refused) == 1:
        assert "to 0 nodes" in out
        assert line.endswith("the nodes are set to 0 without it")
    else:
        assert out == ""
        assert "the nodes were not set to 0 and may still bill: set qwen3-32b-trn2-a-on-demand-d2-28" in line


def test_status_shows_what_there_is(world: World, say: Say) -> None:
    say("nodes", "1")
    world.tick()
    world.compiled("qwen-vllm")
    world.api.objects[("deployments", "qwen3-32b", "qwen-vllm")]["spec"]["replicas"] = 1
    world.tick()
    allocation = {"devices": {"results": [{"device": "neuron-0", "pool": "trn2-0"}]}}
    world.api.put("resourceclaims", "held", {"status": {"allocation": allocation}}, namespace="qwen3-32b")
    code, out, _ = say("status", "--json")
    page = json.loads(out)
    assert (code, page["trn2"]["nodes"], page["trn2"]["usd_per_hour"]) == (0, 1, pytest.approx(NODE_USD))
    assert page["cluster"]["nodes"] == [{"name": "trn2-0", "role": "neuron", "ready": True}]
    assert page["cluster"]["claims"] == [{"name": "held", "state": "allocated: neuron-0 on trn2-0"}]
    ready = {arm["name"]: arm["ready"] for arm in page["cluster"]["arms"]}
    assert ready == {"qwen-vllm": 1, "qwen-sd-vllm": 0}
    assert page["artifacts"]["compiled"] == {"qwen-vllm": True, "qwen-sd-vllm": False}
    assert ({one["status"] for one in page["stacks"]}, page["run"]) == ({"absent"}, None)
    assert "until teardown" not in say("status")[1], "no stack of the cluster is deployed"
    make_stacks("qwen3-32b", "workloads", "cluster")
    _, text, _ = say("status")
    quiet = per_hour(idle(world.experiment))
    assert page["dollars"] == {"idle_usd_per_hour": pytest.approx(quiet)}
    assert f"without Trn2 nodes ${quiet:.2f} an hour, ${24 * quiet:.2f} a day" in " ".join(text.split())
    assert "1 of 1 ready" in text
    assert "CREATE_COMPLETE" in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_verify_says_that_no_node_is_there(world: World, say: Say) -> None:
    code, out, _ = say("verify")
    assert (code, "0 Trn2 nodes, 1 are needed" in " ".join(out.split())) == (1, True)
    checks = {one["check"]: one for one in json.loads(say("verify", "--json")[1])["checks"]}
    assert checks["nodes-ready"]["remedy"].startswith("./trnspec nodes")


def test_status_shows_the_composite_alarms_too(experiment: Experiment) -> None:
    """CloudWatch answers with them only when asked for them; moto does not know them."""
    cloudwatch, stub = stubbed("cloudwatch")
    for kind, name in (("MetricAlarm", "run-is-on"), ("CompositeAlarm", "no-data")):
        stub.add_response(
            "describe_alarms",
            {f"{kind}s": [{"AlarmName": f"qwen3-32b-{name}", "StateValue": "OK"}]},
            {"AlarmNamePrefix": "qwen3-32b-", "AlarmTypes": [kind]},
        )
    found = status._StatusSections(experiment, Aws("us-east-2", make_client=lambda _: cloudwatch)).alarms()
    assert [one["name"] for one in found] == ["qwen3-32b-run-is-on", "qwen3-32b-no-data"]


def test_status_shows_the_rest_when_the_cluster_does_not_answer(world: World, say: Say) -> None:
    world.api.refusal = (401, "Unauthorized", "no")
    code, out, err = say("status", "--json")
    page = json.loads(out)
    assert code == 3
    assert page["cluster"] is None
    assert page["trn2"]["nodes"] == 0
    assert "write its ARN into admins of deployment.yaml" in err


INCOMPLETE = {
    "ROLLBACK_COMPLETE": "failed and left nothing: fix what its events name, then run ./trnspec deploy experiments/",
    "UPDATE_ROLLBACK_FAILED": "continue-update-rollback --stack-name qwen3-32b-cluster --region us-east-2",
    "REVIEW_IN_PROGRESS": "./trnspec teardown experiments/qwen3-32b.yaml removes it; to go on, run ./trnspec deploy experiments/qwen3-32b.yaml",
    "DELETE_FAILED": "./trnspec teardown experiments/qwen3-32b.yaml",
}
WELL = ("CREATE_COMPLETE", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS", "absent")


def test_status_says_what_to_do_about_a_deployment_that_broke_off(
    world: World, aws: Aws, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    for state in (*INCOMPLETE, *WELL):
        stack = cloudformation.Stack(name="qwen3-32b-cluster", status=state, reason="Subnet is full.")
        monkeypatch.setattr(cloudformation, "deployed", lambda *_, one=stack: (one,))
        found = cloudformation.incomplete_stacks([stack], world.experiment, aws)
        assert [INCOMPLETE.get(state, "") in one.remedy for one in found] == [True] * (state in INCOMPLETE)
        if state in ("DELETE_FAILED", "UPDATE_IN_PROGRESS"):
            code, out, err = say("status", "--json")
            problems = json.loads(out)["problems"]
            assert (code, len(problems)) == ((1, 1) if found else (0, 0))
            for problem in problems:
                why = f"trnspec status: stack qwen3-32b-cluster: is {state} (Subnet is full)"
                assert err == f"{why}; {problem['remedy']}\n"


@pytest.mark.parametrize(
    ("stages", "delivered"), [("{{dev: {}}}", True), ("[", False), ("{{dev: 1}}", False)], ids=str
)
def test_in_the_account_of_a_stage_no_remedy_deploys_from_a_workstation(
    world: World, aws: Aws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stages: str, delivered: bool
) -> None:
    """docs/pipeline.md forbids it: the pipeline's role would be taken out of the cluster."""
    stage = f'{{account: "{DEFAULT_ACCOUNT_ID}", experiment: experiments/qwen3-32b.yaml}}'
    monkeypatch.setattr(cloudformation, "PIPELINE", tmp_path / "pipeline.yaml")
    (tmp_path / "pipeline.yaml").write_text(f"stages: {stages.format(stage)}", encoding="utf-8")
    for state in INCOMPLETE.keys() - {"DELETE_FAILED"}:
        stack = cloudformation.Stack(name="qwen3-32b-network", status=state)
        (found,) = cloudformation.incomplete_stacks([stack], world.experiment, aws)
        assert ("./trnspec deploy" not in found.remedy) is delivered
        assert ("merge the change: the pipeline deploys it" in found.remedy) is delivered


def test_status_says_who_receives_alarms(world: World, say: Say) -> None:
    sns = world.client("sns")
    assert "notices" not in say("status")[1], "without the topic nothing is deployed that could be silent"
    topic = sns.create_topic(Name="qwen3-32b-notices")["TopicArn"]
    shown = " ".join(say("status")[1].split())
    assert "nobody receives alarms; write alarm_email into deployment.yaml, then ./trnspec deploy" in shown
    sns.subscribe(TopicArn=topic, Protocol="email", Endpoint="team@example.com")
    (told,) = json.loads(say("status", "--json")[1])["notices"]
    assert told["name"] == "team@example.com"
