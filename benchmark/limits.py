"""What the values of a plan are held to, and the words in which a plan that breaks it is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv6Address
from itertools import chain
from reprlib import repr as shown
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from benchmark.objectives import METRICS, MOST_S, PERCENTILE, by_percentile

MOST_LEVELS, MOST_DEPTH = 64, 32
_MOST_PROBLEMS = 20
_MOST_URL = 2000
_HOST, _NUMBERS = re.compile(r"[A-Za-z0-9._-]+"), re.compile(r"[0-9.]+")
_BRACKETED = re.compile(r"\[[^\[\]]+\](:[0-9]+)?")
_URL = "an http(s) URL that ends in /v1"
LEFT_OUT = Field(exclude_if=lambda value: not value)
"""A plan file does not have the key where it says nothing."""
UNLESS_ONE = Field(exclude_if=lambda value: value == 1)
UNLESS_NONE = Field(exclude_if=lambda value: value is None)


def plain(value: Any) -> bool:
    """Whether JSON can say `value`: its numbers are finite, and its lists and objects are nested at most MOST_DEPTH deep."""
    level = [value]
    for _ in range(MOST_DEPTH):
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
    """Whether the user wrote it, as plain text: the nonce goes in front of the last such message."""
    return message.get("role") == "user" and isinstance(message.get("content"), str)


def asked_by_user(value: Any) -> bool:
    """Whether these are messages, at least one of them the user's with text."""
    are_messages = isinstance(value, (list, tuple)) and all(isinstance(m, dict) for m in value)
    return are_messages and plain(value) and any(map(by_user, value))


def url_problem(value: str) -> str | None:
    """Why `value` cannot be the base URL of an arm. What may be secret in it is not repeated."""
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
    known = parts.scheme in ("http", "https") and port != 0 and len(value) <= _MOST_URL
    return None if known and (":" in host or _HOST.fullmatch(host)) else f"{shown(value)}; must be {_URL}"


def _base_url(value: str) -> str:
    if problem := url_problem(value):
        raise ValueError(problem)
    return value.rstrip("/")


def held_to(check: Callable[[Any], bool]) -> AfterValidator:
    """Refuses what `check` does not hold for; the field says what it must be."""

    def held(value: Any) -> Any:
        if not check(value):
            raise ValueError
        return value

    return AfterValidator(held)


def must_be(wanted: str, **limits: Any) -> Any:
    return Field(description=wanted, **limits)


def whole(minimum: int, maximum: int) -> Any:
    return must_be(f"a whole number from {minimum} to {maximum}", ge=minimum, le=maximum)


def number(maximum: float, *, above: float | None = None, least: float = 0.0) -> Any:
    """A number from `least`, or above `above`."""
    bottom = f"from {least:g}" if above is None else f"above {above:g}"
    return must_be(f"a number {bottom} to {maximum:,.0f}", gt=above, ge=least, le=maximum)


def items(wanted: str, *, least: int = 1, most: int | None = None) -> Any:
    """JSON has lists where a frozen model has tuples."""
    return must_be(wanted, strict=False, min_length=least, max_length=most)


def levels(each: Any) -> Any:
    return items(f"a list of at most {MOST_LEVELS}, each {each.description}", least=0, most=MOST_LEVELS)


class Part(BaseModel):
    """A JSON object that knows its keys and does not guess types; null is as if the key were absent."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
    parts: ClassVar[Mapping[str, type[Part]]] = {}
    """What its own objects are, and those in its lists."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        return {key: value for key, value in content.items() if value is not None}

    def to_dict(self, *, exclude_unset: bool = False) -> dict[str, Any]:
        """As a plan file has it; `exclude_unset` leaves out what was not given."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=exclude_unset)


def in_words(part: type[Part], content: Any, error: ValidationError) -> list[str]:
    """What pydantic found in `content`, a line for each wrong field."""
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
    """All problems, of many the first."""
    more = len(problems) - _MOST_PROBLEMS
    return "; ".join([*problems[:_MOST_PROBLEMS], *([f"and {more} more"] if more > 0 else [])])


Url = Annotated[str, AfterValidator(_base_url), must_be(f"{_URL}, without spaces")]
"""Base URL up to and including `/v1`, without a trailing slash."""
FOR_ANY_OF = f"an object of seconds above 0 to {MOST_S:,.0f} for any of {', '.join(METRICS)}"
_METRIC = Annotated[str, Field(pattern=f"^({'|'.join(METRICS)})$")]
_SECONDS = Annotated[int | float, number(MOST_S, above=0)]
_BY_PERCENTILE = Mapping[Annotated[str, Field(pattern=PERCENTILE)], _SECONDS]
Slo = Mapping[_METRIC, _SECONDS]
"""What a single request has to keep."""
Objective = Mapping[_METRIC, Annotated[_BY_PERCENTILE, Field(min_length=1), BeforeValidator(by_percentile)]]
"""What an arm has to keep, as a plan has it."""
