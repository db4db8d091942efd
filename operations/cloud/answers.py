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


def checked(answer: Mapping[str, Any], lacking: Callable[[str], Exception]) -> Any:
    """The answer of an operation. Raises `lacking`'s error for one that AWS did not give."""
    about = answer.get("ResponseMetadata", {})
    if not about.get("RequestId") and "HTTPHeaders" in about:  # which botocore's Stubber does not make up
        raise lacking("request id")
    return _answer(answer, lacking)


def _answer(value: Any, lacking: Callable[[str], Exception]) -> Any:
    if isinstance(value, dict):
        return Answer({key: _answer(inner, lacking) for key, inner in value.items()}, lacking)
    return [_answer(inner, lacking) for inner in value] if isinstance(value, list) else value
