"""The evaluator against rules that AWS documents."""

from __future__ import annotations

from typing import Any

import pytest

from tests.infra.pipeline.iam import Request, allows


def allow(action: Any, resource: Any = "*", **rest: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **rest}


def deny(action: Any, resource: Any = "*", **rest: Any) -> dict[str, Any]:
    return {**allow(action, resource, **rest), "Effect": "Deny"}


GET = Request("s3:GetObject", "arn:aws:s3:::b/k")


def test_nothing_is_allowed_without_a_statement() -> None:
    assert not allows(GET, [])


@pytest.mark.parametrize(
    "action", ["s3:GetObject", "S3:getobject", "s3:Get*", "*", ["s3:PutObject", "s3:G?tObject"]]
)
def test_actions_match_without_case_and_with_wildcards(action: Any) -> None:
    assert allows(GET, [allow(action)])


@pytest.mark.parametrize(
    ("resource", "allowed"),
    [
        ("arn:aws:s3:::b/*", True),
        ("arn:aws:s3:::c/*", False),
        ("arn:aws:s3:::B/k", False),
        ({"Ref": "Bucket"}, False),
    ],
)
def test_resources_match_with_case(resource: Any, allowed: bool) -> None:
    assert allows(GET, [allow("s3:*", resource)]) is allowed


def test_a_denial_goes_before_any_permission() -> None:
    assert not allows(GET, [allow("*"), deny("s3:Get*")])
    assert allows(GET, [allow("*"), deny("s3:Get*", "arn:aws:s3:::c/*")])


def test_not_action_and_not_resource_mean_everything_else() -> None:
    assert allows(GET, [{"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"}])
    assert not allows(GET, [{"Effect": "Allow", "NotAction": "s3:*", "Resource": "*"}])
    assert not allows(GET, [allow("*"), {"Effect": "Deny", "Action": "*", "NotResource": "arn:aws:s3:::c/*"}])


def test_an_unknown_condition_neither_protects_nor_forbids() -> None:
    condition = {"StringEquals": {"aws:Whatever": "x"}}
    assert allows(GET, [allow("s3:*", Condition=condition)])
    assert allows(GET, [allow("*"), deny("s3:*", Condition=condition)])


@pytest.mark.parametrize(
    ("operator", "actual", "holds"),
    [
        ("StringEquals", "x", True),
        ("StringEquals", "y", False),
        ("StringEquals", None, False),
        ("StringNotEquals", "x", False),
        ("StringNotEquals", "y", True),
        ("StringNotEquals", None, True),
        ("ForAnyValue:StringEquals", None, False),
    ],
)
def test_a_known_condition_is_judged(operator: str, actual: str | None, holds: bool) -> None:
    request = Request(GET.action, GET.resource, {"k": actual})
    assert allows(request, [allow("s3:*", Condition={operator: {"k": "x"}})]) is holds
    assert allows(request, [allow("*"), deny("s3:*", Condition={operator: {"k": "x"}})]) is not holds


def test_a_boundary_must_allow_as_well() -> None:
    assert allows(GET, [allow("*")], boundary=[allow("s3:*")])
    assert not allows(GET, [allow("*")], boundary=[allow("ec2:*")])
    assert not allows(GET, [allow("*")], boundary=[allow("*"), deny("s3:*")])
