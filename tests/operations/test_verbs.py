"""The verbs as they are called: output, exit codes, and what they leave behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from cdk8s_charts.manifest_file import ManifestFile, texts, write
from experiment import Experiment
from experiment.naming import artifact_path, neuron_nodegroup
from operations import billing, nodegroup, stacks
from operations.__main__ import main
from operations.aws import Aws
from operations.aws_errors import AwsError
from operations.verbs import VERBS, status, teardown
from tests.conftest import ROOT
from tests.operations.api_server import ApiServer
from tests.operations.clients import shared_client
from tests.operations.clock import FakeClock
from tests.operations.world import World

LAB = ROOT / "experiments" / "lab-tiny.yaml"


@pytest.fixture
def world(experiment: Experiment, api: ApiServer, account: None, monkeypatch: pytest.MonkeyPatch) -> World:
    """A deployed experiment, which the verbs find by themselves."""
    monkeypatch.setattr(Aws, "_boto_client", lambda _self, service: shared_client(service))
    world = World(experiment, api)
    world.deploy()
    return world


Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    """Exit code, stdout and stderr of a verb."""

    def called(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(arguments)
        out, err = capfd.readouterr()
        return code, out, err

    return called


def test_every_verb_has_its_script_and_its_help() -> None:
    for name in VERBS:
        script = ROOT / "scripts" / name
        assert script.stat().st_mode & 0o100
        assert f"operations {name}" in script.read_text() or name in ("forecast", "verify")
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0


def test_scale_sets_nodes_with_a_time_to_live_and_back(world: World, say: Say) -> None:
    code, out, _ = say("scale", "1", "--hours", "2")
    assert code == 0
    assert "set from 0 to 1 nodes; $35.76 an hour (list price) until they are set to 0 at 20" in out
    assert world.nodes == 1
    schedule = world.client("scheduler").get_schedule(
        Name="qwen3-32b-scale-to-zero", GroupName="qwen3-32b-off"
    )
    assert schedule["ScheduleExpression"].startswith("at(20")
    assert schedule["ActionAfterCompletion"] == "DELETE"
    assert schedule["Target"]["RoleArn"] == world.off_role()
    assert json.loads(schedule["Target"]["Input"]) == {
        "ClusterName": "qwen3-32b",
        "NodegroupName": "qwen3-32b-trn2-a-on-demand",
        "ScalingConfig": {"MinSize": 0, "DesiredSize": 0, "MaxSize": 1},
    }
    assert say("scale", "1", "--hours", "1")[0] == 0  # replaces the schedule
    code, out, _ = say("scale", "0", "--json")
    assert (code, json.loads(out)["nodes"], world.nodes) == (0, 0, 0)
    assert world.client("scheduler").list_schedules()["Schedules"] == []


def test_scale_that_is_tried_only_changes_nothing(world: World, say: Say) -> None:
    code, out, _ = say("scale", "1", "--dry-run")
    assert (code, "would be set" in out, world.nodes) == (0, True, 0)
    assert world.client("scheduler").list_schedules()["Schedules"] == []


def test_scale_beyond_what_the_experiment_allows_is_refused(world: World, say: Say) -> None:
    code, _, err = say("scale", "2")
    assert (code, world.nodes) == (2, 0)
    assert err == (
        "scale: 2 nodes: qwen3-32b allows 1; raise cluster.max_nodes of the experiment and deploy, or ask for at most 1\n"
    )


def test_a_group_that_the_file_no_longer_describes_can_be_turned_off_and_not_on(
    world: World, say: Say
) -> None:
    """The file was changed and not deployed: what stands must not bill on because its name is another."""
    eks, standing = world.client("eks"), "qwen3-32b-trn2-b-reservation-9abcdef0"
    role, subnets = "arn:aws:iam::123456789012:role/nodes", ["subnet-0a"]
    sizes = {"minSize": 0, "desiredSize": 1, "maxSize": 1}
    eks.delete_nodegroup(clusterName="qwen3-32b", nodegroupName=neuron_nodegroup(world.experiment))
    for name in (standing, "qwen3-32b-system"):
        eks.create_nodegroup(
            clusterName="qwen3-32b", nodegroupName=name, scalingConfig=sizes, subnets=subnets, nodeRole=role
        )
    for dry in ((), ("--dry-run",)):
        code, _, err = say("scale", "1", *dry)
        assert code == 1
        assert err.startswith(f"scale: node group {standing}: stands, and the experiment now describes ")
        assert "take the change of cluster.capacity and cluster.availability_zones back" in err
    assert world.client("scheduler").list_schedules()["Schedules"] == []
    code, out, _ = say("scale", "0")
    assert (code, f"{standing}: set from 1 to 0 nodes" in out) == (0, True)
    found = eks.describe_nodegroup(clusterName="qwen3-32b", nodegroupName=standing)["nodegroup"]
    assert found["scalingConfig"]["desiredSize"] == 0
    system = eks.describe_nodegroup(clusterName="qwen3-32b", nodegroupName="qwen3-32b-system")["nodegroup"]
    assert system["scalingConfig"]["desiredSize"] == 1


def test_no_node_starts_where_nothing_would_stop_it(
    world: World, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    # moto answers a missing group with a fault of its own, so the refusal comes from the Stubber.
    scheduler = boto3.client("scheduler", region_name="us-east-2")
    with Stubber(scheduler) as stub:
        stub.add_client_error("create_schedule", "ResourceNotFoundException")
        made = {"scheduler": scheduler}
        monkeypatch.setattr(
            Aws, "_boto_client", lambda _self, service: made.get(service) or shared_client(service)
        )
        code, _, err = say("scale", "1")
    assert (code, world.nodes) == (1, 0)
    assert "nothing would set the nodes back to 0 and none are started" in err


def test_scale_of_what_is_not_deployed_is_one_line(
    say: Say, account: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Aws, "_boto_client", lambda _self, service: shared_client(service))
    code, _, err = say("scale", "1")
    assert code == 1
    assert err.startswith(
        "scale: node group qwen3-32b-trn2-a-on-demand: none in account 123456789012, us-east-2; deploy it"
    )


def test_a_wrong_account_is_refused_before_anything_is_changed(world: World, say: Say) -> None:
    code, _, err = say("scale", "1", "--account", "111122223333")
    assert (code, world.nodes) == (1, 0)
    assert "these credentials are not of 111122223333" in err


def test_status_shows_what_there_is(world: World, say: Say) -> None:
    baseline = world.experiment.baseline
    say("scale", "1")
    world.tick()
    world.store("artifacts", f"{artifact_path(baseline)}/COMPLETE", {"key": artifact_path(baseline)})
    world.api.objects[("deployments", "qwen3-32b", "qwen-vllm")]["spec"]["replicas"] = 1
    world.tick()
    allocation = {"devices": {"results": [{"device": "neuron-0", "pool": "trn2-0"}]}}
    world.api.put("resourceclaims", "held", {"status": {"allocation": allocation}}, namespace="qwen3-32b")
    code, out, _ = say("status", "--json")
    page = json.loads(out)
    assert code == 0
    assert page["trn2"]["nodes"] == 1
    assert page["trn2"]["usd_per_hour"] == pytest.approx(35.76)
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


def test_status_shows_the_composite_alarms_too(experiment: Experiment) -> None:
    """CloudWatch answers with them only when asked for them; moto does not know them."""
    cloudwatch = boto3.client(
        "cloudwatch", region_name="us-east-2", aws_access_key_id="a", aws_secret_access_key="b"
    )
    with Stubber(cloudwatch) as stub:
        for kind, name in (("MetricAlarm", "run-is-on"), ("CompositeAlarm", "no-data")):
            stub.add_response(
                "describe_alarms",
                {f"{kind}s": [{"AlarmName": f"qwen3-32b-{name}", "StateValue": "OK"}]},
                {"AlarmNamePrefix": "qwen3-32b-", "AlarmTypes": [kind]},
            )
        found = status._alarms(experiment, Aws("us-east-2", make_client=lambda _: cloudwatch))
    assert [one["name"] for one in found] == ["qwen3-32b-run-is-on", "qwen3-32b-no-data"]


def test_no_nodes_means_that_no_run_is_on(world: World, say: Say) -> None:
    assert say("scale", "0")[0] == 0
    assert _active(world) == [0.0]


def _active(world: World) -> list[float]:
    found = world.client("cloudwatch").get_metric_statistics(
        Namespace="SpeculativeDecoding/qwen3-32b",
        MetricName="RunActive",
        Dimensions=[{"Name": "Experiment", "Value": "qwen3-32b"}],
        StartTime=datetime.now(UTC) - timedelta(hours=1),
        EndTime=datetime.now(UTC) + timedelta(hours=1),
        Period=7200,
        Statistics=["Minimum"],
    )
    return [point["Minimum"] for point in found["Datapoints"]]


def test_status_shows_the_rest_when_the_cluster_does_not_answer(world: World, say: Say) -> None:
    world.api.refusal = (401, "Unauthorized", "no")
    code, out, err = say("status", "--json")
    page = json.loads(out)
    assert code == 3
    assert page["cluster"] is None
    assert page["trn2"]["nodes"] == 0
    assert "deploy with -c admins=" in err


def test_kubectl_is_the_real_one_with_its_own_exit_code(world: World, say: Say) -> None:
    code, out, _ = say("kubectl", "get", "deployments", "-o", "name")
    assert (code, out.splitlines()) == (0, ["deployment.apps/qwen-vllm", "deployment.apps/qwen-sd-vllm"])
    assert say("kubectl", "get", "deployment", "none")[0] == 1
    assert say("kubectl")[0] == 2


def test_cost_is_listed_by_component_with_its_dates(say: Say) -> None:
    code, out, _ = say("cost", "--json", "--hours", "2", "--prices", "/nonexistent/prices.json")
    bill = json.loads(out)
    assert code == 0
    assert bill["running_usd_per_hour"] == pytest.approx(
        sum(item["usd_per_hour"] for item in bill["items"]), abs=0.001
    )
    assert bill["run"]["usd"] == pytest.approx(2 * bill["running_usd_per_hour"], abs=0.01)
    assert all(item["as_of"] and item["source"] for item in bill["items"])
    _, text, _ = say("cost", "--compiled", "--prices", "/nonexistent/prices.json")
    assert "predicted" in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_a_damaged_file_of_prices_is_refused(say: Say, tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    for text in ("{", '{"us-east-2": {"x": {"usd_per_hour": -1}}}', '{"us-east-2": [1]}'):
        file.write_text(text)
        code, _, err = say("cost", "--prices", str(file))
        assert (code, "is no file of prices; remove it" in err) == (2, True)


def test_run_that_is_tried_only_tells_its_steps_and_the_dollars(
    world: World, say: Say, tmp_path: Path
) -> None:
    written = _rendered(world.experiment, tmp_path)
    code, out, _ = say(
        "run", str(ROOT / "experiments/qwen3-32b.yaml"), "--dry-run", "--manifests", str(written)
    )
    assert (code, world.nodes) == (0, 0)
    assert "set the Trn2 nodes to 0" in out
    assert "for the answer at list price" in out
    assert world.stored("results") == {}


def test_run_that_is_tried_without_aws_tells_the_plan_of_a_new_run_and_why(
    say: Say, credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    code, out, err = say("run", str(ROOT / "experiments/qwen3-32b.yaml"), "--dry-run", "--json")
    plan = json.loads(out)
    assert code == 3
    assert (plan["asked_aws"], plan["resumes"], plan["to_compile"]) == (False, None, 2)
    assert plan["most_usd"] > plan["predicted_usd"] > 0
    assert "no AWS credentials on this machine" in err
    assert err.endswith("the plan is that of a new run that compiles every arm\n")
    assert len(err.splitlines()) == 1


def test_run_does_not_take_a_service_down(say: Say, variation: Callable[[Any], Path]) -> None:
    file = variation(lambda data: data.update(serve={"arm": "qwen-sd-vllm"}))
    for more in ((), ("--dry-run",)):
        code, out, err = say("run", str(file), *more)
        assert (code, out) == (2, "")
        assert (
            "qwen-sd-vllm is a service (serve), and a run ends with every arm and node at 0; remove the"
            in err
        )
        assert len(err.splitlines()) == 1


def test_cost_says_that_what_is_reserved_is_paid_for_otherwise(
    say: Say, variation: Callable[[Any], Path]
) -> None:
    block = {
        "kind": "reservation",
        "reservation_id": "cr-0123456789abcdef0",
        "availability_zone": "us-east-2b",
    }
    file = variation(lambda data: data["cluster"].update(capacity=block))
    code, out, _ = say("cost", "--experiment", str(file), "--prices", "/nonexistent/prices.json")
    assert code == 0
    assert "cluster.capacity is a reservation: billed for all of its time, whether nodes run or not" in out
    file = variation(lambda data: data["cluster"].update(network={"interface_endpoints": True}))
    assert "interface endpoints by the hour" in say("cost", "--experiment", str(file))[1]


@pytest.mark.parametrize(
    "verb", ["preflight", "status", "scale", "cost", "teardown", "kubectl", "render", "run"]
)
def test_an_experiment_of_the_lab_is_none_of_their_business(verb: str, say: Say) -> None:
    given = {
        "scale": ["0", "--experiment", str(LAB)],
        "run": [str(LAB)],
        "kubectl": ["--experiment", str(LAB), "get"],
    }
    code, _, err = say(verb, *given.get(verb, ["--experiment", str(LAB)]))
    assert code == 2
    assert "exists in the lab only" in err
    assert len(err.splitlines()) == 1


def test_a_wrong_experiment_is_refused_as_everywhere(say: Say, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("version: 9\n")
    code, _, err = say("status", "--experiment", str(tmp_path / "mine.yaml"))
    assert (code, "version" in err) == (2, True)


def _rendered(experiment: Experiment, folder: Path) -> Path:
    """Manifests with one placeholder of each kind, as the renderer writes files."""
    pod = {
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"image": "${BENCHMARK_IMAGE}", "bucket": "b-${AWS_ACCOUNT}"},
    }
    config = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"prompt": "say ${AWS_ACCOUNT}"}}
    write(texts(experiment, (ManifestFile("00.yaml", (pod, config)),), folder))
    return folder


def test_render_fills_placeholders_and_leaves_the_users_texts(
    say: Say, experiment: Experiment, tmp_path: Path
) -> None:
    folder = str(_rendered(experiment, tmp_path))
    image = "111122223333.dkr.ecr.us-east-2.amazonaws.com/tools:0a1b"
    given = ["--manifests", folder, "--account", "111122223333"]
    code, out, _ = say("render", *given, "--json", "--set", f"BENCHMARK_IMAGE={image}")
    job, config = json.loads(out)["items"]
    assert code == 0
    assert job["spec"] == {"image": image, "bucket": "b-111122223333"}
    assert config["data"]["prompt"] == "say ${AWS_ACCOUNT}"
    code, _, err = say("render", *given)
    assert (code, "give it with --set BENCHMARK_IMAGE=..." in err) == (2, True)
    code, _, err = say("render", *given, "--set", "BENCHMARK_IMAGE=tools:latest")
    assert (code, "is no pinned image" in err) == (2, True)
    (tmp_path / experiment.name / "00.yaml").write_text("edited: true\n")
    code, _, err = say("render", *given, "--set", f"BENCHMARK_IMAGE={image}")
    assert (code, "or edited since" in err) == (2, True)


class Deletions:
    """CloudFormation in moto, but for stacks whose deletion is refused, or fails."""

    def __init__(self, world: World, parts: tuple[str, ...]) -> None:
        self.cloudformation = world.client("cloudformation")
        template = json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}})
        for part in parts:
            tags = [{"Key": "experiment", "Value": "qwen3-32b"}]
            self.cloudformation.create_stack(StackName=f"qwen3-32b-{part}", TemplateBody=template, Tags=tags)

    def left(self) -> list[str]:
        return [stack["StackName"] for stack in self.cloudformation.describe_stacks()["Stacks"]]


def test_teardown_asks_for_the_name_and_then_deletes_everything(world: World, say: Say) -> None:
    deletions = Deletions(world, ("network", "cluster", "workloads", "pipeline"))
    say("scale", "1")
    code, _, err = say("teardown")
    assert (code, len(deletions.left()), world.nodes) == (2, 4, 1)
    assert "nobody confirmed, nothing was deleted; run it with --confirm qwen3-32b" in err
    code, out, _ = say("teardown", "--dry-run")
    assert code == 0
    assert "qwen3-32b-pipeline, qwen3-32b-workloads, qwen3-32b-cluster, qwen3-32b-network" in out
    code, out, _ = say("teardown", "--confirm", "qwen3-32b")
    assert (code, deletions.left(), world.nodes) == (0, [], 0)
    assert "4 of 4 stacks deleted" in out
    assert say("teardown", "--confirm", "qwen3-32b")[0] == 0  # again, on nothing


def test_teardown_goes_on_past_a_refused_and_a_failed_stack(
    world: World, aws: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    deletions = Deletions(world, ("network", "cluster", "workloads"))
    real = stacks.one

    def failing(name: str, account: Aws) -> stacks.Stack:
        if name.endswith("cluster"):
            return stacks.Stack(name=name, status="DELETE_FAILED", reason="ENI in use")
        if name.endswith("workloads"):
            return stacks.Stack(name=name, status="UPDATE_IN_PROGRESS")
        return real(name, account)

    monkeypatch.setattr(stacks, "one", failing)
    monkeypatch.setattr(stacks, "failures", lambda _name, _aws: ["Group: ENI in use"])
    kept = dict(teardown.take_down(world.experiment, aws, FakeClock()))
    assert "is UPDATE_IN_PROGRESS; wait for that to end" in kept["qwen3-32b-workloads"]
    assert (
        "not deleted: Group: ENI in use; remove what it names, then run scripts/teardown again"
        in kept["qwen3-32b-cluster"]
    )
    assert "qwen3-32b-network" not in deletions.left()


HALFWAY = {
    "ROLLBACK_COMPLETE": "its first deployment failed: mend what its events name, then cdk deploy --all makes it anew",
    "UPDATE_ROLLBACK_FAILED": "aws cloudformation continue-update-rollback --stack-name qwen3-32b-cluster --region us-east-2",
    "REVIEW_IN_PROGRESS": "cdk deploy --all goes on, scripts/teardown removes it",
    "DELETE_FAILED": "scripts/teardown goes on",
}


@pytest.mark.parametrize("status", HALFWAY)
def test_status_says_what_to_do_about_a_deployment_that_broke_off(
    world: World, say: Say, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    cluster = stacks.Stack(name="qwen3-32b-cluster", status=status, reason="Subnet is full.")
    monkeypatch.setattr(stacks, "deployed", lambda *_: (cluster,))
    code, out, err = say("status", "--json")
    assert code == 1
    (problem,) = json.loads(out)["problems"]
    assert problem.startswith(f"stack qwen3-32b-cluster: is {status} (Subnet is full); ")
    assert HALFWAY[status] in problem
    assert err == f"status: {problem}\n"


@pytest.mark.parametrize("status", ["CREATE_COMPLETE", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS", "absent"])
def test_what_is_well_or_under_way_is_not_halfway(status: str) -> None:
    assert stacks.halfway(stacks.Stack(name="a", status=status), region="us-east-2") is None


def test_a_stage_of_the_pipeline_is_taken_down_in_an_order_that_works(world: World, aws: Aws) -> None:
    """The delivery's policies hang on the role of the stack beside it, and the cluster lets that role in."""
    Deletions(world, ("delivery", "delivery-role", "cluster", "nodes", "workloads", "network"))
    names = [
        stack.name.removeprefix("qwen3-32b-") for stack in reversed(stacks.deployed(world.experiment, aws))
    ]
    assert names == ["delivery", "workloads", "nodes", "cluster", "delivery-role", "network"]


