"""The reference in a VPC that exists: its subnets are named, and nothing of the network is made or looked up."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cdk8s_charts.manifests import texts, write
from cdk8s_charts.render import render
from experiment import Experiment, load
from tests.conftest import ROOT
from tests.infra.templates import STACKS, Deployment


def test_all_stacks_but_the_network_come(within_deployment: Deployment) -> None:
    assert {*within_deployment.templates} == {*STACKS} - {"network"}


def test_nothing_of_a_network_is_made_or_changed_but_groups_of_our_own(within_deployment: Deployment) -> None:
    made = {one.type for one in within_deployment.resources() if one.type.startswith("AWS::EC2::")}
    groups = {"AWS::EC2::SecurityGroup", "AWS::EC2::SecurityGroupIngress", "AWS::EC2::SecurityGroupEgress"}
    assert made == groups | {"AWS::EC2::LaunchTemplate"}


def test_everything_stands_in_the_named_subnets(within_deployment: Deployment, within: Experiment) -> None:
    network, found = within.cluster.network, within_deployment
    subnets = [*network.private_subnets.values()]
    (cluster,) = found.resources("AWS::EKS::Cluster")
    assert cluster.properties["ResourcesVpcConfig"]["SubnetIds"] == subnets
    handlers = [
        one.properties for one in found.resources("AWS::Lambda::Function") if "VpcConfig" in one.properties
    ]
    assert handlers
    assert all(one["VpcConfig"]["SubnetIds"] == subnets for one in handlers)
    assert found.only("AWS::AutoScaling::AutoScalingGroup").properties["VPCZoneIdentifier"] == subnets
    system = found.only("AWS::EKS::Nodegroup", stack="cluster").properties["Subnets"]
    neuron = found.only("AWS::EKS::Nodegroup", stack="nodes").properties["Subnets"]
    assert (system, neuron) == (subnets, [network.private_subnets["us-east-2c"]])
    groups = found.resources("AWS::EC2::SecurityGroup")
    assert {str(group.properties["VpcId"]) for group in groups} == {network.vpc}


def test_nothing_is_looked_up_or_warned_of(assembly: Path) -> None:
    manifest = json.loads((assembly / "assembly-within" / "manifest.json").read_text(encoding="utf-8"))
    assert "missing" not in manifest
    stacks = [one for one in manifest["artifacts"].values() if one["type"] == "aws:cloudformation:stack"]
    assert len(stacks) == len(STACKS) - 1
    warned = [entry for one in stacks for entries in one.get("metadata", {}).values() for entry in entries]
    assert not [entry for entry in warned if entry["type"] in ("aws:cdk:warning", "aws:cdk:error")]


@pytest.mark.slow
def test_cloudformation_validation_has_no_finding_in_what_the_guide_shows(tmp_path: Path) -> None:
    """The reference with the guide's network and settings, by the way that a deployment takes."""
    guide = (ROOT / "docs" / "what-you-have.md").read_text(encoding="utf-8")
    network, settings = re.findall(r"^```yaml\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)[:2]
    data = yaml.safe_load((ROOT / "experiments" / "qwen3-32b.yaml").read_text(encoding="utf-8"))
    data["cluster"].update(yaml.safe_load(network)["cluster"])
    file, deployment = tmp_path / "within.yaml", tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    deployment.write_text(settings, encoding="utf-8")
    one = load(file)
    write(texts(one, render(one), tmp_path / "manifests"))
    context = {"experiment": str(file), "manifests": str(tmp_path / "manifests")}
    told = {
        "CDK_VALIDATION": "true",
        "CDK_OUTDIR": str(tmp_path / "out"),
        "CDK_CONTEXT_JSON": json.dumps(context),
    }
    command = [sys.executable, "app.py", str(deployment)]
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **told}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    # Without validation there is no such file; in it are plugins that found something or were told to be silent.
    assert json.loads((tmp_path / "out" / "validation-report.json").read_text())["pluginReports"] == []
    assert len([*(tmp_path / "out").glob("*.template.json")]) == len(STACKS) - 1
