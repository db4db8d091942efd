"""Send a streamed request over HTTP; the result is a `Reply` with its numbers or a named error.

Nothing is retried. The clock is read when a packet arrives, before it is parsed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any

import aiohttp

from trnspec.benchmark.measure.api_key import KEY_REMEDY, hidden, secret_headers
from trnspec.benchmark.measure.records import MAX_TOKENS, Reply
from trnspec.benchmark.measure.schedule import Pair
from trnspec.benchmark.measure.stream import SseParser, StreamFault, StreamTally
from trnspec.benchmark.plan import Plan
from trnspec.benchmark.plan_limits import by_user
from trnspec.core import safe_output

_IDLE_CONNECTION_S = 2.0
"""Connections idle for longer are dropped: servers close theirs after some seconds (uvicorn after 5), and a
request sent into a closing connection would be counted as the server's failure."""
_DRAIN_S = 0.1
"""How long to wait for the end of the body after [DONE], so that the connection can be reused."""
_HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream"}
_STREAMS = ("text/event-stream", "text/plain", "application/octet-stream")
"""Accepted content types of an event stream. The last is that of aiohttp if the server sends none."""
_MAX_BYTES, _BYTES_PER_TOKEN, _MAX_BYTES_TOTAL = 4 << 20, 4 << 10, 256 << 20
"""The maximum bytes of an answer: a base, an addition for each token, and an upper limit."""
_BEGINNING = 2000
"""The number of bytes of a page, or of the body of an HTTP error, that are read for the message."""
_ERROR_BODY_S = 1.0
"""The maximum time for the body of an HTTP error."""
_PAUSE_S = 1.0
"""The pause after a server did not accept a connection."""
_MAX_PAUSE_S = 60.0
_MAX_FINISH_REASON_CHARS = 60
_FAULTS = (StreamFault, TimeoutError, aiohttp.ClientError, OSError, ValueError)


Sessions = Mapping[str, aiohttp.ClientSession]
"""The HTTP session of each arm, with its key and its headers, and without a limit on connections."""


@contextlib.asynccontextmanager
async def http_sessions(plan: Plan) -> AsyncIterator[Sessions]:
    """A session for each arm. Raises PlanError, before anything is sent, for a key or a header that cannot be sent."""
    timeout = aiohttp.ClientTimeout(total=plan.timeout_s, sock_connect=min(plan.timeout_s, 10.0))
    headers = {
        arm.name: {**secret_headers(arm, plan.arms), "Accept-Encoding": "identity"} for arm in plan.arms
    }
    async with contextlib.AsyncExitStack() as opened:
        yield {
            arm: await opened.enter_async_context(
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_CONNECTION_S),
                    timeout=timeout,
                    headers=own,
                    auto_decompress=False,
                )
            )
            for arm, own in headers.items()
        }


async def ask(
    http: aiohttp.ClientSession,
    url: str,
    body: bytes,
    *,
    max_tokens: int = MAX_TOKENS,
    late_s: float = 0.0,
) -> Reply:
    """Send `body`, which asks for at most `max_tokens`, to `url` and read the stream to its end. Times count from when the request was due,
    `late_s` ago."""
    tally, sent = StreamTally(max_tokens), perf_counter() - late_s
    try:
        async with http.post(url, data=body, headers=_HEADERS, allow_redirects=False) as response:
            await _accept(response)
            if (type_ := response.content_type) not in _STREAMS:
                name = "html_page" if type_ in ("text/html", "application/xhtml+xml") else "malformed"
                raise StreamFault(name, f"answered {type_} instead of an event stream")
            maximum = min(_MAX_BYTES + max_tokens * _BYTES_PER_TOKEN, _MAX_BYTES_TOTAL)
            await _read(response, tally, sent, maximum)
        reply = tally.reply()
    except _FAULTS as error:
        return _failed(error, sent, tally.chunks)
    reason, statistics, text = hidden(reply.finish_reason or ""), reply.spec_stats, hidden(reply.text or "")
    if statistics:
        statistics = {hidden(k): hidden(v) if isinstance(v, str) else v for k, v in statistics.items()}
    return replace(
        reply,
        text=text,
        text_sha256=hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest(),
        finish_reason=reason[:_MAX_FINISH_REASON_CHARS] or None,
        model=one_line(reply.model or "") or None,
        output_keys=tuple(one_line(key) for key in reply.output_keys),
        spec_stats=statistics,
    )


