"""The limits of the values of a plan, and the messages for a plan that breaks them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address
from itertools import chain
from reprlib import repr as shown
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

MAX_ARMS, MAX_LEVELS, MAX_IN_FLIGHT, MAX_DEPTH = 64, 64, 4096, 32
"""Arms of a plan, its loads, concurrent requests of a load, and lists or objects in each other."""
MIN_S, MAX_S = 1e-6, 1_000_000
"""The bounds of a limit of an SLO."""
_LIMITED = ("ttft_s", "tpot_s", "e2e_s")
"""What an SLO may limit."""
_MAX_PROBLEMS = 20
_MAX_URL_CHARS = 2000
_HOST, _NUMBERS = re.compile(r"[A-Za-z0-9._-]+"), re.compile(r"[0-9.]+")
_BRACKETED = re.compile(r"\[[^\[\]]+\](:[0-9]+)?")
_URL = "an http(s) URL that ends in /v1"
OMIT_IF_EMPTY = Field(exclude_if=lambda value: not value)
"""A plan file omits the key if the value is empty."""


def plain(value: Any) -> bool:
    """Whether JSON can say `value`: its numbers are finite, and its lists and objects are nested at most MAX_DEPTH deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        parts = (
            v.values() if isinstance(v, dict) else v if isinstance(v, (list, tuple)) else () for v in level
        )
        level = list(chain.from_iterable(parts))
        if not all(math.isfinite(v) for v in level if isinstance(v, float)):
            return False
        if not level:
            return True
    return False


def by_user(message: Mapping[str, Any]) -> bool:
    """Whether the message is plain text of the user. The nonce is put in front of the last such message."""
    return message.get("role") == "user" and isinstance(message.get("content"), str)


def asked_by_user(value: Any) -> bool:
    """Whether `value` is a list of messages with at least one text message of the user."""
    are_messages = isinstance(value, (list, tuple)) and all(isinstance(m, dict) for m in value)
    return are_messages and plain(value) and any(map(by_user, value))


def texts_asked(
    prompt: str | None, messages: Iterable[Mapping[str, Any]], request: Mapping[str, Any]
) -> tuple[str, ...]:
    """The texts of a prompt; calls of tools in its messages, and its own tools, are JSON."""
    texts = [prompt] if prompt is not None else []
    for message in messages:
        texts += [text for text in (message.get("content"),) if isinstance(text, str)]
        texts += [json.dumps(message["tool_calls"])] if message.get("tool_calls") else []
    return (*texts, json.dumps(request["tools"])) if request.get("tools") else tuple(texts)


def url_problem(value: str) -> str | None:
    """Why `value` cannot be the base URL of an arm, without parts that may be secret; None if it can."""
    if not value.isprintable() or any(map(str.isspace, value)):
        return f"{shown(value)}; must be {_URL}, without spaces"
    if "@" in value:
        return "holds a user name or a password, which results would keep; put the API key into BENCHMARK_API_KEY"
    if "?" in value or "#" in value:
        return f"has a query or a fragment; must be {_URL}"
    try:
        parts = urlsplit(value)
        port, host = parts.port, parts.hostname or ""
        if "[" in parts.netloc:
            host = str(IPv6Address(host)) if _BRACKETED.fullmatch(parts.netloc) else ""
        else:
            host = host.encode("idna").decode()
        if _NUMBERS.fullmatch(host):
            host = str(IPv4Address(host))
    except ValueError as error:  # an encoding error is one
        return f"{shown(value)} ({error}); must be {_URL}"
    known = parts.scheme in ("http", "https") and port != 0 and len(value) <= _MAX_URL_CHARS
    return None if known and (":" in host or _HOST.fullmatch(host)) else f"{shown(value)}; must be {_URL}"


def _base_url(value: str) -> str:
    if problem := url_problem(value):
        raise ValueError(problem)
    return value.rstrip("/")


