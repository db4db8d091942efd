"""A server's own counters of what it generated and what became of drafts, read around a block.

vLLM counts per engine and model since its start, so the difference over a block is the block's, as long as
nobody else asks the server meanwhile. https://docs.vllm.ai/en/latest/usage/metrics.html
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import aiohttp

from benchmark.measure.client import read_at_most
from benchmark.measure.records import (
    COUNTED_ACCEPTED,
    COUNTED_DRAFTED,
    COUNTED_DRAFTS,
    COUNTED_GENERATED,
    COUNTED_PER_POSITION,
)
from benchmark.measure.stream import StreamFault

OF_DRAFTS = (COUNTED_DRAFTS, COUNTED_DRAFTED, COUNTED_ACCEPTED)
_NAMES = (COUNTED_GENERATED, *OF_DRAFTS, COUNTED_PER_POSITION)
_LINE = re.compile(r"^(?P<name>[^\s{]+)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_POSITION = re.compile(r'(?:^|,)\s*position="([0-9]{1,3})"')
_TIMEOUT = aiohttp.ClientTimeout(total=5)
_MOST_BYTES = 16 << 20


class CounterReader:
    """Reads the counters of arms; one that has none is asked once. `report` gets a line where they cannot be read."""

    def __init__(self, http: aiohttp.ClientSession, report: Callable[[str], None]) -> None:
        self._http = http
        self._report = report
        self._without: set[str] = set()

    async def read(self, base_url: str) -> dict[str, float] | None:
        """The counters of the server at `base_url` (which ends in /v1), or None where it has none."""
        if base_url in self._without:
            return None
        try:
            async with self._http.get(
                metrics_url(base_url), timeout=_TIMEOUT, allow_redirects=False
            ) as response:
                content = await read_at_most(response, _MOST_BYTES) if response.status == 200 else b""
            text = content.decode(errors="replace")
        except (aiohttp.ClientConnectionError, ConnectionError):
            return None
        except StreamFault as fault:
            self._report(f"{metrics_url(base_url)}: {fault.name}: {fault}; its counters are left out")
            text = ""
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            text = ""
        found = parse(text)
        if found is None:
            self._without.add(base_url)
        return found


def metrics_url(base_url: str) -> str:
    """Where vLLM shows its metrics: beside /v1, not below it."""
    return base_url.removesuffix("/v1") + "/metrics"


def parse(text: str) -> dict[str, float] | None:
    """The counters in Prometheus' text format, summed over label sets; None without any."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith(_NAMES) or (match := _LINE.match(line)) is None:
            continue
        name = match["name"]
        if name == COUNTED_PER_POSITION and (position := _POSITION.search(match["labels"] or "")):
            name = f"{name}/{position[1]}"
        elif name not in (COUNTED_GENERATED, *OF_DRAFTS):
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if value >= 0 and math.isfinite(value):
            found[name] = found.get(name, 0.0) + value
    return found or None
