"""A stage of the pipeline that goes into a cluster that exists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.infra.findings import Finding, acknowledged
from tests.infra.pipeline.conftest import GROUP, Template, of_type, stage_templates
from tests.infra.pipeline.test_rules import ACKNOWLEDGED as KEPT


@pytest.fixture(scope="module")
def stage(assembly: Path) -> dict[str, Template]:
    return stage_templates(assembly, "dev")


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
    assembly: Path, stage: dict[str, Template]
) -> None:
    (entry,) = of_type(stage["identity"], "AWS::EKS::AccessEntry").values()
    assert entry["ClusterName"] == "team"
    manifest = json.loads((assembly / "assembly-dev" / "manifest.json").read_text(encoding="utf-8"))
    stacks = {
        name: one
        for name, one in manifest["artifacts"].items()
        if "templateFile" in one.get("properties", {})
    }
    (identity,) = (one for name, one in stacks.items() if "identity" in name)
    assert [name for name in identity["dependencies"] if name in stacks and "deliveryrole" in name]


def test_cdk_nag_finds_nothing_that_is_not_acknowledged(rule_findings: list[Finding]) -> None:
    kept = [*KEPT, *acknowledged("experiment")]
    found = [one for one in rule_findings if one.path.startswith("dev/")]
    assert len(found) > 30
    assert [one for one in found if not any(entry.covers(one) for entry in kept)] == []
