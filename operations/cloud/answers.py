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
    "list": (list,),
    "long": (int,),
    "map": (dict,),
    "string": (str,),
    "structure": (dict,),
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
    protocol = operation_model.service_model.resolved_protocol
    members = _in_body(operation_model.output_shape)
    if protocol in ("json", "rest-json"):
        ours = not (body.strip() or members) or _is_json(body, response_dict["headers"], members)
    elif protocol in ("query", "ec2"):
        root = _ROOT.match(body)
        ours = root is not None and root[1].endswith(b"Response")
    else:
        fits = _kind(body) not in ("HTML", "text") and bool(members) == bool(body.strip())
        ours = fits or protocol != "rest-xml"
    if not ours:
        raise NotAnAnswerError(f"its body is {_kind(body)}")


def _is_json(body: bytes, headers: Mapping[str, str], members: set[str]) -> bool:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and (not found or bool(members) or _has_request_id(headers))


def checked(
    answer: Mapping[str, Any], operation_model: Any, lacking: Callable[[str], Exception]
) -> dict[str, Any]:
    """The answer with its members checked. Raises NotAnAnswerError."""
    shape, name = operation_model.output_shape, operation_model.name
    members = _in_body(shape)
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    if members and not members & answer.keys() and not _has_request_id(headers):
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


def _has_request_id(headers: Mapping[str, str]) -> bool:
    return any(name in headers for name in _REQUEST_ID)


def _value(value: Any, shape: Any, where: str, lacking: Callable[[str], Exception]) -> Any:
    kind = shape.type_name
    types = _TYPES.get(kind)
    if types and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
        raise NotAnAnswerError(f"{where} is {type(value).__name__}, not {types[-1].__name__}")
    if kind == "structure":
        known = shape.members
        inner = {
            key: _value(one, known[key], f"{where}.{key}", lacking) if key in known else one
            for key, one in value.items()
        }
        return Answer(inner, lacking)
    if kind == "list":
        return [_value(one, shape.member, where, lacking) for one in value]
    if kind == "map":
        return {key: _value(one, shape.value, where, lacking) for key, one in value.items()}
    return value


def _kind(body: bytes) -> str:
    """What a body looks like, so that a reader sees which page answered."""
    start = body.lstrip()[:1000].lower()
    if not start:
        return "empty"
    if start.startswith(b"<!doctype html") or b"<html" in start:
        return "HTML"
    if start.startswith(b"<"):
        return "XML of something else"
    return "JSON of something else" if start[:1] in b"{[" else "text"
