"""What a server may say about tokens: counts that cannot be true are refused here, before anything is computed from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MOST_TOKENS = 1 << 24
"""Of a prompt or an answer. No model takes as many."""
_OVERSHOOT_TOKENS = 64
"""Drafts of the last step that the end of the answer cut off: they are accepted and not in the answer."""
_MOST_ENTRIES = 1024
_MOST_CHARS = 200


class ImplausibleCount(ValueError):
    """A count that cannot be true."""


def tokens_in(said: Mapping[str, Any], key: str, *, most: int = MOST_TOKENS) -> int | None:
    """The count of tokens under `key`, from 0 to `most`; None where there is none. Raises ImplausibleCount."""
    value = said.get(key)
    if value is None or (type(value) is int and 0 <= value <= most):
        return value
    raise ImplausibleCount(f"{key} is {_shown(value)}; must be a whole number from 0 to {most}")


def statistics_of(said: Mapping[str, Any], *, most_tokens: int = MOST_TOKENS) -> dict[str, Any]:
    """Statistics of speculation without what is nested or long. Raises ImplausibleCount."""
    most = most_tokens + _OVERSHOOT_TOKENS
    for key in ("num_spec_steps", "num_accepted_draft_tokens"):
        tokens_in(said, key, most=most)
    histogram = said.get("acceptance_histogram")
    if histogram is not None and not _histogram(histogram, most):
        raise ImplausibleCount(
            f"acceptance_histogram is {_shown(histogram)}; must be a list of at most {_MOST_ENTRIES} counts"
        )
    return {key: value for key, value in said.items() if len(key) <= _MOST_CHARS and _plain(value)}


def _histogram(value: Any, most: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _MOST_ENTRIES
        and all(type(n) is int and 0 <= n <= most for n in value)
    )


def _plain(value: Any) -> bool:
    """Whether a value is one of JSON's simple ones, of usual size, or a list of counts."""
    if isinstance(value, str):
        return len(value) <= _MOST_CHARS
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return abs(value) < 1 << 63
    return value is None or _histogram(value, MOST_TOKENS)


def _shown(value: Any) -> str:
    """A value in a message. Python refuses to write out the longest whole numbers."""
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return f"a number of {value.bit_length()} bits"
    return repr(value)[:40] if isinstance(value, (int, float, str)) else f"of type {type(value).__name__}"