async def _read(response: aiohttp.ClientResponse, tally: StreamTally, sent: float, maximum: int) -> None:
    parser = SseParser()
    received, beginning = 0, b""
    while not tally.done:
        packet = await response.content.readany()
        at_s = perf_counter() - sent
        for event in parser.feed(packet) if packet else parser.close():
            tally.take(event, at_s)
        if not packet:
            if beginning.lstrip().startswith(b"<"):  # no line of a stream begins like a page
                page = hidden(beginning.decode(errors="replace"), cut=True)
                raise StreamFault("html_page", f"answered a page: {page}")
            return
        if received < _BEGINNING:
            beginning += packet[: _BEGINNING - received]
        received += len(packet)
        if received > maximum:
            raise StreamFault("too_large", f"the answer has more than {maximum >> 20} MiB and has not ended")
    if not response.content.at_eof():
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            await asyncio.wait_for(response.content.readany(), _DRAIN_S)


async def read_at_most(response: aiohttp.ClientResponse, maximum: int) -> bytes:
    """The whole body. Raises StreamFault if it is longer than `maximum`, or compressed, which was not requested."""
    _refuse_compressed(response)
    body = bytearray()
    while packet := await response.content.readany():
        body += packet
        if len(body) > maximum:
            raise StreamFault("too_large", f"the answer has more than {maximum >> 20} MiB")
    return bytes(body)


def _refuse_compressed(response: aiohttp.ClientResponse) -> None:
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise StreamFault(
            "malformed", f"the answer is compressed ({encoding}), and the request does not allow that"
        )


async def _accept(response: aiohttp.ClientResponse) -> None:
    """Raises StreamFault for a compressed answer, and for a status other than 200, with the beginning of its body."""
    if response.status == 200:
        return _refuse_compressed(response)
    beginning, whole = bytearray(), False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ERROR_BODY_S):
            while len(beginning) < _BEGINNING and (packet := await response.content.readany()):
                beginning += packet
            whole = response.content.at_eof()
    text = hidden(beginning.decode("utf-8", errors="replace"), cut=not whole)
    retry_after = response.headers.get("Retry-After", "")
    message = f"{response.reason}{f' (Retry-After: {retry_after})' if retry_after else ''}: {text}"
    if response.status in (401, 403):
        message = f"{KEY_REMEDY}; {message}"
    asked = retry_after.strip()  # seconds; a header that gives a date instead asks for no pause here
    pause_s = min(float(asked), _MAX_PAUSE_S) if asked.isascii() and asked.isdecimal() else 0.0
    raise StreamFault(f"http_{response.status}", message, pause_s)


def _failed(error: Exception, sent: float, chunks: int) -> Reply:
    text, came = one_line(str(error) or type(error).__name__), f"{chunks} chunks with text had come"
    if isinstance(error, StreamFault):
        return Reply(error=hidden(error.name), message=text, pause_s=error.pause_s)
    if isinstance(error, aiohttp.ClientConnectorError):
        refused = getattr(getattr(error, "os_error", None), "errno", None) == errno.ECONNREFUSED
        return Reply(error="connect_refused" if refused else "connect_failed", message=text, pause_s=_PAUSE_S)
    if isinstance(error, TimeoutError):
        return Reply(error="timeout", message=f"gave up after {perf_counter() - sent:.1f} s; {came}")
    if isinstance(error, (aiohttp.ClientResponseError, ValueError)):
        return Reply(error="malformed", message=text)
    return Reply(error="reset", message=f"{text}; {came}")


def one_line(text: str, limit: int = 300) -> str:
    """The text of a server in one line, without the API key and control characters, at most `limit` characters."""
    return safe_output.one_line(hidden(text), limit)


def request_path(pair: Pair) -> str:
    """The path below the base URL: chat for messages, completions for raw text."""
    return "/completions" if pair.prompt.messages is None else "/chat/completions"


def request_body(plan: Plan, pair: Pair) -> bytes:
    """The body of a request. The nonce is before the prompt, or the user's last message, so that a prefix cache does not match."""
    max_tokens = pair.prompt.max_tokens or plan.max_tokens
    usage = {"include_usage": True, "continuous_usage_stats": True}
    content: dict[str, Any] = {
        "model": plan.model,
        "stream": True,
        "stream_options": {key: value for key, value in usage.items() if key not in plan.left_out},
        "temperature": plan.temperature,
        "max_tokens": max_tokens,
        "seed": plan.seed,
    }
    if plan.ignore_eos:
        content |= {"ignore_eos": True, "min_tokens": max_tokens}
    content = {key: value for key, value in content.items() if key not in plan.left_out}
    if pair.prompt.messages is None:
        content["prompt"] = f"[{pair.nonce}] {pair.prompt.prompt}"
    else:
        messages: list[Mapping[str, Any]] = [*pair.prompt.messages]
        last = max(index for index, message in enumerate(messages) if by_user(message))
        messages[last] = {**messages[last], "content": f"[{pair.nonce}] {messages[last]['content']}"}
        content["messages"] = messages
    own = pair.prompt.request.get("chat_template_kwargs", {})
    joined = {"chat_template_kwargs": own | plan.extra_body.get("chat_template_kwargs", {})} if own else {}
    return json.dumps({**content, **pair.prompt.request, **plan.extra_body, **joined}).encode()
