"""What the values of a plan are held to, and the words in which a plan that breaks it is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

MOST_LEVELS, MOST_DEPTH = 64, 32
LEFT_OUT = Field(exclude_if=lambda value: not value)
"""A plan file does not have the key where it says nothing."""
UNLESS_NONE = Field(exclude_if=lambda value: value is None)


def cell_requests(requests: int) -> int:
    """About how many a cell of a search has of each class and arm, in a plan with so many: a quarter, or the few that there are."""
    return max(-(-requests // 4), min(requests, 8))


def shallow(value: Any) -> bool:
    """Whether lists and objects in `value` are nested at most MOST_DEPTH deep."""
    level = [value]
    for _ in range(MOST_DEPTH):
        parts = (
            v.values() if isinstance(v, dict) else v if isinstance(v, (list, tuple)) else () for v in level
        )
        level = list(chain.from_iterable(parts))
        if not level:
            return True
    return False


def by_user(message: Mapping[str, Any]) -> bool:
    """Whether the user wrote it, as plain text: the nonce goes in front of the last such message."""
    return message.get("role") == "user" and isinstance(message.get("content"), str)


def asked_by_user(value: Any) -> bool:
    """Messages, at least one of them the user's with text."""
    if not (isinstance(value, (list, tuple)) and all(isinstance(m, dict) for m in value) and shallow(value)):
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
