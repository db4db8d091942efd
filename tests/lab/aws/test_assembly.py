"""Reading a cloud assembly: order, environment, what bootstrap has to leave behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiment.finding import Misuse
from lab.aws.assembly import Assembly, read_assembly
from tests.lab.aws.assemblies import NETWORK, REGION, WORKLOADS, write_assembly, write_three_stacks

ACCOUNT = "123456789012"


def _read(folder: Path) -> Assembly:
    return read_assembly(folder, account=ACCOUNT, region=REGION)


def test_stacks_come_after_what_they_depend_on_byte_for_byte(tmp_path: Path) -> None:
    stacks = _read(write_three_stacks(tmp_path)).stacks
    assert [stack.name for stack in stacks] == ["network", "cluster", "workloads"]
    for stack in stacks:
        assert stack.body == (tmp_path / f"{stack.name}.template.json").read_text(encoding="utf-8")


def test_lambda_code_is_found_where_the_templates_name_it(tmp_path: Path) -> None:
    assembly = _read(write_assembly(tmp_path, {"w": (WORKLOADS, ())}))
    code = ("cdk-hnb659fds-assets-123456789012-us-east-2", "0123.zip")
    assert assembly.code_assets(account=ACCOUNT, region=REGION) == (code,)
    assert assembly.bootstrap == {"/cdk-bootstrap/hnb659fds/version": 6}


def test_container_images_and_stages_are_named(tmp_path: Path) -> None:
    images = {"a": {"destinations": {"here": {"repositoryName": "container-assets", "imageTag": "c0ffee"}}}}
    (tmp_path / "n.assets.json").write_text(json.dumps({"dockerImages": images}), encoding="utf-8")
    more = {
        "n.assets": {"type": "cdk:asset-manifest", "properties": {"file": "n.assets.json"}},
        "assembly-Prod": {"type": "cdk:cloud-assembly", "properties": {"directoryName": "assembly-Prod"}},
    }
    folder = write_assembly(tmp_path, {"n": (NETWORK, ())}, more=more)
    assembly = _read(folder)
    assert assembly.images == ("container-assets:c0ffee",)
    assert assembly.stages == ("assembly-Prod",)


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ("aws://111122223333/us-east-2", "stack n: made for account 111122223333, not 123456789012"),
        ("aws://unknown-account/eu-west-1", "stack n: made for region eu-west-1, not us-east-2"),
        ("somewhere", "stack n: environment 'somewhere'"),
    ],
)
def test_a_stack_made_for_elsewhere_is_refused(tmp_path: Path, environment: str, complaint: str) -> None:
    write_assembly(tmp_path, {"n": (NETWORK, ())}, environment=f"aws://{ACCOUNT}/{REGION}")
    assert len(_read(tmp_path).stacks) == 1
    write_assembly(tmp_path, {"n": (NETWORK, ())}, environment=environment)
    with pytest.raises(Misuse, match=complaint):
        _read(tmp_path)


def test_weak_references_between_stacks_are_refused_with_the_setting_that_helps(tmp_path: Path) -> None:
    weak = {"Fn::GetStackOutput": {"StackName": "network", "OutputName": "Subnet"}}
    template = {"Resources": {"Bucket": {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": weak}}}}
    write_assembly(tmp_path, {"weak": (template, ())})
    with pytest.raises(
        Misuse, match=r"weak\.template\.json: Fn::GetStackOutput .*defaultCrossStackReferences"
    ):
        _read(tmp_path)


def test_stacks_that_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    write_assembly(tmp_path, {"a": (NETWORK, ("b",)), "b": (NETWORK, ("a",))})
    with pytest.raises(Misuse, match="stacks wait for each other"):
        _read(tmp_path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "No such file or directory"),
        ("{", "not valid JSON"),
        ("[]", "holds a list, not an object"),
        ("{}", "no stack in it"),
    ],
)
def test_a_folder_that_is_not_an_assembly_is_refused(
    tmp_path: Path, content: str | None, complaint: str
) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content, encoding="utf-8")
    with pytest.raises(Misuse, match=complaint) as caught:
        _read(tmp_path)
    assert "\n" not in str(caught.value)
