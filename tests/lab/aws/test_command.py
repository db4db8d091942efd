"""`python -m lab.aws`: the account on stdout, progress and complaints on stderr, and an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.aws.__main__ import main
from tests.lab.aws.assemblies import REGION, write_assembly


def test_a_good_assembly_prints_its_account_and_exits_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = {"Resources": {"Together": {"Type": "AWS::EC2::PlacementGroup", "Properties": {}}}}
    write_assembly(tmp_path, {"one": (template, ())})
    assert main([str(tmp_path), "--region", REGION]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Rehearsal of 1 stacks in us-east-2")
    assert "not modelled  1 AWS::EC2::PlacementGroup" in captured.out
    assert captured.err.count("\n") == 1


def test_a_stack_that_fails_exits_1_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = {"Resources": {"Subnet": {"Type": "AWS::EC2::Subnet", "Properties": {"VpcId": "vpc-1"}}}}
    write_assembly(tmp_path, {"broken": (template, ())})
    assert main([str(tmp_path), "--region", REGION]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1].startswith("stack broken: Subnet (AWS::EC2::Subnet): ")
    assert captured.err.count("\n") == 2


def test_a_folder_that_is_no_assembly_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--region", REGION]) == 2
    assert "manifest.json: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--region", "us-est-2"], "us-west-2, us-east-2"),
        (["--region", REGION, "--account", "12"], "not twelve digits"),
    ],
)
def test_a_place_that_does_not_exist_exits_2(
    words: list[str], said: str, three_stacks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(three_stacks), *words]) == 2
    assert said in capsys.readouterr().err
