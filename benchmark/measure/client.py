"""One streamed request over HTTP: an `Output`, or a `Failure` with a name. Nothing is retried.

The clock is read as soon as a packet is there, before anything in it is parsed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import perf_counter

import aiohttp
from aiohttp import http_exceptions

from benchmark.measure.sse import SseParser
from benchmark.measure.stream import Output, StreamFault, StreamTally

_IDLE_CONNECTION_S = 2.0
"""Connections idle for longer are dropped: servers close theirs after some seconds (uvicorn after 5), and a
request sent into a closing connection would be counted as the server's failure."""
_DRAIN_S = 0.1
"""How long the end of the body may follow [DONE] for its connection to be used again."""
_HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream"}


API_KEY = "BENCHMARK_API_KEY"
"""Variable with the key of the arms, where they want one. A name of its own: a key for somebody else's API must not be
sent to them because it happens to be set."""
_PAUSE_S = 1.0
"""How long a server is left alone that takes no connection."""
_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True)
class Failure:
    """Why a request has no numbers."""

    name: str
    message: str
    pause_s: float = 0.0
    """How long the server wants to be left alone, or is likely to need. The next request waits, this one is over."""


@contextlib.asynccontextmanager
async def session(timeout_s: float) -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP session without a limit on connections; `timeout_s` bounds each whole request."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_CONNECTION_S)
    timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(timeout_s, 10.0))
    key = os.environ.get(API_KEY)
    headers = {"Authorization": f"Bearer {key}"} if key else None
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as opened:
        yield opened


async def ask(http: aiohttp.ClientSession, url: str, body: bytes) -> Output | Failure:
    """Send `body` to `url` and read the stream to its end."""
    tally = StreamTally()
    sent = perf_counter()
    try:
        async with http.post(url, data=body, headers=_HEADERS, allow_redirects=False) as response:
            if response.status != 200:
                return await _refusal(response)
            if response.content_type == "application/json":
                return Failure("malformed", "answered application/json where an event stream was asked for")
            await _read(response, tally, sent)
        return tally.output()
    except StreamFault as fault:
        return Failure(fault.name, one_line(str(fault)))
    except TimeoutError:
        waited = perf_counter() - sent
        return Failure("timeout", f"gave up after {waited:.1f} s; {tally.chunks} chunks with text had come")
    except (aiohttp.ClientError, OSError) as error:
        return _broken(error, tally)


async def _read(response: aiohttp.ClientResponse, tally: StreamTally, sent: float) -> None:
    parser = SseParser()
    while not tally.done:
        packet = await response.content.readany()
        at_s = perf_counter() - sent
        for event in parser.feed(packet) if packet else parser.close():
            tally.take(event, at_s)
        if not packet:
            return
    if response.content.at_eof():
        return
    with contextlib.suppress(TimeoutError, aiohttp.ClientError):
        await asyncio.wait_for(response.content.readany(), _DRAIN_S)


async def _refusal(response: aiohttp.ClientResponse) -> Failure:
    """A status other than 200, with the beginning of what the server says about it."""
    said = one_line((await response.content.read(2000)).decode("utf-8", errors="replace"))
    retry_after = response.headers.get("Retry-After")
    wait = f" (Retry-After: {retry_after})" if retry_after else ""
    return Failure(f"http_{response.status}", f"{response.reason}{wait}: {said}", _asked_pause_s(retry_after))


def _asked_pause_s(retry_after: str | None) -> float:
    """Seconds out of a Retry-After header; one that gives a date instead asks for none here."""
    if retry_after is None or not retry_after.strip().isdecimal():
        return 0.0
    return min(float(retry_after), _LONGEST_PAUSE_S)


def _broken(error: aiohttp.ClientError | OSError, tally: StreamTally) -> Failure:
    text = one_line(str(error) or type(error).__name__)
    if isinstance(error, aiohttp.ClientConnectorError):
        refused = getattr(getattr(error, "os_error", None), "errno", None) == errno.ECONNREFUSED
        return Failure("connect_refused" if refused else "connect_failed", text, _PAUSE_S)
    undecodable = isinstance(error.__cause__, http_exceptions.ContentEncodingError)
    if isinstance(error, aiohttp.ClientResponseError) or undecodable:
        return Failure("malformed", text)
    return Failure("reset", f"{text}; {tally.chunks} chunks with text had come")


def one_line(text: str, limit: int = 300) -> str:
    """`text` without line breaks, at most `limit` characters."""
    return " ".join(text.split())[:limit]
