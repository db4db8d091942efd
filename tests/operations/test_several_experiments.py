"""Several experiments in one cluster: whose the nodes are, who uses them now, what each costs, and that both are shown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from experiment import Experiment, load
from experiment.cost import idle, per_hour
from experiment.naming import NODE_ROLE_LABEL, role_label
from operations.cloud import cloudformation, nodegroup, shared
from operations.cloud.aws import Aws, AwsError
from operations.cloud.kubernetes import own_nodes
from tests.conftest import REFERENCE
from tests.operations.clients import eks_says, make_stacks, stack_names
from tests.operations.conftest import Say
from tests.operations.world import World

pytestmark = pytest.mark.usefixtures("direct")
JOINING = {
    "existing": "qwen3-32b",
    "security_group": "sg-0123456789abcdef0",
    "nodes_of": "qwen3-32b",
    "network": {
        "vpc": "vpc-0123456789abcdef0",
        "private_subnets": {
            "us-east-2a": "subnet-0a0123456789abcde",
            "us-east-2b": "subnet-0b0123456789abcde",
        },
    },
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
    assert {item.price.item.split(",")[0] for item in idle(alone)} - own.keys() == {
        "m7i.xlarge",
        "gp3 disk",
        "usage: Container Insights",
    }
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


def test_a_second_whose_file_is_elsewhere_is_known_by_its_roles(
    world: World, aws: Aws, experiment: Experiment
) -> None:
    make_stacks("elsewhere", "identity")
    make_stacks("apart", "identity")
    there = {"associations": [{"namespace": name} for name in ("elsewhere", "shop")]}
    with eks_says(ListPodIdentityAssociations=lambda: there):
        said = shared.used_by_others(experiment, aws)
    assert said.startswith("qwen3-32b: elsewhere is deployed into its cluster")


def test_nodes_of_another_experiment_are_not_the_owners(experiment: Experiment, second: Experiment) -> None:
    """One that brings its own into the cluster of the first labels them with its name."""
    alone = replace(second, cluster=second.cluster.model_copy(update={"nodes_of": None}))
    nodes = [
        {"metadata": {"name": role_label(one, role), "labels": {NODE_ROLE_LABEL: role_label(one, role)}}}
        for one in (experiment, alone)
        for role in ("neuron", "system")
    ]
    found = {
        one.name: [node["metadata"]["name"] for node in own_nodes(one, nodes)] for one in (experiment, alone)
    }
    assert found == {"qwen3-32b": ["neuron", "system"], "second": ["second-neuron", "second-system"]}
