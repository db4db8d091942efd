"""Answers of AWS and of the cluster, held against what such an answer looks like.

A proxy, a hotel's login page or a broken endpoint answer with status 200 as well. Whoever took that for an answer would
believe that nothing is deployed, that no run is under way, or that nodes were set to 0. botocore makes an answer without a
member of a page; but AWS gives every request an id, which botocore finds in the headers or in the body of its answer
(https://github.com/boto/botocore/blob/develop/botocore/parsers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Answer(dict[str, Any]):
    """A mapping of an answer; a member that it lacks is `lacking`'s error instead of a KeyError."""

    def __init__(self, content: Mapping[str, Any], lacking: Callable[[str], Exception]) -> None:
        super().__init__(content)
        self._lacking = lacking

    def __missing__(self, key: str) -> Any:
        raise self._lacking(key)


def whole(value: Any, lacking: Callable[[str], Exception]) -> Any:
    """An answer whose mappings know what they lack. Nulls go: Kubernetes takes them for absent."""
    if isinstance(value, dict):
        kept = {key: whole(inner, lacking) for key, inner in value.items() if inner is not None}
        return Answer(kept, lacking)
    return [whole(inner, lacking) for inner in value] if isinstance(value, list) else value
