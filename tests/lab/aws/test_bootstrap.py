"""The committed policies in moto, and what the roles of a bootstrap carry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from experiment.finding import Refusal
from lab.aws.assembly import StackTemplate
from lab.aws.bootstrap import BOOTSTRAP_STACK, EXECUTION_ROLE, Policies, check_roles, deploy_policies
from lab.aws.server import DEFAULT_ACCOUNT, client, rehearsal_server
from lab.aws.stacks import account_of, create
from tests.lab.aws.assemblies import REGION, role

ADMINISTRATOR = "arn:aws:iam::aws:policy/AdministratorAccess"
READING = "arn:aws:iam::aws:policy/ReadOnlyAccess"
EXECUTION = f"arn:aws:iam::{DEFAULT_ACCOUNT}:policy/speculation-execution"
BOUNDARY = f"arn:aws:iam::{DEFAULT_ACCOUNT}:policy/speculation-boundary"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with rehearsal_server() as address:
        yield address


@pytest.fixture(scope="module")
def policies(endpoint: str) -> Policies:
    return deploy_policies(client("cloudformation", endpoint=endpoint, region=REGION))


def carrying(policies: list[str], boundary: str = "") -> dict[str, Any]:
    body = role("cloudformation.amazonaws.com")
    properties = {**body["Properties"], "ManagedPolicyArns": policies}
    return {**body, "Properties": properties | ({"PermissionsBoundary": boundary} if boundary else {})}


@pytest.fixture(scope="module")
def asked(endpoint: str, policies: Policies) -> Callable[[str, dict[str, Any]], int]:
    """How many roles were asked, of these in a stack of that name."""
    cloudformation, iam = (
        client(name, endpoint=endpoint, region=REGION) for name in ("cloudformation", "iam")
    )
    numbers = count()

    def ask(stack: str, roles: dict[str, Any]) -> int:
        template = {"Resources": roles}
        made = StackTemplate(
            name=f"roles-{next(numbers)}", body=json.dumps(template), template=template, tags={}
        )
        create(made, cloudformation)
        resources = account_of(made, cloudformation, account=DEFAULT_ACCOUNT, region=REGION)
        return check_roles([replace(one, stack=stack) for one in resources], policies, iam)

    return ask


def test_the_flags_name_the_committed_policies(endpoint: str, policies: Policies) -> None:
    assert policies.flags == (
        "--cloudformation-execution-policies",
        EXECUTION,
        "--custom-permissions-boundary",
        "speculation-boundary",
    )
    iam = client("iam", endpoint=endpoint, region=REGION)
    for arn in (EXECUTION, BOUNDARY):
        assert iam.get_policy(PolicyArn=arn)["Policy"]["Arn"] == arn
    assert policies.boundary_arn == BOUNDARY


def test_a_bootstrap_held_to_the_policies_passes(asked: Callable[[str, dict[str, Any]], int]) -> None:
    roles = {EXECUTION_ROLE: carrying([EXECUTION], BOUNDARY), "LookupRole": carrying([READING])}
    assert asked(BOOTSTRAP_STACK, roles) == 2


@pytest.mark.parametrize(
    ("logical_id", "policies_of_role", "boundary", "message"),
    [
        (
            EXECUTION_ROLE,
            [ADMINISTRATOR],
            BOUNDARY,
            "policies: .*AdministratorAccess, not .*speculation-execution",
        ),
        (EXECUTION_ROLE, [EXECUTION, ADMINISTRATOR], BOUNDARY, "policies: .*AdministratorAccess"),
        (EXECUTION_ROLE, [], BOUNDARY, "policies: none, not .*speculation-execution"),
        (EXECUTION_ROLE, [EXECUTION], "", "permissions boundary: none, not .*speculation-boundary"),
        (EXECUTION_ROLE, [EXECUTION], EXECUTION, "permissions boundary: .*execution, not .*boundary"),
        (
            "LookupRole",
            [ADMINISTRATOR],
            "",
            "policies beyond AWS's for reading: .*AdministratorAccess, not none",
        ),
    ],
)
def test_a_bootstrap_that_could_do_more_is_refused(
    asked: Callable[[str, dict[str, Any]], int],
    logical_id: str,
    policies_of_role: list[str],
    boundary: str,
    message: str,
) -> None:
    with pytest.raises(Refusal, match=message) as caught:
        asked(BOOTSTRAP_STACK, {logical_id: carrying(policies_of_role, boundary)})
    assert "\n" not in str(caught.value)


def test_roles_of_the_stacks_are_inside_the_boundary_whatever_they_may_do(
    asked: Callable[[str, dict[str, Any]], int],
) -> None:
    assert asked("qwen3-32b-nodes", {"Node": carrying([READING], BOUNDARY)}) == 1
    with pytest.raises(Refusal, match=r"stack other: role .*: permissions boundary: none"):
        asked("other", {"Node": carrying([READING])})
