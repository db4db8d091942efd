from __future__ import annotations

import asyncio
import json
import socket
from time import monotonic, perf_counter

import pytest

from benchmark.measure.client import API_KEYS, Failure, ask, session
from benchmark.measure.stream import Output
from tests.benchmark.endpoint import MODEL, Endpoint

BODY = json.dumps({"model": MODEL, "messages": [], "max_tokens": 40}).encode()


def answer_of(url: str, timeout_s: float = 5.0) -> Output | Failure:
    async def once() -> Output | Failure:
        async with session(timeout_s) as http:
            return await ask(http, url + "/chat/completions", BODY)

    return asyncio.run(once())


@pytest.mark.parametrize(
    ("fault", "name", "told"),
    [
        ("401", "http_401", "told to answer 401"),
        ("404", "http_404", "told to answer 404"),
        ("429", "http_429", "Retry-After: 7"),
        ("500", "http_500", "told to answer 500"),
        ("reset", "reset", "2 chunks with text had come"),
        ("no-done", "no_done", "after 2 chunks"),
        ("malformed", "malformed", "{not json"),
        ("error-event", "stream_error", "engine died"),
        ("not-a-stream", "malformed", "application/json"),
        ("zero-tokens", "zero_tokens", "no chunk carried output"),
        ("only-done", "zero_tokens", "no chunk carried output"),
    ],
)
def test_a_fault_ends_as_a_named_failure(endpoint: Endpoint, fault: str, name: str, told: str) -> None:
    found = answer_of(endpoint.url(fault))
    assert isinstance(found, Failure)
    assert found.name == name
    assert told in found.message
    assert "\n" not in found.message
    assert len(endpoint.seen) == 1, "a failed request is not sent again"


@pytest.mark.parametrize(("fault", "came"), [("hang-before", "0 chunks"), ("hang-after", "1 chunks")])
def test_a_hang_ends_as_a_timeout(endpoint: Endpoint, fault: str, came: str) -> None:
    began = perf_counter()
    found = answer_of(endpoint.url(fault), timeout_s=0.3)
    assert isinstance(found, Failure)
    assert found.name == "timeout"
    assert came in found.message
    assert perf_counter() - began < 5


def test_a_closed_port_is_named_connect_refused() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        found = answer_of(f"http://127.0.0.1:{closed.getsockname()[1]}/v1")
    assert isinstance(found, Failure)
    assert found.name == "connect_refused"


@pytest.mark.parametrize(
    ("stream", "text", "source"),
    [
        ("no-usage", "word word ", "chunks"),
        ("crlf", "word word ", "final-usage"),
        ("split-utf8", "grün 🙂", "chunks"),
        ("reasoning", "hm word ", "final-usage"),
        ("megabyte", "x" * 1_000_000, "chunks"),
        ("lingering", "word ", "chunks"),
    ],
)
def test_an_unusual_stream_is_read_in_full(endpoint: Endpoint, stream: str, text: str, source: str) -> None:
    found = answer_of(endpoint.url(stream))
    assert isinstance(found, Output)
    assert (found.text, found.token_source) == (text, source)


@pytest.mark.parametrize(
    ("arm", "tokens_per_chunk"), [("steady", (1,) * 40), ("spec", (1, *(2, 4) * 6, 2, 1))]
)
def test_a_known_schedule_is_measured_as_it_was_sent(
    endpoint: Endpoint, arm: str, tokens_per_chunk: tuple[int, ...]
) -> None:
    found = answer_of(endpoint.url(arm))
    assert isinstance(found, Output)
    assert (found.chunk_tokens, found.completion_tokens) == (tokens_per_chunk, 40)
    sent = endpoint.seen[0].sent
    assert len(found.chunk_s) == len(sent)
    span, true_span = found.chunk_s[-1] - found.chunk_s[0], sent[-1] - sent[0]
    assert span == pytest.approx(true_span, rel=0.1, abs=0.02)
    assert found.chunk_s[0] > sent[0] - 0.001, "nothing is received before it is sent"


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        ({"BENCHMARK_API_KEY": "ours", "OPENAI_API_KEY": "usual"}, "Bearer ours"),
        ({"OPENAI_API_KEY": " usual\n"}, "Bearer usual"),
        ({"BENCHMARK_API_KEY": "", "OPENAI_API_KEY": "usual"}, "Bearer usual"),
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


def test_a_401_names_the_variables_that_a_key_is_taken_from(endpoint: Endpoint) -> None:
    found = answer_of(endpoint.url("401"))
    assert isinstance(found, Failure)
    assert all(name in found.message for name in ("BENCHMARK_API_KEY", "OPENAI_API_KEY"))


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
