"""Several experiments in one cluster, and a cluster of somebody else: whose the nodes are, who uses them now, what each costs, and
that `teardown` removes ours and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
import yaml
from botocore.exceptions import ClientError

from experiment import Experiment, load
from experiment.cost import idle, per_hour
from experiment.naming import NODE_ROLE_LABEL, role_label
from operations import teardown
from operations.cloud import cloudformation, nodegroup, shared
from operations.cloud.aws import Aws, AwsError
from operations.cloud.kubernetes import own_nodes
from operations.cloud.shared import StackResources, listed
from operations.preflight.checklist import leftovers
from tests.conftest import REFERENCE
from tests.operations.api_server import ApiServer
from tests.operations.clients import eks_says, make_stacks, shared_client, stack_names
from tests.operations.conftest import GROUP, SUBNETS, VPC, Say
from tests.operations.world import World

pytestmark = pytest.mark.usefixtures("direct")
ROLE = "arn:aws:iam::123456789012:role"
Lists = dict[str, list[Any]]
CONFIRMED = ("teardown", "--confirm", "joined")


@pytest.fixture
def joined(joining: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """In a cluster that has an identity agent."""
    made = joining(provided=("eks-pod-identity-agent",))
    monkeypatch.setattr(teardown, "experiment_of", lambda path, verb: made)
    return made


@pytest.fixture
def lists(team: ApiServer) -> Iterator[Lists]:
    """What the cluster has, as EKS and its server list it: ours and that of others."""
    web = {"namespace": "shop", "serviceAccount": "web", "clusterName": "team"}
    serving = {"namespace": "joined", "serviceAccount": "serving", "clusterName": "team"}
    found: Lists = {
        "nodegroups": ["team-workers", "joined-trn2-a-on-demand-d2-28", "joined-system"],
        "addons": ["vpc-cni", "eks-pod-identity-agent", "aws-mountpoint-s3-csi-driver"],
        "accessEntries": [f"{ROLE}/team-admin", f"{ROLE}/joined-workloads-Access1"],
        "associations": [{**serving, "associationArn": "arn:joined"}, web],
    }
    team.put("namespaces", "shop", {})
    with eks_says(
        ListNodegroups=lambda: {"nodegroups": found["nodegroups"]},
        ListAddons=lambda: {"addons": found["addons"]},
        ListAccessEntries=lambda: {"accessEntries": found["accessEntries"]},
        ListPodIdentityAssociations=lambda: {"associations": found["associations"]},
    ):
        yield found


@pytest.fixture
def made(lists: Lists, team: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours is deployed: what its stacks made is known."""
    team.put("namespaces", "joined", {})
    team.put("priorityclasses", "joined-jobs-1", {})
    ids = {("node group", name) for name in lists["nodegroups"][1:]} | {("pod identity", "arn:joined")}
    ids |= {("add-on", "aws-mountpoint-s3-csi-driver"), ("access entry", f"{ROLE}/joined-workloads-Access1")}
    objects = frozenset({"namespaces: joined", "priorityclasses: joined-jobs-1"})
    by_stacks = StackResources(ids=frozenset(ids), objects=objects, releases=frozenset())
    monkeypatch.setattr(shared, "made", lambda *_: by_stacks)


OURS_ALONE = (
    "cluster team, which does not belong to this experiment: 13 things before, 6 after",
    "ours and left: nothing",
    "gone though not ours: nothing",
    "add-on: aws-mountpoint-s3-csi-driver",
)
THEIRS = (
    "ours and left: access entry: ",
    "gone though not ours: add-on: eks-pod-identity-agent, namespaces: shop, pod identity: shop/web",
)


@pytest.mark.parametrize(
    ("gone", "code", "says"),
    [(("joined", "aws-mountpoint"), 0, OURS_ALONE), (("joined-system", "shop", "eks-pod"), 1, THEIRS)],
)
@pytest.mark.usefixtures("joined", "made")
def test_the_list_shows_what_of_ours_went_and_what_of_others(
    lists: Lists, api: ApiServer, say: Say, monkeypatch: pytest.MonkeyPatch, gone: Any, code: int, says: Any
) -> None:
    def take_away(*_: Any) -> list[tuple[str, str]]:
        """In place of CloudFormation: everything whose name begins so goes from the cluster."""
        for key, entries in lists.items():
            names = [one if isinstance(one, str) else one["namespace"] for one in entries]
            pairs = zip(entries, names, strict=True)
            lists[key] = [one for one, name in pairs if not name.rpartition("/")[2].startswith(gone)]
        for there in [there for there in api.objects if there[2].startswith(gone)]:
            del api.objects[there]
        return []

    monkeypatch.setattr(teardown, "take_down", take_away)
    with monkeypatch.context() as patch:
        patch.delattr(teardown, "listed")  # which nobody reads when it is tried only
        assert say("teardown", "--dry-run")[0] == 0
    found, out, _ = say(*CONFIRMED)
    assert found == code, out
    for words in says:
        assert words in " ".join(out.split())


