"""The JSON of `vllm bench serve --save-result` (vLLM 0.32: vllm/benchmarks/serve.py).

vLLM counts the accepted drafts of each position over the steps of the whole benchmark, and writes nothing of it where the server did not
draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAME = "a result of vllm bench serve"
ALL = "all prompts"
"""The class of files that know no classes."""
_SHARES = "spec_decode_per_position_acceptance_rates"


def matches(content: Mapping[str, Any]) -> bool:
    return "total_output_tokens" in content and ("endpoint_type" in content or "mean_tpot_ms" in content)


def survivals(content: Mapping[str, Any]) -> dict[str, Any]:
    return {ALL: content[_SHARES]} if content.get(_SHARES) else {}
