"""A small evaluator of IAM policies, to ask templates what their roles could do.

Explicit deny goes before allow; wildcards, NotAction and NotResource count; a permissions boundary must allow as well. It
is conservative: a condition that it does not know is taken as met where it stands with an Allow, and as not met with a
Deny; `unknown_keys` names such conditions. A reference to something of the same template is taken as that thing and matches
nothing else. It knows no resource policies, no session policies and no organisation's policies; order of evaluation:
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.infra.templates import ACCOUNT, resolved

Statement = Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """Somebody wants to do something; `context` has the condition keys that are known, `None` where a key is absent."""

    action: str
    resource: str = "arn:aws:anything:us-east-2:111122223333:at-all"
    context: Mapping[str, str | tuple[str, ...] | None] = field(default_factory=dict)


def allows(
    request: Request, policies: Iterable[Statement], *, boundary: Iterable[Statement] | None = None
) -> bool:
    """Whether identity policies, inside the boundary if there is one, let the request pass."""
    own = list(policies)
    if not _passes(request, own):
        return False
    return boundary is None or _passes(request, list(boundary))


def unknown_keys(request: Request, policies: Iterable[Statement]) -> set[str]:
    """Condition keys of the statements about this request that its context does not have."""
    about = [one for one in policies if _speaks_of(one, request)]
    keys = {key for one in about for tests in one.get("Condition", {}).values() for key in tests}
    return keys - request.context.keys()


class _Loader(yaml.SafeLoader):
    """YAML with CloudFormation's short forms."""


_Loader.add_multi_constructor("!", lambda loader, suffix, node: {suffix: loader.construct_scalar(node)})


@cache
def template_of(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)
    return found


@cache
def committed(file: Path, name: str, **parameters: str) -> list[dict[str, Any]]:
    """The statements of a policy of a committed template, its parameters filled in: as given, or by default. Pseudo parameters
    are those of account 111122223333, but for those that are given as `AWS__Region`."""
    template = template_of(file)
    defaults = {key: entry["Default"] for key, entry in template["Parameters"].items()}
    pseudo = {
        "AWS::Partition": "aws",
        "AWS::AccountId": ACCOUNT,
        "AWS::Region": "us-east-2",
        "AWS::StackName": "policies",
        "AWS::URLSuffix": "amazonaws.com",
    }
    given = {key.replace("__", "::"): value for key, value in parameters.items()}
    document = template["Resources"][name]["Properties"]["PolicyDocument"]
    found: list[dict[str, Any]] = _filled(document["Statement"], {**pseudo, **defaults, **given})
    return found


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    match value:
        case {"Ref": name}:
            return values[name].split(",") if "," in values[name] else values[name]
        case {"Sub": text}:
            # `${!x}` is what CloudFormation leaves to IAM.
            put = re.sub(r"\$\{([\w:]+)\}", lambda found: values[found[1]], text)
            return put.replace("${!", "${")
        case list():
            return [_filled(item, values) for item in value]
        case dict():
            return {key: _filled(inner, values) for key, inner in value.items()}
    return value


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
            patterns = (
                text
                for entry in _list(statement[name])
                for text in ([entry] if isinstance(entry, str) else _list(resolved(entry)))
            )
            return any(_like(pattern.lower() if fold else pattern, value) for pattern in patterns) is wanted
    return False


def _met(statement: Statement, request: Request, *, unknown: bool) -> bool:
    return all(
        _holds(operator, request.context[key], _list(resolved(values))) if key in request.context else unknown
        for operator, tests in statement.get("Condition", {}).items()
        for key, values in tests.items()
        if key in request.context or not unknown
    )


def _holds(operator: str, actual: str | tuple[str, ...] | None, values: list[str]) -> bool:
    """The operators that the policies here use; a negated one, and one with IfExists, holds where the key is absent."""
    if operator == "Null":
        return (actual is None) is (values == ["true"])
    if operator == "ForAllValues:StringEquals":
        return {*(actual or ())} <= {*values}
    assert not isinstance(actual, tuple), "a key of several values has an operator of its own"
    name = operator.removeprefix("ForAnyValue:").removesuffix("IfExists")
    negated = "Not" in name
    assert name.replace("Not", "") in ("StringEquals", "StringLike", "ArnEquals", "ArnLike", "Bool"), operator
    if actual is None:
        return negated or operator.endswith("IfExists")
    exact = name in ("StringEquals", "StringNotEquals", "Bool")
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
