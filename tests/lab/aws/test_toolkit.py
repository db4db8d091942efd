"""What surrounds the CDK command line, the committed policies in moto, and what the roles of a bootstrap carry. That it
really deploys is a lane of its own (`./trnspec rehearse` in `.ci/run`)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from lab.aws.accounting import account_of, create

from core.findings import Refusal
from lab.aws import toolkit
from lab.aws.assembly import ACCOUNT, StackTemplate
from lab.aws.moto_server import client, rehearsal_server
from lab.aws.toolkit import (
    BOOTSTRAP_STACK,
    EXECUTION_ROLE,
    bootstrap_and_deploy,
    check_roles,
    deploy_policies,
    pushed,
)
from tests.conftest import ROOT
from tests.lab.aws.assemblies import REGION, role

STAND_IN = ROOT / "lab" / "aws" / "docker_stand_in"
ADMINISTRATOR = "arn:aws:iam::aws:policy/AdministratorAccess"
READING = "arn:aws:iam::aws:policy/ReadOnlyAccess"
EXECUTION = f"arn:aws:iam::{ACCOUNT}:policy/speculation-execution"
BOUNDARY = f"arn:aws:iam::{ACCOUNT}:policy/speculation-boundary"


def test_the_stand_in_for_docker_knows_no_image_and_notes_what_it_is_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "docker.log"
    environment = {**os.environ, "REHEARSAL_DOCKER_LOG": str(log)}
    docker = partial(subprocess.call, env=environment, stdin=subprocess.DEVNULL)
    assert pushed(log) == ()
    assert docker([STAND_IN, "inspect", "asset"]) == 1
    assert docker([STAND_IN, "build", "--tag", "asset", "."]) == 0
    for _ in range(2):
        assert docker([STAND_IN, "push", "registry/images:abc"]) == 0
    assert pushed(log) == ("registry/images:abc",)


@pytest.fixture
def cdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command line that says with what it was called."""
    path = tmp_path / "cdk"
    script = '#!/bin/sh\necho cdk "$@" "$AWS_ENDPOINT_URL" "$AWS_PROFILE" "$CDK_DOCKER"\n'
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setenv("AWS_PROFILE", "of-the-user")
    monkeypatch.setattr(toolkit, "CDK", path)
    return path


def deploy(folder: Path) -> list[str]:
    """What it reports, with what lies between the two commands."""
    heard: list[str] = []
    bootstrap_and_deploy(
        context={"experiment": "x.yaml"},
        deployment=folder / "lasts.yaml",
        folder=folder,
        endpoint="http://localhost:1",
        region=REGION,
        bootstrap_flags=("--custom-permissions-boundary", "bounds"),
        bootstrapped=lambda: heard.append("between"),
        report=heard.append,
    )
    return heard


def test_bootstrap_comes_first_then_all_stacks_twice_without_change_sets_and_without_the_users_profile(
    cdk: Path, tmp_path: Path
) -> None:
    heard = deploy(tmp_path)
    assert heard == [
        "cdk bootstrap aws://123456789012/us-east-2 --custom-permissions-boundary bounds",
        "between",
        "cdk deploy --all --method direct",
        "cdk deploy --all --method direct",
    ]
    bootstrapped, called, again = (
        (tmp_path / f"{name}.log").read_text(encoding="utf-8")
        for name in ("bootstrap", "deploy", "deploy-again")
    )
    assert bootstrapped.startswith(heard[0])
    assert called.startswith(heard[2])
    assert "experiment=x.yaml" in called
    assert f"--app .venv/bin/python app.py {tmp_path / 'lasts.yaml'} " in called
    assert called.endswith(f"http://localhost:1  {STAND_IN}\n")
    assert f" --app {tmp_path / 'cdk.out'} " in again, "what is deployed again is the same assembly"


def test_a_command_that_fails_is_one_line_with_its_reason_and_without_it_the_remedy_is_named(
    cdk: Path, tmp_path: Path
) -> None:
    script = "#!/bin/sh\necho fine; echo '❌  qwen3-32b-nodes failed: no such subnet'; exit 1\n"
    cdk.write_text(script, encoding="utf-8")
    with pytest.raises(Refusal, match=r"cdk bootstrap: exit 1: .*no such subnet") as caught:
        deploy(tmp_path)
    assert "\n" not in str(caught.value)
    assert "--keep DIR keeps the whole log" in str(caught.value)
    cdk.unlink()
    with pytest.raises(Refusal, match="run scripts/setup"):
        deploy(tmp_path)


Asking = Callable[[str, dict[str, Any]], int]


@pytest.fixture(scope="module")
def asked() -> Iterator[Asking]:
    """How many roles were asked, of these in a stack of that name."""
    with rehearsal_server() as endpoint:
        of = partial(client, endpoint=endpoint, region=REGION)
        policies = deploy_policies(of("cloudformation"))
        assert policies.flags[1::2] == (EXECUTION, "speculation-boundary")
        for arn in (EXECUTION, BOUNDARY):
            assert of("iam").get_policy(PolicyArn=arn)["Policy"]["Arn"] == arn
        numbers = count()

        def ask(stack: str, roles: dict[str, Any]) -> int:
            template = {"Resources": roles}
            name = f"roles-{next(numbers)}"
            made = StackTemplate(name=name, body=json.dumps(template), template=template, tags={})
            create(made, of("cloudformation"))
            resources = account_of(made, of("cloudformation"), region=REGION)
            return check_roles([replace(one, stack=stack) for one in resources], policies, of("iam"))

        yield ask


def carrying(policies: list[str], boundary: str = "") -> dict[str, Any]:
    body = role("cloudformation.amazonaws.com")
    body["Properties"] |= {"ManagedPolicyArns": policies}
    body["Properties"] |= {"PermissionsBoundary": boundary} if boundary else {}
    return body


def test_a_bootstrap_and_stacks_within_the_committed_policies_pass(asked: Asking) -> None:
    roles = {EXECUTION_ROLE: carrying([EXECUTION], BOUNDARY), "LookupRole": carrying([READING])}
    assert asked(BOOTSTRAP_STACK, roles) == 2
    assert asked("qwen3-32b-nodes", {"Node": carrying([READING], BOUNDARY)}) == 1


@pytest.mark.parametrize(
    ("name", "policies", "boundary", "said"),
    [
        (EXECUTION_ROLE, [EXECUTION, ADMINISTRATOR], BOUNDARY, "policies: .*AdministratorAccess"),
        (EXECUTION_ROLE, [], BOUNDARY, "policies: none, not .*speculation-execution"),
        (EXECUTION_ROLE, [EXECUTION], "", "permissions boundary: none, not .*boundary"),
        (EXECUTION_ROLE, [EXECUTION], EXECUTION, "permissions boundary: .*execution, not"),
        ("LookupRole", [ADMINISTRATOR], "", "for reading: .*AdministratorAccess, not none"),
        ("Node", [READING], "", r"^stack other: role .*: permissions boundary: none"),
    ],
)
def test_a_role_that_could_do_more_is_refused_in_one_line(
    asked: Asking, name: str, policies: list[str], boundary: str, said: str
) -> None:
    with pytest.raises(Refusal, match=said) as caught:
        asked("other" if name == "Node" else BOOTSTRAP_STACK, {name: carrying(policies, boundary)})
    assert "\n" not in str(caught.value)
