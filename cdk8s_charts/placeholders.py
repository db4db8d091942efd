"""The closed list of values that are known only at deploy time, and the one place where they are filled in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cdk8s_charts.errors import ChartError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PLACEHOLDERS = {
    "AWS_ACCOUNT": "id of the account, part of bucket names",
    "BENCHMARK_IMAGE": "image of the benchmark, tagged with the hash of its content",
}
_PATTERN = re.compile(r"\$\{([A-Z_]+)\}")


def fill(objects: Iterable[Mapping[str, Any]], values: Mapping[str, str]) -> list[dict[str, Any]]:
    """The objects with every `${NAME}` replaced.

    Raises `ChartError` for a value that is missing or that no placeholder asks for.
    """
    for name in values.keys() ^ PLACEHOLDERS.keys():
        what = "has no value" if name in PLACEHOLDERS else "is no placeholder"
        raise ChartError(f"placeholder {name} {what}; give exactly {', '.join(sorted(PLACEHOLDERS))}")
    return [_fill(item, values) for item in objects]


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
        return _PATTERN.sub(lambda match: values[match[1]], value)
    if isinstance(value, dict):
        return {key: _fill(inner, values) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill(inner, values) for inner in value]
    return value
