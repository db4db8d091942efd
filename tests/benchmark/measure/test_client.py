from __future__ import annotations

import asyncio
import json
from time import monotonic

import pytest

from benchmark.measure.client import API_KEYS, ask, session
from benchmark.measure.stream import Output
from tests.benchmark.endpoint import MODEL, Endpoint

BODY = json.dumps({"model": MODEL, "messages": [], "max_tokens": 40}).encode()


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        ({"BENCHMARK_API_KEY": "ours", "OPENAI_API_KEY": "usual"}, "Bearer ours"),
        ({"BENCHMARK_API_KEY": "", "OPENAI_API_KEY": " usual\n"}, "Bearer usual"),
        ({}, None),
    ],
)
def test_the_first_key_that_is_set_is_sent(
    monkeypatch: pytest.MonkeyPatch, keys: dict[str, str], sent: str | None
) -> None:
    for name in API_KEYS:
        monkeypatch.delenv(name, raising=False)
    for name, key in keys.items():
        monkeypatch.setenv(name, key)

    async def headers() -> str | None:
        async with session(5.0) as http:
            return http.headers.get("Authorization")

    assert asyncio.run(headers()) == sent


@pytest.mark.parametrize(
    ("path", "idle_s", "requests", "connections"),
    [("early-eos", 1.0, 2, 1), ("early-eos", 4.5, 2, 2), ("late-end", 0.0, 10, 5)],
    ids=["quick", "uvicorn closes connections that were idle for 5 s", "an answer ends a moment after DONE"],
)
def test_a_connection_is_used_again_unless_a_server_may_be_closing_it(
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    idle_s: float,
    requests: int,
    connections: int,
) -> None:
    """A request into a connection that is being closed would count as the server's failure."""

    async def several() -> None:
        async with session(5.0) as http:
            for number in range(requests):
                monkeypatch.setattr("aiohttp.connector.monotonic", lambda n=number: monotonic() + idle_s * n)
                answer = await ask(http, endpoint.url(path) + "/chat/completions", BODY)
                assert isinstance(answer, Output)

    asyncio.run(several())
    used = len({seen.peer for seen in endpoint.seen})
    assert used == connections or (path == "late-end" and used <= connections), "1, but on a busy machine"
