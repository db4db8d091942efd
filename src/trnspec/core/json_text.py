"""JSON that other programs can read: without NaN and Infinity, which Python would write."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any


def json_text(content: Any, *, indent: int | None = None) -> str:
    """Return `content` as JSON, with null for a number that is not finite; without `indent`, on one line without spaces."""
    separators = (",", ":") if indent is None else None
    try:
        return json.dumps(content, indent=indent, separators=separators, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(content), indent=indent, separators=separators, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sha256_of(value: Any) -> str:
    """Return the SHA-256 of the value's JSON, with sorted keys and without white space."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