def held_to(check: Callable[[Any], bool]) -> AfterValidator:
    """A validator that refuses values for which `check` is false. The description of the field says what is required."""

    def held(value: Any) -> Any:
        if not check(value):
            raise ValueError
        return value

    return AfterValidator(held)


def must_be(wanted: str, **limits: Any) -> Any:
    return Field(description=wanted, **limits)


def whole(minimum: int, maximum: int) -> Any:
    return must_be(f"a whole number from {minimum} to {maximum}", ge=minimum, le=maximum)


def number(maximum: float, *, above: float | None = None, minimum: float = 0.0) -> Any:
    """A number from `minimum`, or above `above`."""
    bottom = f"from {minimum:g}" if above is None else f"above {above:g}"
    return must_be(f"a number {bottom} to {maximum:,.0f}", gt=above, ge=minimum, le=maximum)


def items(wanted: str, *, minimum: int = 1, maximum: int | None = None) -> Any:
    """A tuple, which JSON has as a list."""
    return must_be(wanted, strict=False, min_length=minimum, max_length=maximum)


def levels(each: Any) -> Any:
    return items(f"a list of at most {MAX_LEVELS}, each {each.description}", minimum=0, maximum=MAX_LEVELS)


class Part(BaseModel):
    """A JSON object with fixed keys and strict types. A null value counts as a missing key."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", defer_build=True)
    parts: ClassVar[Mapping[str, type[Part]]] = {}
    """The classes of the objects inside this one, by key; for a list, the class of its entries."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        return {key: value for key, value in content.items() if value is not None}

    def to_dict(self, *, exclude_unset: bool = False) -> dict[str, Any]:
        """The JSON content for a plan file; `exclude_unset` omits keys that were not given."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=exclude_unset)


def in_words(part: type[Part], content: Any, error: ValidationError) -> list[str]:
    """The errors that pydantic reports for `content`: one line for each wrong field."""
    lines: dict[str, str] = {}
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        where, wrong = _place(part, content, detail["loc"], detail["msg"].removeprefix("Value error, "))
        if not (detail["type"] == "too_short" and where in content and content[where]):
            lines.setdefault(where, f"{where}: {wrong}")  # wrong entries make a list seem too short
    return sorted(lines.values(), key=lambda line: ": unknown; " not in line)


def _place(part: type[Part], content: Any, location: tuple[int | str, ...], said: str) -> tuple[str, str]:
    """The path of a wrong field, and what is wrong with it."""
    fields = {field.alias or name: field for name, field in part.model_fields.items()}
    name, inside = str(location[0]), location[1:]
    if name not in fields:
        known = name if name.isidentifier() and len(name) < 60 else shown(name)
        return known, f"unknown; known are {', '.join(fields)}"
    value, wanted = content.get(name), fields[name].description
    if inside and name in part.parts:
        where = name
        if isinstance(number := inside[0], int):
            where, value, inside = f"{name}[{number}]", value[number], inside[1:]
            if not isinstance(value, dict):
                return where, f"{shown(value)} is not a JSON object"
        inner, wrong = _place(part.parts[name], value, inside, said)
        return f"{where}.{inner}", wrong
    if name == "url" and isinstance(value, str):
        return name, said
    return name, f"{'missing' if value is None else shown(value)}; must be {wanted}"


def one_line(problems: list[str]) -> str:
    """The problems in one line, at most the first 20."""
    more = len(problems) - _MAX_PROBLEMS
    return "; ".join([*problems[:_MAX_PROBLEMS], *([f"and {more} more"] if more > 0 else [])])


Url = Annotated[str, AfterValidator(_base_url), must_be(f"{_URL}, without spaces")]
"""Base URL up to and including `/v1`, without a trailing slash."""
FOR_ANY_OF = f"an object of seconds above 0 to {MAX_S:,.0f} for any of {', '.join(_LIMITED)}"
_METRIC = Annotated[str, Field(pattern=f"^({'|'.join(_LIMITED)})$")]
_SECONDS = Annotated[int | float, number(MAX_S, above=0)]
Slo = Mapping[_METRIC, _SECONDS]
"""The limits for a single request."""
