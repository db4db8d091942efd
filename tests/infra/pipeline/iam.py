"""A small evaluator of IAM policies, to ask templates what their roles could do.

Explicit deny goes before allow; wildcards, NotAction and NotResource count; a permissions boundary must allow as well. It
is conservative: a condition that it does not know is taken as met where it stands with an Allow, and as not met with a
Deny. A reference to something of the same template is taken as that thing and matches nothing else. It knows no resource
policies, no session policies and no organisation's policies; order of evaluation:
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cache
from typing import Any

from tests.infra.templates import resolved

Statement = Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """Somebody wants to do something; `context` has the condition keys that are known, `None` where a key is absent."""

    action: str
    resource: str = "arn:aws:anything:us-east-2:111122223333:at-all"
    context: Mapping[str, str | None] = field(default_factory=dict)


def allows(
    request: Request, policies: Iterable[Statement], *, boundary: Iterable[Statement] | None = None
) -> bool:
    """Whether identity policies, inside the boundary if there is one, let the request pass."""
    own = list(policies)
    if not _passes(request, own):
        return False
    return boundary is None or _passes(request, list(boundary))


def _passes(request: Request, statements: list[Statement]) -> bool:
    fitting = [one for one in statements if _speaks_of(one, request)]
    denied = any(one["Effect"] == "Deny" and _met(one, request, unknown=False) for one in fitting)
    return not denied and any(
        one["Effect"] == "Allow" and _met(one, request, unknown=True) for one in fitting
    )


def _speaks_of(statement: Statement, request: Request) -> bool:
    return _selected(statement, "Action", request.action.lower(), fold=True) and _selected(
        statement, "Resource", request.resource, fold=False
    )


def _selected(statement: Statement, key: str, value: str, *, fold: bool) -> bool:
    for name, wanted in ((key, True), (f"Not{key}", False)):
        if name in statement:
            patterns = [text for entry in _list(statement[name]) for text in _list(resolved(entry))]
            return any(_like(pattern.lower() if fold else pattern, value) for pattern in patterns) is wanted
    return False


def _met(statement: Statement, request: Request, *, unknown: bool) -> bool:
    return all(
        _holds(operator, request.context[key], _list(resolved(values))) if key in request.context else unknown
        for operator, tests in statement.get("Condition", {}).items()
        for key, values in tests.items()
        if key in request.context or not unknown
    )


def _holds(operator: str, actual: str | None, values: list[str]) -> bool:
    """String and ARN operators, which the policies here use; a negated one holds where the key is absent."""
    name = operator.removeprefix("ForAnyValue:")
    negated = "Not" in name
    assert name.replace("Not", "") in ("StringEquals", "StringLike", "ArnEquals", "ArnLike"), operator
    if actual is None:
        return negated
    exact = name in ("StringEquals", "StringNotEquals")
    found = any(actual == value if exact else _like(value, actual) for value in values)
    return found is not negated


def _like(pattern: str, value: str) -> bool:
    """`*` and `?` only: brackets are no wildcards in IAM."""
    return _compiled(pattern).fullmatch(value) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern.replace("[", "[[]")))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
