"""The whole command that deploys, and stacks that a changed `name` or `region` left behind, wherever they are."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from experiment import Experiment
from experiment.model import Network
from infra.deployment_file import KEYS
from operations.cloud import cloudformation
from operations.cloud.aws import Aws, AwsError
from operations.cloud.cloudformation import deploy_command
from tests.conftest import ROOT
from tests.operations.clients import make_stacks, shared_client, stack_names
from tests.operations.conftest import Say
from tests.operations.world import World

SAYING = [
    path for room in ("operations", "infra", "cdk8s_charts") for path in sorted((ROOT / room).rglob("*.py"))
]
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_command_that_deploys_an_experiment_names_its_file() -> None:
    assert deploy_command("qwen3-today") == "./trnspec deploy experiments/qwen3-32b-today.yaml"
    assert deploy_command("mine") == "./trnspec deploy <the file of mine>"


def test_every_remedy_and_guide_gives_the_one_command_and_no_option_that_lasts() -> None:
    for path in SAYING:
        text = path.read_text(encoding="utf-8")
        assert "npx cdk deploy" not in text, path
        assert not re.search(rf"with -c ({'|'.join(KEYS)})|-c ({'|'.join(KEYS)})=<", text), path
    for path in GUIDES:
        assert not re.search(rf"-c ({'|'.join(KEYS)})=", path.read_text(encoding="utf-8")), path


OTHER = "ap-southeast-4"


@pytest.fixture
def aws(account: None, experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> Aws:
    monkeypatch.setattr(Aws, "_boto_client", lambda self, service: shared_client(service, self.region))
    return Aws(experiment.cluster.region)


def test_what_a_file_describes_even_a_broken_one_and_what_is_not_of_this_project_is_not_told(
    experiment: Experiment, aws: Aws, tmp_path: Path
) -> None:
    make_stacks("qwen3-32b", "network", "cluster")
    make_stacks("qwen3-today", "network")  # another committed file's
    make_stacks("theirs", "api", "cluster-of-mine")
    make_stacks("theirs", "cluster", tag="another")
    assert cloudformation.find(experiment, aws) == ([], [])
    (tmp_path / "mine.yaml").write_text("name: being-written\nversion: 9\n", encoding="utf-8")
    (tmp_path / "broken.yaml").write_text("name: [\n", encoding="utf-8")
    for name in ("being-written", "broken"):
        make_stacks(name, "cluster", region=OTHER)
    (found,) = cloudformation.find(experiment, aws, files=tmp_path)[0]
    assert found.experiment == "qwen3-today", "which no file of that folder describes"


def test_a_changed_name_or_region_is_found_with_the_way_to_remove_it(
    experiment: Experiment, aws: Aws
) -> None:
    changed = [("qwen3-32b", OTHER), ("renamed", OTHER), ("renamed", "us-east-2")]
    for name, region in changed:
        make_stacks(name, "cluster", "nodes", "delivery-role", region=region)
    found, untold = cloudformation.find(experiment, aws)
    assert ([(one.experiment, one.region) for one in found], untold) == (changed, [])
    for one in found:
        name = one.experiment
        assert one.stacks == (f"{name}-cluster", f"{name}-delivery-role", f"{name}-nodes")
        assert f"./trnspec teardown --name {name} --region {one.region}" in one.finding().line()


def test_what_could_not_be_looked_at_is_told_and_the_own_region_is_looked_at(
    experiment: Experiment, aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_regions() -> dict[str, list[str]]:
        raise AwsError("ec2:DescribeRegions: not allowed", code="UnauthorizedOperation")

    def no_stacks(there: Aws) -> dict[str, list[str]]:
        if there.region == OTHER:
            raise AwsError("cloudformation:DescribeStacks: not allowed", code="AccessDenied")
        return {}

    make_stacks("renamed", "cluster")
    regions = shared_client("ec2").describe_regions
    aws.client("ec2").__dict__["describe_regions"] = no_regions
    found, (line,) = cloudformation.find(experiment, aws)
    assert [one.experiment for one in found] == ["renamed"]
    assert line.startswith("other regions: stacks that no file describes were not looked for (ec2:")
    aws.client("ec2").__dict__["describe_regions"] = regions
    monkeypatch.setattr(cloudformation, "by_experiment", no_stacks)
    (line,) = cloudformation.find(experiment, aws)[1]
    assert line.startswith(f"{OTHER}: stacks that no file describes were not looked for (cloudformation:")
    enabled = [one for one in regions()["Regions"] if one["RegionName"] != OTHER]
    aws.client("ec2").__dict__["describe_regions"] = lambda: {"Regions": enabled}
    assert cloudformation.find(experiment, aws) == ([], [])


def test_status_names_them_and_teardown_removes_them_and_nothing_else(world: World, say: Say) -> None:
    make_stacks("renamed", "cluster", "nodes", region=OTHER)
    make_stacks("qwen3-32b", "cluster")
    code, out, err = say("status")
    assert (code, "no file" in out) == (1, True)
    removal = "./trnspec teardown --name renamed --region ap-southeast-4"
    assert removal in err
    assert max(len(line) for line in out.splitlines()) <= 100
    code, _, err = say("teardown", "--name", "renamed")
    assert (code, "give both" in err) == (2, True)
    make_stacks("renamed", "cluster")
    code, out, _ = say(*removal.split()[1:], "--confirm", "renamed")
    assert (code, "2 of 2 stacks deleted" in out) == (0, True)
    assert {*stack_names(), *stack_names(OTHER)} == {"qwen3-32b-cluster", "renamed-cluster"}


def test_a_network_is_expected_unless_the_file_names_a_vpc(experiment: Experiment, aws: Aws) -> None:
    absent = {stack.name for stack in cloudformation.expected(experiment, aws)}
    network = Network(vpc="vpc-0123456789abcdef0")
    within = replace(experiment, cluster=experiment.cluster.model_copy(update={"network": network}))
    assert absent - {stack.name for stack in cloudformation.expected(within, aws)} == {"qwen3-32b-network"}
    make_stacks("qwen3-32b", "network")  # of an earlier state of the file
    assert "qwen3-32b-network" in {stack.name for stack in cloudformation.expected(within, aws)}