def test_teardown_goes_on_with_what_failed_last_time(
    world: World, aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CloudFormation may still name the old failure when it is asked at once."""
    failed = stacks.Stack(name="qwen3-32b-cluster", status="DELETE_FAILED")
    answers = iter(["DELETE_FAILED", "DELETE_IN_PROGRESS", "absent"])
    monkeypatch.setattr(stacks, "deployed", lambda *_: (failed,))
    monkeypatch.setattr(stacks, "one", lambda name, _aws: stacks.Stack(name=name, status=next(answers)))
    Deletions(world, ("cluster",))
    assert teardown.take_down(world.experiment, aws, FakeClock()) == []


def test_teardown_removes_a_deployment_that_never_began(
    world: World, aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["REVIEW_IN_PROGRESS", "absent"])
    Deletions(world, ("cluster",))
    monkeypatch.setattr(stacks, "one", lambda name, _aws: stacks.Stack(name=name, status=next(answers)))
    assert teardown.take_down(world.experiment, aws, FakeClock()) == []


@pytest.mark.parametrize(
    ("code", "message", "says"),
    [
        (
            "AccessDenied",
            "User: arn:aws:iam::1:user/me is not authorized to perform: cloudformation:DeleteStack on resource: arn:x",
            "let whoever runs this do cloudformation:DeleteStack on arn:x",
        ),
        (
            "ValidationError",
            "Stack [x] cannot be deleted while TerminationProtection is enabled",
            "update-termination-protection --stack-name qwen3-32b-network --no-enable-termination-protection",
        ),
    ],
)
def test_a_stack_that_may_not_be_deleted_keeps_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, code: str, message: str, says: str
) -> None:
    from botocore.exceptions import ClientError

    deletions = Deletions(world, ("network", "cluster"))
    real = world.client("cloudformation")

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def delete_stack(self, StackName: str) -> Any:
            if StackName.endswith("network"):
                raise ClientError({"Error": {"Code": code, "Message": message}}, "DeleteStack")
            return real.delete_stack(StackName=StackName)

    refusing = Aws(
        "us-east-2", make_client=lambda name: Refusing() if name == "cloudformation" else shared_client(name)
    )
    kept = dict(teardown.take_down(world.experiment, refusing, FakeClock()))
    assert says in kept["qwen3-32b-network"]
    assert deletions.left() == ["qwen3-32b-network"]


def test_what_was_deleted_is_told_even_when_the_bill_cannot_be_read(
    world: World, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    Deletions(world, ("network",))

    def refused(*_: object) -> list[billing.Resource]:
        raise AwsError(
            "tag:GetResources in us-east-2: not allowed; let whoever runs this do tag:GetResources"
        )

    monkeypatch.setattr(billing, "tagged", refused)
    code, out, err = say("teardown", "--confirm", "qwen3-32b")
    assert code == 3
    assert "1 of 1 stacks deleted" in out
    assert "what still bills is not known" in out
    assert "let whoever runs this do tag:GetResources" in err


def test_teardown_does_not_wait_for_ever(world: World, aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    Deletions(world, ("network",))
    monkeypatch.setattr(
        stacks, "one", lambda name, _aws: stacks.Stack(name=name, status="DELETE_IN_PROGRESS")
    )
    kept = dict(teardown.take_down(world.experiment, aws, FakeClock()))
    assert "still DELETE_IN_PROGRESS after 60 minutes" in kept["qwen3-32b-network"]


def test_what_still_bills_is_found_by_its_tag(world: World, aws: Aws) -> None:
    name = "qwen3-32b-results-123456789012-us-east-2"
    tags = {"TagSet": [{"Key": "experiment", "Value": "qwen3-32b"}]}
    world.client("s3").put_bucket_tagging(Bucket=name, Tagging=tags)
    assert [one.arn for one in billing.tagged(world.experiment, aws)] == [f"arn:aws:s3:::{name}"]
    assert billing.bills("arn:aws:ec2:us-east-2:1:natgateway/nat-1") == "by the hour, and traffic"
    ec2 = world.client("ec2")
    volume = ec2.create_volume(AvailabilityZone="us-east-2a", Size=1)["VolumeId"]
    ec2.create_tags(Resources=[volume], Tags=[{"Key": "kubernetes.io/cluster/qwen3-32b", "Value": "owned"}])
    found = {one.arn.rpartition("/")[2]: one.what for one in billing.tagged(world.experiment, aws)}
    assert found[volume] == "by size", "made by a controller of the cluster, unknown to every stack"
    assert billing.bills("arn:aws:iam::1:role/x") == ""


def test_a_group_that_eks_is_changing_is_one_line(world: World, aws: Aws) -> None:
    from botocore.exceptions import ClientError

    busy = ClientError(
        {"Error": {"Code": "ResourceInUseException", "Message": "busy"}}, "UpdateNodegroupConfig"
    )

    class Busy:
        def update_nodegroup_config(self, **_: Any) -> None:
            raise busy

    group = nodegroup.read(world.experiment, aws)
    with pytest.raises(
        Exception, match=f"{neuron_nodegroup(world.experiment)}: EKS is changing it .*run this again"
    ):
        nodegroup.set_size(
            world.experiment, Aws("us-east-2", make_client=lambda _: Busy()), nodes=1, group=group
        )