@pytest.mark.usefixtures("made")
def test_a_name_that_begins_with_ours_is_another_s_and_what_cannot_be_listed_is_told(
    joined: Experiment, aws: Aws, lists: Lists, api: ApiServer
) -> None:
    lists["nodegroups"].append("joined-team-workers")
    api.put("namespaces", "joined-shop", {})
    found = listed(joined, aws)
    assert {"node group: joined-team-workers", "namespaces: joined-shop"} <= found.names.keys() - found.ours
    assert {"node group: joined-system", "namespaces: joined", "priorityclasses: joined-jobs-1"} <= found.ours
    assert f"access entry: {ROLE}/joined-workloads-Access1" in found.ours
    api.refusal = (401, "Unauthorized", "Unauthorized")
    found = listed(joined, aws)
    assert "node group: team-workers" in found.names
    assert any("the cluster does not know this identity" in line for line in found.unknown)


@pytest.mark.usefixtures("made")
def test_what_an_add_on_or_a_chart_of_ours_brought_goes_with_it(
    joined: Experiment, aws: Aws, lists: Lists, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = "arn:aws:eks:us-east-2:123456789012:addon/team/amazon-cloudwatch-observability/1a"
    agent = {"namespace": "amazon-cloudwatch", "serviceAccount": "cloudwatch-agent", "ownerArn": owner}
    lists["associations"].append({**agent, "associationArn": "arn:a", "clusterName": "team"})
    chart = {"annotations": {"meta.helm.sh/release-name": "neuron-1"}}
    api.put("deviceclasses", "neuron.aws.com", {"metadata": chart})
    api.put("namespaces", "amazon-cloudwatch", {})
    brought = {"pod identity: amazon-cloudwatch/cloudwatch-agent", "deviceclasses: neuron.aws.com"}
    brought |= {"namespaces: amazon-cloudwatch"}
    found = listed(joined, aws)
    assert brought <= found.names.keys() - found.ours, "its owner's"
    ids = frozenset({("add-on", "amazon-cloudwatch-observability")})
    own = StackResources(ids=ids, objects=frozenset(), releases=frozenset({"neuron-1"}))
    monkeypatch.setattr(shared, "made", lambda *_: own)
    assert listed(joined, aws).ours == brought


def stacked(part: str, **resources: Any) -> None:
    """A stack of the experiment with these resources; moto makes no custom resource without its function."""
    for one in resources.values():
        one |= {"Condition": "Never"} if one["Type"].startswith("Custom::") else {}
    body = json.dumps({"Conditions": {"Never": {"Fn::Equals": ["a", "b"]}}, "Resources": resources})
    tags = [{"Key": "experiment", "Value": "joined"}]
    shared_client("cloudformation").create_stack(StackName=f"joined-{part}", TemplateBody=body, Tags=tags)


def driver(release: str) -> dict[str, Any]:
    return {"Type": "Custom::AWSCDK-EKS-HelmChart", "Properties": {"Release": release}}


TOPIC = {"Type": "AWS::SNS::Topic"}


def test_what_the_stacks_made_is_read_from_their_resources_and_templates(
    joined: Experiment, aws: Aws
) -> None:
    objects = [{"kind": kind, "metadata": {"name": "joined-1"}} for kind in ("PriorityClass", "ConfigMap")]
    manifest = {"Fn::Join": ["", [json.dumps(objects)[:-1], *[", ", json.dumps(objects[0]), "]"]]]}
    applied = {"Type": "Custom::AWSCDK-EKS-KubernetesResource", "Properties": {"Manifest": manifest}}
    logs = "/aws/containerinsights/team/host"
    group = {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": logs}}
    stacked("workloads", Objects=applied, Chart=driver("neuron-1"), Logs=group)
    found = shared.made(joined, aws)
    assert found.owns("log group", logs)
    assert found.objects == {"namespaces: joined", "priorityclasses: joined-1"}
    assert found.releases == {"neuron-1"}


def test_log_groups_of_the_clusters_owner_stay_and_their_deletion_is_not_advised(
    joined: Experiment, lists: Lists, aws: Aws, say: Say
) -> None:
    """Neither the experiment nor the agent is deployed: whoever made the groups, no stack of the experiment did."""
    name, logs = "/aws/containerinsights/team/performance", shared_client("logs")
    logs.create_log_group(logGroupName=name)
    _, _, err = say(*CONFIRMED)
    assert [one["logGroupName"] for one in logs.describe_log_groups()["logGroups"]] == [name], err
    found = leftovers(joined, aws)
    assert found.state == "finding"
    assert "add amazon-cloudwatch-observability to cluster.provided" in found.remedy
    assert "delete-log-group" not in found.line()


@pytest.mark.parametrize(
    ("provided", "nodes_of", "said"),
    [
        (("neuron",), None, "joined: beside in cluster team uses neuron, which this would remove; take that"),
        ((), "joined", "joined: beside in cluster team uses its nodes, neuron, which this would remove"),
        ((), "third", "joined: beside in cluster team uses neuron, which this would remove"),
        (("system-nodes",), None, ""),
    ],
)
def test_what_another_experiment_uses_is_not_removed_under_it(
    joined: Experiment,
    joining: Callable[..., Experiment],
    lists: Lists,
    aws: Aws,
    say: Say,
    monkeypatch: pytest.MonkeyPatch,
    provided: tuple[str, ...],
    nodes_of: str | None,
    said: str,
) -> None:
    """Driver and add-ons are there once for a whole cluster: whoever lists them in `provided` has ours."""
    beside = replace(joining(provided=provided, nodes_of=nodes_of), name="beside")
    monkeypatch.setattr(cloudformation, "neighbours", lambda _: [beside])
    stacked("workloads", Topic=TOPIC, Driver=driver("joined-neuron"))
    assert shared.used_by_others(joined, aws) == "", "nothing of the other is deployed"
    make_stacks("beside", "identity")
    code, _, err = say("teardown", "--dry-run")
    assert (code, said in err) == (0, True)
    code, _, err = say(*CONFIRMED)
    assert (code, said in err) == ((1, True) if said else (0, True)), err
    assert ("joined-workloads" in stack_names()) is bool(said)


def test_who_uses_our_add_ons_without_a_file_here_is_known_by_its_roles(
    joined: Experiment, experiment: Experiment, lists: Lists, aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*ids: tuple[str, str]) -> str:
        by = StackResources(ids=frozenset(ids), objects=frozenset(), releases=frozenset())
        monkeypatch.setattr(shared, "made", lambda *_: by)
        return shared.used_by_others(joined, aws)

    for name in ("elsewhere", "apart", "team"):  # `team` has the cluster, with all that it needs
        make_stacks(name, "identity")
    lists["associations"] += [
        {"namespace": name, "serviceAccount": "serving", "clusterName": "team"}
        for name in ("elsewhere", "team")
    ]
    expected = "joined: elsewhere in cluster team uses aws-mountpoint-s3-csi-driver, which this would remove"
    assert said(("add-on", "aws-mountpoint-s3-csi-driver")).startswith(expected)
    assert said() == "", "nothing that others could use"
    alone = shared.used_by_others(experiment, aws)
    assert alone.startswith("qwen3-32b: elsewhere, team is deployed into its cluster"), "by its cluster too"


def test_a_release_without_our_name_is_not_removed(
    joined: Experiment, lists: Lists, team: ApiServer, say: Say
) -> None:
    """Version 0.2 called it as a team might have called its own, which it would then have upgraded."""
    stacked("workloads", Topic=TOPIC, Driver=driver("neuron"))
    mark = {"metadata": {"annotations": {"meta.helm.sh/release-name": "neuron"}}}
    team.put("deviceclasses", "neuron.aws.com", mark)
    code, _, err = say(*CONFIRMED)
    assert (code, stack_names()) == (1, ["joined-workloads"])
    assert "would uninstall Helm release neuron of namespace kube-system" in err
    assert "run helm uninstall neuron --namespace kube-system if it is not used" in err
    del team.objects["deviceclasses", "", "neuron.aws.com"]
    say(*CONFIRMED)
    assert stack_names() == []


TRUST = {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": {"Version": "2012-10-17"}}}


def _roles() -> list[str]:
    return [one["RoleName"] for one in shared_client("iam").list_roles()["Roles"]]


@pytest.mark.parametrize("allowed", [True, False])
def test_the_access_entries_of_our_nodes_go_or_are_told(
    joined: Experiment, lists: Lists, say: Say, allowed: bool
) -> None:
    """EKS makes them with a node group, and keeps them when the group and its role are gone."""
    stacked("nodes", Topic=TOPIC, Nodes=dict(TRUST))
    (role,) = (name for name in _roles() if "joined" in name)
    others = [f"{ROLE}/team-admin", f"{ROLE}/joined-nodes-of-somebody"]
    lists["accessEntries"][:] = [*others, f"{ROLE}/{role}"]

    def delete(params: dict[str, Any], **_: Any) -> Any:
        if not allowed:
            refused = {"Error": {"Code": "AccessDeniedException", "Message": "no"}}
            raise ClientError(refused, "DeleteAccessEntry")
        assert role not in _roles()
        lists["accessEntries"].remove(unquote(params["url_path"].partition("/access-entries/")[2]))
        return SimpleNamespace(status_code=200, headers={}, raw=None), {}

    events = shared_client("eks").meta.events
    events.register("before-call.eks.DeleteAccessEntry", delete)
    code, out, err = say(*CONFIRMED)
    events.unregister("before-call.eks.DeleteAccessEntry", delete)
    left = [] if allowed else [f"{ROLE}/{role}"]
    assert (code, lists["accessEntries"]) == (0 if allowed else 1, [*others, *left]), err
    entry = f"access entry: {ROLE}/{role}"
    assert f"ours and left: {'nothing' if allowed else entry}" in out
    assert "gone though not ours: nothing" in out
    assert allowed or "let the caller do eks:DeleteAccessEntry" in err


JOINING = {
    "existing": "qwen3-32b",
    "security_group": GROUP,
    "nodes_of": "qwen3-32b",
    "network": {"vpc": VPC, "private_subnets": SUBNETS},
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reference and a second experiment on its nodes, as the files of a checkout."""
    first = yaml.safe_load(REFERENCE.read_text(encoding="utf-8"))
    second = {**first, "name": "second", "cluster": {**first["cluster"], **JOINING}}
    del second["cluster"]["admin_cidrs"], second["cluster"]["off_at_utc"]
    for data in (first, second):
        (tmp_path / f"{data['name']}.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    more = {**second, "cluster": {**second["cluster"], "max_nodes": 3}}
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "second.yaml").write_text(yaml.safe_dump(more), encoding="utf-8")
    (tmp_path / "wrong.yaml").write_text("version: 1\n", encoding="utf-8")
    real = cloudformation.neighbours
    monkeypatch.setattr(cloudformation, "neighbours", lambda one: real(one, files=tmp_path))
    return tmp_path


@pytest.fixture
def second(files: Path) -> Experiment:
    return load(files / "second.yaml")


def test_the_second_takes_no_node_of_the_first_and_no_more_than_the_first_allows(
    world: World, aws: Aws, experiment: Experiment, files: Path, say: Say
) -> None:
    second = str(files / "second.yaml")
    code, _, err = say("scale", str(files / "more" / "second.yaml"), "3")
    assert (code, world.nodes, world.rentals()) == (2, 0, [])
    assert "3 nodes: qwen3-32b, which owns node group" in err
    assert "allows 1; raise its cluster.max_nodes" in err
    # As `cluster.nodes: 1` leaves them, without a rental.
    nodegroup.set_size(experiment, aws, nodes=1, group=nodegroup.read(experiment, aws))
    for wanted in ("0", "1"):
        code, _, err = say("scale", second, wanted)
        assert (code, world.nodes, world.rentals()) == (1, 1, [])
        assert "has 1 node that qwen3-32b started without a time to live; let qwen3-32b set them to 0" in err
    assert say("scale", "1")[0] == 0  # as a run of the first does
    code, _, err = say("scale", second, "0")
    assert (code, world.nodes) == (1, 1), err
    assert "is in use (Trn2 nodes of qwen3-32b to 0" in err
    say("teardown", second, "--confirm", "second")
    assert world.nodes == 1


def test_cost_bills_a_second_idle_experiment_no_cluster_network_or_node_and_shows_both(
    files: Path, experiment: Experiment, second: Experiment, say: Say
) -> None:
    assert per_hour(idle(experiment)) > 0.5
    own = {item.price.item: item.units for item in idle(second)}
    assert own.keys() == {"KMS key", "metric of an alarm", "composite alarm"}
    assert own["KMS key"] == 2
    alone = replace(second, cluster=second.cluster.model_copy(update={"nodes_of": None}))
    brought = {item.price.item.split(",")[0] for item in idle(alone)} - own.keys()
    assert brought == {"m7i.xlarge", "gp3 disk", "usage: Container Insights"}
    code, out, _ = say("cost", str(files / "second.yaml"))
    assert code == 0
    assert "without Trn2 nodes: $0.01 an hour" in out
    assert "cluster qwen3-32b; nodes and add-ons of qwen3-32b" in " ".join(out.split())
    assert "in the same cluster: qwen3-32b, $0.66 an hour without Trn2 nodes" in out
    told = json.loads(say("cost", str(files / "qwen3-32b.yaml"), "--json")[1])
    assert (told["same_cluster"], told["of_others"]) == ({"second": pytest.approx(0.0077)}, "")


def test_status_shows_both_and_expects_only_what_is_deployed(
    world: World, files: Path, second: Experiment, aws: Aws, say: Say
) -> None:
    make_stacks("second", "storage")
    page = json.loads(say("status", "--json")[1])
    assert page["neighbours"] == [{"name": "second", "state": "1 stack is deployed"}]
    expected = {stack.name.removeprefix("second-") for stack in cloudformation.expected(second, aws)}
    assert expected == {"storage", "observability", "identity", "workloads"}


def test_the_owner_takes_no_node_that_the_second_has_rented_and_it_leaves_with_them(
    world: World, files: Path, say: Say
) -> None:
    second = str(files / "second.yaml")
    for leave in (("scale", second, "0"), ("teardown", second, "--confirm", "second")):
        for _ in range(2):  # its own schedule is replaced
            assert say("scale", second, "1")[0] == 0
        code, _, err = say("scale", "0")
        assert (code, world.nodes) == (1, 1)
        assert re.search(r"is in use \(Trn2 nodes of second to 0.*wait until that run has ended", err)
        say(*leave)
        assert (world.nodes, world.rentals()) == (0, [])


def test_the_owner_may_stop_nodes_where_the_scheduler_does_not_answer(
    world: World, aws: Aws, experiment: Experiment, second: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise AwsError("scheduler:GetSchedule: not allowed")

    group = nodegroup.read(experiment, aws)
    monkeypatch.setattr(nodegroup, "_schedule", refused)
    assert nodegroup.refuse_taking(experiment, aws, group) is not None
    with pytest.raises(AwsError):
        nodegroup.refuse_taking(second, aws, group)


def test_the_owner_is_not_taken_down_under_the_second(world: World, files: Path, say: Say) -> None:
    """Neither while it runs nor while it is idle; what is left of it when only its buckets stay needs no cluster."""
    make_stacks("qwen3-32b", "network", "cluster", "nodes")
    make_stacks("second", "storage", "identity")
    code, _, err = say("teardown", "--dry-run")
    line = "qwen3-32b: second is deployed into its cluster, and would lose it; take that down first"
    assert (code, line in err) == (0, True)
    code, _, err = say("teardown", "--confirm", "qwen3-32b")
    assert (code, line in err, len(stack_names())) == (1, True, 5)
    world.client("cloudformation").delete_stack(StackName="second-identity")
    assert say("teardown", "--confirm", "qwen3-32b")[0] == 0
    assert stack_names() == ["second-storage"]


def test_nodes_of_another_experiment_are_not_the_owners(experiment: Experiment, second: Experiment) -> None:
    """One that brings its own into the cluster of the first labels them with its name."""
    alone = replace(second, cluster=second.cluster.model_copy(update={"nodes_of": None}))
    roles = [role_label(one, role) for one in (experiment, alone) for role in ("neuron", "system")]
    nodes = [{"metadata": {"name": role, "labels": {NODE_ROLE_LABEL: role}}} for role in roles]
    for one, own in ((experiment, ["neuron", "system"]), (alone, ["second-neuron", "second-system"])):
        assert [node["metadata"]["name"] for node in own_nodes(one, nodes)] == own
