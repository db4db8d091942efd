"""The README's block for AWS in an account of moto, from preflight to the teardown; the reference stands for an experiment of one's own.

Of the CDK only the command line is compared; the clock is not the machine's.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from moto import mock_aws

from cdk8s_charts.manifests import read
from tests.conftest import REFERENCE, ROOT
from tests.docs.test_readme_blocks import AWS, OWN, lines
from tests.infra.pipeline.test_whole_runs import Account
from tests.operations import ready
from tests.operations.clients import make_stacks
from trnspec.experiment import load
from trnspec.operations import deploy
from trnspec.operations.__main__ import main
from trnspec.operations.preflight import checklist

pytestmark = pytest.mark.slow
HERE = {"qwen3-mine": "qwen3-32b", "drafted": "qwen-sd-vllm"}
STACKS = ("network", "cluster", "nodes", "workloads", "run")


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """A bootstrapped account, in which EC2 offers what the reference asks for."""
    reference = load(REFERENCE)
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("CDK_DOCKER", sys.executable)
    settings = tmp_path / "deployment.yaml"
    settings.write_text("admins: [arn:aws:iam::123456789012:role/admin]\n", encoding="utf-8")
    monkeypatch.setattr(checklist, "DEPLOYMENT", settings)
    with ExitStack() as stack:
        stack.enter_context(mock_aws())
        stack.enter_context(ready.offering(reference))
        ready.bootstrap()
        make_stacks("qwen3-32b", "storage", protected=())  # of an earlier deployment
        monkeypatch.setattr(deploy, "synthesized", lambda _: {"qwen3-32b-storage": {"Resources": {}}})
        yield Account(reference, tmp_path, monkeypatch, read(reference, ROOT / "manifests"))


def test_the_block_for_aws_goes_from_preflight_to_an_answer_and_to_nothing_left(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _program, words: deployed.append(words))
    said, codes = dict[str, str](), dict[str, int]()
    for line in lines(AWS):
        for theirs, ours in HERE.items():
            line = line.replace(theirs, ours)
        verb, *rest = shlex.split(line, comments=True)[1:]
        out = [f"--out={tmp_path / 'home'}"] if verb == "run" else []
        codes[verb] = main([verb, *rest, *out])
        said[verb] = "".join(capsys.readouterr())
        if verb == "deploy":
            make_stacks("qwen3-32b", *STACKS, protected=())
    # This machine may reach no registry, and have no Session Manager plugin.
    assert codes.pop("preflight") in (0, 1)
    assert "no AWS credentials" not in said["preflight"]
    assert codes == dict.fromkeys(codes, 0), said
    assert [*said] == ["preflight", "deploy", "run", "promote", "teardown"]
    assert [words[1:4] for words in deployed] == [["cdk", "deploy", "--all"]]
    assert (tmp_path / "home" / "summary.json").exists()
    assert "arm: qwen-sd-vllm" in said["promote"]
    assert f"{len(STACKS)} of {len(STACKS)} stacks deleted" in said["teardown"]
    assert account.world.nodes == 0


def test_the_readme_names_an_experiment_of_which_the_bootstrap_may_make_roles() -> None:
    assert all("qwen3-mine" in line for line in (*lines(OWN), *lines(AWS)))
