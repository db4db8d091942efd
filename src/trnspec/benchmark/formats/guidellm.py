"""guidellm's benchmarks.json (https://github.com/vllm-project/guidellm), which has times and no acceptance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAME = "a report of guidellm"


def matches(content: Mapping[str, Any]) -> bool:
    return isinstance(content.get("benchmarks"), list) and ("metadata" in content or "args" in content)


def survivals(content: Mapping[str, Any]) -> dict[str, Any]:
    return {}
