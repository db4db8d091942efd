"""Reading a cloud assembly: order, and what bootstrap has to leave behind."""

from __future__ import annotations

import json
from pathlib import Path

from lab.aws.assembly import read_assembly
from tests.lab.aws.assemblies import NETWORK, REGION, WORKLOADS, write_assembly, write_three_stacks


def test_stacks_come_after_what_they_depend_on_byte_for_byte(tmp_path: Path) -> None:
    stacks = read_assembly(write_three_stacks(tmp_path)).stacks
    assert [stack.name for stack in stacks] == ["network", "cluster", "workloads"]
    for stack in stacks:
        assert stack.body == (tmp_path / f"{stack.name}.template.json").read_text(encoding="utf-8")


def test_lambda_code_is_found_where_the_templates_name_it(tmp_path: Path) -> None:
    assembly = read_assembly(write_assembly(tmp_path, {"w": (WORKLOADS, ())}))
    code = ("cdk-hnb659fds-assets-123456789012-us-east-2", "0123.zip")
    assert assembly.code_assets(region=REGION) == (code,)
    assert assembly.bootstrap == {"/cdk-bootstrap/hnb659fds/version": 6}


def test_container_images_and_stages_are_named(tmp_path: Path) -> None:
    images = {"a": {"destinations": {"here": {"repositoryName": "container-assets", "imageTag": "c0ffee"}}}}
    (tmp_path / "n.assets.json").write_text(json.dumps({"dockerImages": images}), encoding="utf-8")
    more = {
        "n.assets": {"type": "cdk:asset-manifest", "properties": {"file": "n.assets.json"}},
        "assembly-Prod": {"type": "cdk:cloud-assembly", "properties": {"directoryName": "assembly-Prod"}},
    }
    assembly = read_assembly(write_assembly(tmp_path, {"n": (NETWORK, ())}, more=more))
    assert assembly.images == ("container-assets:c0ffee",)
    assert assembly.stages == ("assembly-Prod",)
