"""A pipeline whose first stage goes into a cluster that exists."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.pipeline.pipeline_app import app_of
from infra.pipeline.pipeline_file import PipelineConfiguration
from tests.infra.findings import acknowledged, findings
from tests.infra.pipeline.conftest import Template, of_type, read
from tests.infra.pipeline.test_rules import ACKNOWLEDGED as KEPT

GROUP = "sg-0123456789abcdef0"


@pytest.fixture(scope="module")
def outdir(configuration: PipelineConfiguration, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from experiment.model import Network

    network = Network(
        vpc="vpc-0123456789abcdef0",
        private_subnets={"us-east-2a": "subnet-0a0123456789abcde", "us-east-2b": "subnet-0b0123456789abcde"},
    )
    there = {"existing": "team", "security_group": GROUP, "network": network, "admin_cidrs": ()}
    experiment = configuration.dev.experiment
    joined = replace(experiment, cluster=experiment.cluster.model_copy(update=there))
    dev = replace(configuration.dev, experiment=joined, files=())
    folder = tmp_path_factory.mktemp("cdk-out")
    app = app_of(replace(configuration, dev=dev), outdir=str(folder))

    import aws_cdk as cdk
    import cdk_nag

    cdk.Validations.of(app).add_plugins(cdk_nag.AwsSolutionsChecks(app))
    with pytest.raises(RuntimeError, match="ValidationFailed"):
        app.synth()
    return folder


@pytest.fixture(scope="module")
def stage(outdir: Path) -> dict[str, Template]:
    folder = outdir / "assembly-pipeline-dev"
    return {
        path.name.removeprefix("pipelinedev").split(".")[0].rstrip("0123456789ABCDEF"): read(path)
        for path in sorted(folder.glob("*.template.json"))
    }


def test_the_stage_has_no_cluster_and_no_network_of_its_own(stage: dict[str, Template]) -> None:
    assert {"network", "cluster"}.isdisjoint(stage)
    assert {"delivery", "deliveryrole", "identity", "nodes", "workloads"} <= {
        name.replace("-", "") for name in stage
    }


def test_builds_join_the_group_of_the_cluster_and_change_no_rule_of_it(stage: dict[str, Template]) -> None:
    projects = of_type(stage["delivery"], "AWS::CodeBuild::Project")
    assert projects
    assert all(one["VpcConfig"]["SecurityGroupIds"] == [GROUP] for one in projects.values())
    rules: list[dict[str, Any]] = [
        one
        for template in stage.values()
        for one in of_type(template, "AWS::EC2::SecurityGroupIngress").values()
    ]
    assert not [one for one in rules if one["GroupId"] == GROUP]


def test_the_role_of_the_delivery_is_let_in_after_it_was_made(
    outdir: Path, stage: dict[str, Template]
) -> None:
    (entry,) = of_type(stage["identity"], "AWS::EKS::AccessEntry").values()
    assert entry["ClusterName"] == "team"
    manifest = json.loads((outdir / "assembly-pipeline-dev" / "manifest.json").read_text(encoding="utf-8"))
    stacks = {
        name: one
        for name, one in manifest["artifacts"].items()
        if "templateFile" in one.get("properties", {})
    }
    (identity,) = (one for name, one in stacks.items() if "identity" in name)
    assert [name for name in identity["dependencies"] if name in stacks and "deliveryrole" in name]


def test_cdk_nag_finds_nothing_that_is_not_acknowledged(outdir: Path) -> None:
    kept = [*KEPT, *acknowledged("experiment")]
    found = findings(outdir / "validation-report.json")
    assert len(found) > 40
    assert [one for one in found if not any(entry.covers(one) for entry in kept)] == []
