"""What the values of a plan are held to, and the words in which a plan that breaks it is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from itertools import chain
from reprlib import repr as shown
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from benchmark.addresses import url_problem
from benchmark.objectives import METRICS, MOST_S, PERCENTILE, by_percentile

MOST_LEVELS, MOST_DEPTH = 64, 32
_MOST_PROBLEMS = 20
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
    """Messages, at least one of them the user's with text."""
    if not (isinstance(value, (list, tuple)) and all(isinstance(m, dict) for m in value) and plain(value)):
        return False
    return any(map(by_user, value))


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
    """JSON has lists where a frozen model has tuples. One wrong entry says as much as a million."""
    return must_be(wanted, strict=False, min_length=least, max_length=most, fail_fast=True)


def levels(each: Any) -> Any:
    return items(f"a list of at most {MOST_LEVELS}, each {each.description}", least=0, most=MOST_LEVELS)


class Part(BaseModel):
    """A JSON object that knows its keys and does not guess types; null is as if the key were absent."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {key: value for key, value in content.items() if value is not None or key not in known}

    def to_dict(self, *, exclude_unset: bool = False) -> dict[str, Any]:
        """As a plan file has it; `exclude_unset` leaves out what was not given."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=exclude_unset)


def in_words(
    where: str,
    part: type[Part],
    content: Mapping[str, Any],
    error: ValidationError,
    with_own_lines: Collection[str],
) -> list[str]:
    """What pydantic found, a line for each wrong field of `part`, unknown keys first; none for what is inside the keys `with_own_lines`."""
    fields = {field.alias or name: field for name, field in part.model_fields.items()}
    wrong: dict[str, None] = {}
    for found in error.errors(include_url=False, include_input=False, include_context=False):
        key, *inside = found["loc"]
        # Wrong entries of a part make a list seem too short.
        if not (key in with_own_lines and inside) and not (
            found["type"] == "too_short" and content[str(key)]
        ):
            wrong[str(key)] = None
    known = ", ".join(fields)
    lines = [f"{where}{_key(key)}: unknown; known are {known}" for key in wrong if key not in fields]
    for key in filter(wrong.__contains__, fields):
        if key == "url":
            lines.append(f"{where}{key}: {url_problem(content.get(key))}")
        else:
            value = shown(content[key]) if key in content else "missing"
            lines.append(f"{where}{key}: {value}; must be {fields[key].description}")
    return lines


def one_line(problems: list[str]) -> str:
    """All problems, of many the first."""
    more = len(problems) - _MOST_PROBLEMS
    return "; ".join([*problems[:_MOST_PROBLEMS], *([f"and {more} more"] if more > 0 else [])])


def _key(key: str) -> str:
    return key if key.isidentifier() and len(key) < 60 else shown(key)


FOR_ANY_OF = f"an object of seconds above 0 to {MOST_S:,.0f} for any of {', '.join(METRICS)}"
_METRIC = Annotated[str, Field(pattern=f"^({'|'.join(METRICS)})$")]
_SECONDS = Annotated[int | float, number(MOST_S, above=0)]
_BY_PERCENTILE = Mapping[Annotated[str, Field(pattern=PERCENTILE)], _SECONDS]
Slo = Mapping[_METRIC, _SECONDS]
"""What a single request has to keep."""
Objective = Mapping[_METRIC, Annotated[_BY_PERCENTILE, Field(min_length=1), BeforeValidator(by_percentile)]]
"""What an arm has to keep, as a plan has it."""
