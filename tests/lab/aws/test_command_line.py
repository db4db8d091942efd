"""What surrounds the CDK command line; that it really deploys is a lane of its own (`scripts/rehearse` in `.ci/run`)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from experiment.finding import Refusal
from lab import rehearse
from lab.aws import command_line
from lab.aws.command_line import bootstrap_and_deploy, pushed
from tests.conftest import ROOT
from tests.lab.aws.assemblies import REGION

STAND_IN = ROOT / "lab" / "aws" / "docker_stand_in"
ACCOUNT = "123456789012"


def docker(log: Path, *arguments: str) -> int:
    environment = {**os.environ, "REHEARSAL_DOCKER_LOG": str(log)}
    done = subprocess.run([STAND_IN, *arguments], env=environment, stdin=subprocess.DEVNULL, check=False)
    return done.returncode


def test_the_stand_in_for_docker_knows_no_image_and_notes_what_it_is_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "docker.log"
    assert pushed(log) == ()
    assert docker(log, "inspect", "asset") == 1
    assert docker(log, "build", "--tag", "asset", ".") == 0
    assert docker(log, "push", "registry/images:abc") == 0
    assert docker(log, "push", "registry/images:abc") == 0
    assert pushed(log) == ("registry/images:abc",)


def fake_cdk(folder: Path, script: str) -> Path:
    path = folder / "npx"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def deploy(folder: Path, heard: list[str] | None = None) -> command_line.Deployed:
    heard = heard if heard is not None else []
    return bootstrap_and_deploy(
        context={"experiment": "x.yaml"},
        deployment=folder / "lasts.yaml",
        folder=folder,
        endpoint="http://localhost:1",
        account=ACCOUNT,
        region=REGION,
        bootstrap_flags=("--custom-permissions-boundary", "bounds"),
        report=heard.append,
    )


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command line that says with what it was called."""
    script = 'echo "$@" "$AWS_ENDPOINT_URL" "$AWS_PROFILE" "$CDK_DOCKER"'
    monkeypatch.setenv("AWS_PROFILE", "of-the-user")
    monkeypatch.setattr(command_line, "NPX", fake_cdk(tmp_path, script))
    monkeypatch.setattr(command_line, "CDK", tmp_path / "npx")
    return tmp_path


def test_bootstrap_comes_first_then_all_stacks_without_change_sets(installed: Path) -> None:
    heard: list[str] = []
    deploy(installed, heard)
    assert heard == [
        "cdk bootstrap aws://123456789012/us-east-2 --custom-permissions-boundary bounds",
        "cdk deploy --all --method direct",
    ]
    bootstrapped = (installed / "bootstrap.log").read_text(encoding="utf-8").split()
    assert bootstrapped[1:5] == [
        "bootstrap",
        "aws://123456789012/us-east-2",
        "--custom-permissions-boundary",
        "bounds",
    ]
    called = (installed / "deploy.log").read_text(encoding="utf-8").split()
    assert called[:5] == ["cdk", "deploy", "--all", "--method", "direct"]
    assert "experiment=x.yaml" in called
    assert called[called.index("--app") + 1 :][:3] == [
        ".venv/bin/python",
        "app.py",
        str(installed / "lasts.yaml"),
    ]


def test_it_reaches_the_loopback_server_and_no_profile_of_the_user(installed: Path) -> None:
    deploy(installed)
    called = (installed / "deploy.log").read_text(encoding="utf-8")
    assert called.endswith(f"http://localhost:1  {STAND_IN}\n")


def test_a_command_that_fails_is_one_line_with_its_reason(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "echo fine; echo '❌  qwen3-32b-nodes failed: no such subnet'; exit 1"
    monkeypatch.setattr(command_line, "NPX", fake_cdk(installed, script))
    with pytest.raises(Refusal, match=r"cdk bootstrap: exit 1: .*no such subnet") as caught:
        deploy(installed)
    assert "\n" not in str(caught.value)
    assert str(installed / "bootstrap.log") in str(caught.value)


def test_without_the_command_line_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "CDK", tmp_path / "cdk")
    with pytest.raises(Refusal, match="run scripts/setup"):
        deploy(tmp_path)


def test_a_wrong_experiment_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("version: 1\n", encoding="utf-8")
    assert rehearse.main(["--experiment", str(wrong)]) == 2
    assert "wrong.yaml" in capsys.readouterr().err
