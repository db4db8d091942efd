"""A server's own counters of speculation, read around a block: the second best source of acceptance.

vLLM counts per engine and model since its start, so the difference over a block is the block's, as long as
nobody else asks the server meanwhile. https://docs.vllm.ai/en/latest/usage/metrics.html
"""

from __future__ import annotations

import re

import aiohttp

PREFIX = "vllm:spec_decode_num_"
NAMES = tuple(f"{PREFIX}{of}_total" for of in ("drafts", "draft_tokens", "accepted_tokens"))
PER_POSITION = f"{PREFIX}accepted_tokens_per_pos_total"
"""Its key ends in the position within the draft, from 0: `.../0`."""
_LINE = re.compile(r"^(?P<name>[^\s{]+)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_POSITION = re.compile(r'(?:^|,)\s*position="(\d+)"')
_TIMEOUT = aiohttp.ClientTimeout(total=5)


class CounterReader:
    """Reads the counters of arms; one that has none is asked once."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self._without: set[str] = set()

    async def read(self, base_url: str) -> dict[str, float] | None:
        """The counters of the server at `base_url` (which ends in /v1), or None where it has none."""
        if base_url in self._without:
            return None
        try:
            async with self._http.get(metrics_url(base_url), timeout=_TIMEOUT) as response:
                text = await response.text(errors="replace") if response.status == 200 else ""
        except (aiohttp.ClientConnectionError, ConnectionError):
            return None
        except (aiohttp.ClientError, TimeoutError, OSError):
            text = ""
        found = parse(text)
        if found is None:
            self._without.add(base_url)
        return found


def metrics_url(base_url: str) -> str:
    """Where vLLM shows its metrics: beside /v1, not below it."""
    return base_url.removesuffix("/v1") + "/metrics"


def parse(text: str) -> dict[str, float] | None:
    """The counters of speculation in Prometheus' text format, summed over label sets; None without any."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith(PREFIX) or (match := _LINE.match(line)) is None:
            continue
        name = match["name"]
        if name == PER_POSITION and (position := _POSITION.search(match["labels"] or "")):
            name = f"{name}/{position[1]}"
        elif name not in NAMES:
            continue
        try:
            found[name] = found.get(name, 0.0) + float(match["value"])
        except ValueError:
            continue
    return found or None
