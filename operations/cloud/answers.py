"""Answers of AWS and of the cluster, held against what such an answer looks like.

A proxy, a hotel's login page or a broken endpoint answer with status 200 as well. Whoever took that for an answer would
believe that nothing is deployed, that no run is under way, or that nodes were set to 0. botocore checks little of it: a page
becomes an answer without a member, and a text stands where a number belongs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

PROOFS = {
    "CreateSchedule": "ScheduleArn",
    "GetObject": "ETag",
    "PutObject": "ETag",
    "UpdateNodegroupConfig": "update",
    "UpdateSchedule": "ScheduleArn",
}
"""Members that AWS always gives, of operations that are believed without a look at their answer."""
_REQUEST_ID = ("x-amzn-requestid", "x-amz-request-id", "x-amz-id-2")
_ROOT = re.compile(rb"\A\s*(?:<\?xml[^>]*\?>\s*)?(?:<!--.*?-->\s*)*<([\w.:-]+)", re.DOTALL)
_TYPES: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "double": (int, float),
    "float": (int, float),
    "integer": (int,),
    "long": (int,),
    "string": (str,),
    "timestamp": (datetime,),
}


class NotAnAnswerError(Exception):
    """The text says what is wrong with it."""


class Answer(dict[str, Any]):
    """A mapping of an answer; a member that it lacks is `lacking`'s error instead of a KeyError."""

    def __init__(self, content: Mapping[str, Any], lacking: Callable[[str], Exception]) -> None:
        super().__init__(content)
        self._lacking = lacking

    def __missing__(self, key: str) -> Any:
        raise self._lacking(key)


def refuse_foreign(operation_model: Any, response_dict: Mapping[str, Any], **_: Any) -> None:
    """botocore's event `before-parse`: NotAnAnswerError for a body that the service does not send with success."""
    body = response_dict["body"]
    if response_dict["status_code"] >= 300 or not isinstance(body, bytes):
        return  # an error, which has a code, or a stream, which is judged by its headers
    protocol, members = (
        operation_model.service_model.resolved_protocol,
        _in_body(operation_model.output_shape),
    )
    if protocol in ("json", "rest-json"):
        _refuse_other_json(body, response_dict["headers"], members)
    elif protocol in ("query", "ec2"):
        root = _ROOT.match(body)
        if root is None or not root[1].endswith(b"Response"):
            raise NotAnAnswerError(f"its body is {_kind(body)}")
    elif protocol == "rest-xml" and (_kind(body) in ("HTML", "text") or bool(members) != bool(body.strip())):
        raise NotAnAnswerError(f"its body is {_kind(body)}")


def checked(
    answer: Mapping[str, Any], operation_model: Any, lacking: Callable[[str], Exception]
) -> dict[str, Any]:
    """The answer with its members checked. Raises NotAnAnswerError."""
    shape, name = operation_model.output_shape, operation_model.name
    members = _in_body(shape)
    if (
        members
        and not members & answer.keys()
        and not _has_request_id(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}))
    ):
        raise NotAnAnswerError(f"it has none of {', '.join(sorted(members)[:5])}")
    if (proof := PROOFS.get(name)) is not None and proof not in answer:
        raise NotAnAnswerError(f"it has no {proof}")
    found: dict[str, Any] = dict(answer) if shape is None else _value(answer, shape, name, lacking)
    return found


def _in_body(shape: Any) -> set[str]:
    """Members that stand in the body, by name; none where the body is the payload of one member."""
    if shape is None or shape.serialization.get("payload"):
        return set()
    return {name for name, member in shape.members.items() if not member.serialization.get("location")}


def _refuse_other_json(body: bytes, headers: Mapping[str, str], members: set[str]) -> None:
    if not body.strip() and not members:
        return
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or (found and not members and not _has_request_id(headers)):
        raise NotAnAnswerError(f"its body is {_kind(body)}")


def _has_request_id(headers: Mapping[str, str]) -> bool:
    return any(name in headers for name in _REQUEST_ID)


def _value(value: Any, shape: Any, where: str, lacking: Callable[[str], Exception]) -> Any:
    kind = shape.type_name
    if kind == "structure":
        _expect(value, (dict,), where)
        return Answer(
            {
                key: _value(inner, shape.members[key], f"{where}.{key}", lacking)
                if key in shape.members
                else inner
                for key, inner in value.items()
            },
            lacking,
        )
    if kind == "list":
        _expect(value, (list,), where)
        return [_value(inner, shape.member, where, lacking) for inner in value]
    if kind == "map":
        _expect(value, (dict,), where)
        return {key: _value(inner, shape.value, where, lacking) for key, inner in value.items()}
    if kind in _TYPES:
        _expect(value, _TYPES[kind], where)
    return value


def _expect(value: object, types: tuple[type, ...], where: str) -> None:
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise NotAnAnswerError(f"{where} is {type(value).__name__}, not {types[-1].__name__}")


def _kind(body: bytes) -> str:
    """What a body looks like, for who wonders which page answered."""
    start = body.lstrip()[:1000].lower()
    if not start:
        return "empty"
    if start.startswith(b"<!doctype html") or b"<html" in start:
        return "HTML"
    return (
        "XML of something else"
        if start.startswith(b"<")
        else "JSON of something else"
        if start[:1] in b"{["
        else "text"
    )
