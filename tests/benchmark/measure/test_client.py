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


@pytest.mark.parametrize(("idle_s", "connections"), [(1.0, 1), (4.5, 2)])
def test_a_connection_that_a_server_may_be_closing_is_not_used_again(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, idle_s: float, connections: int
) -> None:
    """uvicorn closes connections that were idle for 5 s; a request into one of them would count as its failure."""

    async def twice() -> None:
        async with session(5.0) as http:
            assert isinstance(await ask(http, endpoint.url("early-eos") + "/chat/completions", BODY), Output)
            monkeypatch.setattr("aiohttp.connector.monotonic", lambda: monotonic() + idle_s)
            assert isinstance(await ask(http, endpoint.url("early-eos") + "/chat/completions", BODY), Output)

    asyncio.run(twice())
    assert len({seen.peer for seen in endpoint.seen}) == connections


def test_a_connection_whose_answer_ends_a_moment_after_done_is_used_again(endpoint: Endpoint) -> None:
    async def ten_times() -> None:
        async with session(5.0) as http:
            for _ in range(10):
                assert isinstance(
                    await ask(http, endpoint.url("late-end") + "/chat/completions", BODY), Output
                )

    asyncio.run(ten_times())
    assert len({seen.peer for seen in endpoint.seen}) <= 5, "one, but on a machine that is busy elsewhere"
