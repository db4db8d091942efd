"""trn2.3xlarge, as the Medusa experiment deploys it: another region, no EFA, device plugin."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiment import Experiment, load
from tests.infra.templates import Deployment
from tests.infra.test_rules import CFN_LINT, LEFT_TO_CDK

ROOT = Path(__file__).resolve().parents[2]
FILE = "experiments/llama-medusa-batch.yaml"
REGION = "ap-southeast-4"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return load(ROOT / FILE)


@pytest.fixture(scope="module")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a process of its own, as the command line has it."""
    outdir = tmp_path_factory.mktemp("small")
    asked = {"CDK_CONTEXT_JSON": json.dumps({"experiment": FILE}), "CDK_VALIDATION": "false"}
    subprocess.run(
        [sys.executable, "app.py"],
        cwd=ROOT,
        env={**os.environ, **asked, "CDK_OUTDIR": str(outdir)},
        timeout=300,
        check=True,
    )
    return outdir


@pytest.fixture(scope="module")
def launch(assembly: Path) -> dict[str, Any]:
    template = Deployment.read(assembly).only("AWS::EC2::LaunchTemplate", stack="nodes")
    data: dict[str, Any] = template.properties["LaunchTemplateData"]
    return data


def test_the_nodes_are_small_and_carry_no_efa(launch: dict[str, Any]) -> None:
    assert launch["InstanceType"] == "trn2.3xlarge"
    assert "NetworkInterfaces" not in launch
    (group,) = launch["SecurityGroupIds"]
    assert "ClusterSecurityGroupId" in str(group)


def test_several_nodes_without_efa_need_not_stand_close_together(
    launch: dict[str, Any], experiment: Experiment
) -> None:
    assert experiment.cluster.max_nodes > 1
    assert "Placement" not in launch


def test_nodes_learn_the_size_of_their_logical_cores(launch: dict[str, Any]) -> None:
    assert b"NEURON_LOGICAL_NC_CONFIG=2" in base64.b64decode(launch["UserData"])


def test_devices_are_handed_out_by_the_plugin(assembly: Path) -> None:
    chart = Deployment.read(assembly).only("Custom::AWSCDK-EKS-HelmChart").properties
    values = {name: part["enabled"] for name, part in json.loads(chart["Values"]).items()}
    assert values == {"devicePlugin": True, "scheduler": True, "draDriver": False, "npd": False}


def test_subnets_stand_in_the_zones_of_its_own_region(assembly: Path) -> None:
    subnets = Deployment.read(assembly).resources("AWS::EC2::Subnet")
    zones = {subnet.properties["AvailabilityZone"] for subnet in subnets}
    assert zones == {f"{REGION}{letter}" for letter in "abc"}


def test_cfn_lint_lacks_trn2_in_that_region_and_finds_nothing_else(assembly: Path) -> None:
    """Its table of instance types by region is older than the instances there; once it is not, this fails."""
    ended = subprocess.run(
        [sys.executable, "-c", CFN_LINT, "--format", "json", "--regions", REGION, "--"]
        + [str(path) for path in sorted(assembly.glob("*.template.json"))],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    found = [match for match in json.loads(ended.stdout) if match["Rule"]["Id"] not in LEFT_TO_CDK]
    assert [match["Rule"]["Id"] for match in found] == ["E3628"]
    assert found[0]["Message"].startswith("'trn2.3xlarge' is not one of")
