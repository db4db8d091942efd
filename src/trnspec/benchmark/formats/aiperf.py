"""aiperf's profile_export_aiperf.json (https://docs.nvidia.com/aiperf/reference/json-export-schema).

The histogram is of all steps: the number of accepted drafts, and how many steps accepted so many. aiperf has it where the server sends
statistics with each request (vLLM: `--per-request-spec-decode-metrics summary`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnspec.benchmark.formats.vllm_bench import ALL

NAME = "an export of aiperf"
_HISTOGRAM = "pooled_spec_decode_acceptance_histogram"


def matches(content: Mapping[str, Any]) -> bool:
    return "aiperf_version" in content or _HISTOGRAM in content or "input_config" in content


def survivals(content: Mapping[str, Any]) -> dict[str, Any]:
    histogram = content.get(_HISTOGRAM)
    try:
        steps = {int(accepted): int(number) for accepted, number in (histogram or {}).items()}
    except (ValueError, TypeError, AttributeError):
        return {}
    total, most = sum(steps.values()), max(steps, default=0)
    if total <= 0 or min(*steps, *steps.values(), 0) < 0 or most > 1000:
        return {}
    return {
        ALL: [sum(n for j, n in steps.items() if j >= place) / total for place in range(1, most + 1)] or [0.0]
    }
