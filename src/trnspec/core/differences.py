"""Compare two pieces of plain data, value by value."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()
"""Value of a path that exists on one side only."""


@dataclass(frozen=True)
class Difference:
    """One path whose values differ."""

    path: str
    """`spec.containers[vllm].command.--port`, `args[2]`."""
    old: Any
    new: Any


def differences(
    old: Any,
    new: Any,
    path: str = "",
    *,
    read: Callable[[str, Any], Any] | None = None,
    same: Callable[[Any, Any], bool] = operator.eq,
) -> Iterator[Difference]:
    """Yield every leaf that differs.

    Lists of named items are compared by name, or as a whole if their order differs; other lists are compared by index.
    `read` returns the meaning of a value at a path (an argv as options). Values with the same meaning and different text
    differ as a whole. `same` compares leaves.
    """
    one, other = (old, new) if read is None else (read(path, old), read(path, new))
    if read is not None and one == other and old != new:
        yield Difference(path, old, new)
    elif (inner := _inner(one, other, path)) is not None:
        for place, left, right in inner:
            yield from differences(left, right, place, read=read, same=same)
    elif not same(one, other):
        yield Difference(path, old, new)


def _inner(one: Any, other: Any, path: str) -> list[tuple[str, Any, Any]] | None:
    """Return the inner values to compare, as path, left and right; `None` for leaves."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = sorted(one.keys() | other.keys())
        return [
            (f"{path}.{key}".removeprefix("."), one.get(key, ABSENT), other.get(key, ABSENT)) for key in keys
        ]
    if not (isinstance(one, list) and isinstance(other, list)):
        return None
    if (before := _named(one)) is not None and (after := _named(other)) is not None:
        names = [[name for name in side if name in before and name in after] for side in (before, after)]
        if names[0] != names[1]:
            return None
        every = dict.fromkeys((*before, *after))
        return [(f"{path}[{name}]", before.get(name, ABSENT), after.get(name, ABSENT)) for name in every]
    pairs = itertools.zip_longest(one, other, fillvalue=ABSENT)
    return [(f"{path}[{place}]", *pair) for place, pair in enumerate(pairs)]


def _named(items: list[Any]) -> dict[str, Any] | None:
    """Return the items by name if every item has a unique name, as containers, variables and most volumes do."""
    by_name = {
        item["name"]: item
        for item in items
        if isinstance(item, Mapping) and isinstance(item.get("name"), str)
    }
    return by_name if len(by_name) == len(items) else None
