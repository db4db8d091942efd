"""The smallest possible streaming client: `tests/measure/client_speed.py` compares the benchmark's client with it.

A closed loop over aiohttp: read a line, take the time, parse it, count. One line of JSON per request at the end.
"""

from __future__ import annotations

import asyncio
import json
import sys
from time import perf_counter

import aiohttp


async def one(http: aiohttp.ClientSession, url: str, nonce: str, tokens: int) -> dict[str, object]:
    """Ask once; when each chunk with output came, and how many tokens there were with it."""
    body = {
        "model": "Qwen/Qwen3-32B",
        "messages": [{"role": "user", "content": f"[{nonce}] Count."}],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    chunk_s: list[float] = []
    cumulative: list[int] = []
    sent = perf_counter()
    async with http.post(f"{url}/chat/completions", json=body) as response:
        async for line in response.content:
            at_s = perf_counter() - sent
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event["choices"] and event["choices"][0]["delta"].get("content"):
                chunk_s.append(at_s)
                cumulative.append(event["usage"]["completion_tokens"])
    return {"key": nonce, "chunk_s": chunk_s, "cumulative": cumulative}


async def main(url: str, requests: int, concurrency: int, tokens: int) -> None:
    """`requests` in all, `concurrency` at a time."""
    waiting = iter(range(requests))
    done: list[dict[str, object]] = []

    async def slot(http: aiohttp.ClientSession) -> None:
        for index in waiting:
            done.append(await one(http, url, f"{index:06x}", tokens))

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await asyncio.gather(*(slot(http) for _ in range(concurrency)))
    for found in done:
        print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
