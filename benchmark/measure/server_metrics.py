"""What a server says about itself at `/metrics`: what it counts, and when it was started.

vLLM counts per engine and model since its start, so the difference over a block is the block's, as long as nobody else asks
the server meanwhile. https://docs.vllm.ai/en/latest/usage/metrics.html
"""

from __future__ import annotations

import math
import re

from benchmark.measure.records import (
    COUNTED_ACCEPTED,
    COUNTED_DRAFTED,
    COUNTED_DRAFTS,
    COUNTED_GENERATED,
    COUNTED_PER_POSITION,
    LAST_MOMENT,
    MOST_COUNTED,
)

OF_DRAFTS = (COUNTED_DRAFTS, COUNTED_DRAFTED, COUNTED_ACCEPTED)
STARTED = "process_start_time_seconds"
"""Of the Prometheus client's process collector, seconds since 1970."""
_COUNTED = (COUNTED_GENERATED, *OF_DRAFTS, COUNTED_PER_POSITION)
_LINE = re.compile(r"^(?P<name>[^\s{]+)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_POSITION = re.compile(r'(?:^|,)\s*position="([0-9]{1,3})"')


def metrics_url(base_url: str) -> str:
    """Where vLLM shows its metrics: beside /v1, not below it."""
    return base_url.removesuffix("/v1") + "/metrics"


def started_in(text: str) -> float | None:
    """When the server's process was started, where it says so."""
    found = (_LINE.match(line) for line in text.splitlines() if line.startswith(STARTED))
    said = next((_number(match["value"]) for match in found if match), None)
    return said if said is not None and said <= LAST_MOMENT else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value >= 0 and math.isfinite(value) else None


def counters_in(text: str) -> dict[str, float] | None:
    """The counters in Prometheus' text format, summed over label sets; None without any."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith(_COUNTED) or (match := _LINE.match(line)) is None:
            continue
        name = match["name"]
        if name == COUNTED_PER_POSITION and (position := _POSITION.search(match["labels"] or "")):
            name = f"{name}/{position[1]}"
        elif name not in (COUNTED_GENERATED, *OF_DRAFTS):
            continue
        if (value := _number(match["value"])) is not None:
            found[name] = min(found.get(name, 0.0) + value, MOST_COUNTED)
    return found or None
