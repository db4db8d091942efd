"""The closed list of values that are known only at deploy time, and the one place where they are filled in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cdk8s_charts.errors import ChartError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PLACEHOLDERS = {
    "AWS_ACCOUNT": "id of the account, part of bucket names",
    "BENCHMARK_IMAGE": "image of benchmark and store, tagged with the hash of its content",
    "LMEVAL_IMAGE": "image of the quality check, tagged alike; only where an experiment has one",
}
_PATTERN = re.compile(r"\$\{([A-Z_]+)\}")


def fill(objects: Iterable[Mapping[str, Any]], values: Mapping[str, str]) -> list[dict[str, Any]]:
    """The objects with every `${NAME}` replaced.

    Raises `ChartError` for a value that is missing, that is for no placeholder, or that nobody can fill in.
    """
    for name in sorted(values.keys() - PLACEHOLDERS.keys()):
        raise ChartError(f"{name} is no placeholder; give {', '.join(sorted(PLACEHOLDERS))}")
    return [
        {key: inner if _is_text_of_user(item, key) else _fill(inner, values) for key, inner in item.items()}
        for item in objects
    ]


def _is_text_of_user(item: Mapping[str, Any], key: str) -> bool:
    """Data of a ConfigMap is the user's prompts, in which `${HOME}` means itself."""
    return item["kind"] == "ConfigMap" and key == "data"


def names_in(value: Any) -> set[str]:
    """Every placeholder that stands in `value`."""
    if isinstance(value, str):
        return set(_PATTERN.findall(value))
    if isinstance(value, dict):
        return set().union(*(names_in(inner) for inner in value.values()))
    if isinstance(value, list | tuple):
        return set().union(*(names_in(inner) for inner in value))
    return set()


def _fill(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _PATTERN.sub(lambda match: _value(match[1], values), value)
    if isinstance(value, dict):
        return {key: _fill(inner, values) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill(inner, values) for inner in value]
    return value


def _value(name: str, values: Mapping[str, str]) -> str:
    if name in values:
        return values[name]
    if name in PLACEHOLDERS:
        raise ChartError(f"placeholder {name} has no value; it is the {PLACEHOLDERS[name]}")
    raise ChartError(f"${{{name}}} stands in a rendered object and is no placeholder; write it another way")
