"""Edits of an experiment file's data, to be put together."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

Edit = Callable[[dict[str, Any]], object]


def put(path: str, value: Any) -> Edit:
    """An edit that puts `value` at a dotted path; digits index lists."""

    def edit(data: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        inner: Any = data
        for step in parents:
            inner = inner[int(step)] if step.isdigit() else inner.setdefault(step, {})
        inner[int(last) if last.isdigit() else last] = copy.deepcopy(value)

    return edit


def remove(path: str) -> Edit:
    """An edit that takes away what stands at a dotted path."""

    def edit(data: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        inner: Any = data
        for step in parents:
            inner = inner[int(step)] if step.isdigit() else inner[step]
        del inner[int(last) if last.isdigit() else last]

    return edit


def both(*edits: Edit) -> Edit:
    """All of them, in order."""
    return lambda data: [edit(data) for edit in edits]
