"""Asking one endpoint: what it serves, and a streamed request over HTTP, an `Output` or a `Failure` with a name.

Nothing is retried. The clock is read as soon as a packet is there, before anything in it is parsed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import aiohttp

from benchmark.errors import EndpointError
from benchmark.limits import by_user
from benchmark.measure.api_key import KEY_REMEDY, authorization, hidden
from benchmark.measure.schedule import Pair
from benchmark.measure.stream import MOST_TOKENS, Output, SseParser, StreamFault, StreamTally
from benchmark.plan import Arm, Plan
from core.reading import json_of

_IDLE_CONNECTION_S = 2.0
"""Connections idle for longer are dropped: servers close theirs after some seconds (uvicorn after 5), and a
request sent into a closing connection would be counted as the server's failure."""
_DRAIN_S = 0.1
"""How long the end of the body may follow [DONE] for its connection to be used again."""
_HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream"}
_STREAMS = ("text/event-stream", "text/plain", "application/octet-stream")
"""Types that an event stream comes with; the last is what aiohttp says where the server says nothing."""
_MOST_BYTES, _BYTES_PER_TOKEN, _MOST_BYTES_EVER = 4 << 20, 4 << 10, 256 << 20
"""Of an answer on the wire: what any may have, what each of its tokens adds, and the end of it."""
_BEGINNING = 2000
"""Of a page, or of what comes with a status other than 200, so many bytes are enough for the message."""
_SAID_S = 1.0
"""How long what comes with a status other than 200 may take."""
_PAUSE_S = 1.0
"""How long a server is left alone that takes no connection."""
_LONGEST_PAUSE_S = 60.0
_NOTHING_SAID: Mapping[str, str] = {}
_TIMEOUT = aiohttp.ClientTimeout(total=15)
_MOST_LISTED, _MOST_NAMED, _MOST_OWNER, _MOST_SAID = 8 << 20, 10, 100, 100
"""Of what an endpoint says about itself: bytes, models that are named, characters of an owner, texts."""


@dataclass(frozen=True)
class Failure:
    """Why a request has no numbers."""

    name: str
    message: str
    pause_s: float = 0.0
    """How long the server asks to be left alone, or is likely to need. The next request waits, this one is over."""


@contextlib.asynccontextmanager
async def session(timeout_s: float) -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP session without a limit on connections; `timeout_s` bounds each whole request."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_CONNECTION_S)
    timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(timeout_s, 10.0))
    headers = {"Accept-Encoding": "identity", **authorization()}
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=headers, auto_decompress=False
    ) as opened:
        yield opened


async def ask(
    http: aiohttp.ClientSession, url: str, body: bytes, *, max_tokens: int = MOST_TOKENS, late_s: float = 0.0
) -> Output | Failure:
    """Send `body`, which asks for `max_tokens` at most, to `url` and read the stream to its end; times count from when it
    was to be sent, `late_s` ago."""
    tally = StreamTally(max_tokens)
    sent = perf_counter() - late_s
    try:
        async with http.post(url, data=body, headers=_HEADERS, allow_redirects=False) as response:
            if response.status != 200:
                return await _refusal(response)
            _refuse_other_than_stream(response)
            most = min(_MOST_BYTES + max_tokens * _BYTES_PER_TOKEN, _MOST_BYTES_EVER)
            await _read(response, tally, sent, most)
        return tally.output()
    except StreamFault as fault:
        return Failure(fault.name, one_line(str(fault)))
    except TimeoutError:
        waited = perf_counter() - sent
        return Failure("timeout", f"gave up after {waited:.1f} s; {tally.chunks} chunks with text had come")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return _broken(error, tally)


async def ask_whole(http: aiohttp.ClientSession, url: str, body: bytes, *, max_tokens: int) -> Any | Failure:
    """Send `body`, which asks for `max_tokens` at most and no stream; the JSON that comes back."""
    most = min(_MOST_BYTES + max_tokens * _BYTES_PER_TOKEN, _MOST_BYTES_EVER)
    sent = perf_counter()
    try:
        async with http.post(url, data=body, headers=_HEADERS, allow_redirects=False) as response:
            if response.status != 200:
                return await _refusal(response)
            return json_of(await read_at_most(response, most))
    except StreamFault as fault:
        return Failure(fault.name, one_line(str(fault)))
    except TimeoutError:
        return Failure("timeout", f"gave up after {perf_counter() - sent:.1f} s")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return _broken(error, StreamTally())


async def _read(response: aiohttp.ClientResponse, tally: StreamTally, sent: float, most: int) -> None:
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
        if received > most:
            raise StreamFault("too_large", f"the answer has more than {most >> 20} MiB and has not ended")
    if response.content.at_eof():
        return
    with contextlib.suppress(TimeoutError, aiohttp.ClientError):
        await asyncio.wait_for(response.content.readany(), _DRAIN_S)


async def read_at_most(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The whole body. Raises StreamFault where it is longer, or compressed, which was not asked for."""
    _refuse_compressed(response)
    found = bytearray()
    while packet := await response.content.readany():
        found += packet
        if len(found) > most:
            raise StreamFault("too_large", f"the answer has more than {most >> 20} MiB")
    return bytes(found)


def _refuse_other_than_stream(response: aiohttp.ClientResponse) -> None:
    """Raises StreamFault for an answer with status 200 that is not read."""
    _refuse_compressed(response)
    if (type_ := response.content_type) not in _STREAMS:
        name = "html_page" if type_ in ("text/html", "application/xhtml+xml") else "malformed"
        raise StreamFault(name, f"answered {type_} where an event stream was asked for")


def _refuse_compressed(response: aiohttp.ClientResponse) -> None:
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise StreamFault("malformed", f"the answer is compressed ({encoding}), which was not asked for")


async def _refusal(response: aiohttp.ClientResponse) -> Failure:
    """A status other than 200, with the beginning of what the server says about it."""
    beginning, whole = bytearray(), False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SAID_S):
            while len(beginning) < _BEGINNING and (packet := await response.content.readany()):
                beginning += packet
            whole = response.content.at_eof()
    said = hidden(beginning.decode("utf-8", errors="replace"), cut=not whole)
    retry_after = response.headers.get("Retry-After", "")
    message = f"{response.reason}{f' (Retry-After: {retry_after})' if retry_after else ''}: {said}"
    if response.status in (401, 403):
        message = f"{KEY_REMEDY}; {message}"
    asked = retry_after.strip()  # seconds; a header that gives a date instead asks for no pause here
    pause_s = min(float(asked), _LONGEST_PAUSE_S) if asked.isascii() and asked.isdecimal() else 0.0
    return Failure(f"http_{response.status}", one_line(message), pause_s)


def _broken(error: Exception, tally: StreamTally) -> Failure:
    text = one_line(str(error) or type(error).__name__)
    if isinstance(error, aiohttp.ClientConnectorError):
        refused = getattr(getattr(error, "os_error", None), "errno", None) == errno.ECONNREFUSED
        return Failure("connect_refused" if refused else "connect_failed", text, _PAUSE_S)
    if isinstance(error, (aiohttp.ClientResponseError, ValueError)):
        return Failure("malformed", text)
    return Failure("reset", f"{text}; {tally.chunks} chunks with text had come")


def one_line(text: str, limit: int = 300) -> str:
    """`text` of a server without the API key, line breaks and other characters that a terminal would act on, at most `limit`
    characters."""
    shown = "".join(
        c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in hidden(text)
    )
    return " ".join(shown.split())[:limit]


def request_path(pair: Pair) -> str:
    """Below the base URL: chat for messages, completions for raw text."""
    return "/completions" if pair.prompt.messages is None else "/chat/completions"


def request_body(plan: Plan, pair: Pair, said: Mapping[str, str] = _NOTHING_SAID) -> bytes:
    """The request. The nonce comes before the prompt, where a prefix cache begins to compare.

    A later turn of a conversation has all before it, as it was sent, with the answers in `said` (by pair). Raises
    LookupError where one is missing.
    """
    max_tokens = pair.prompt.max_tokens or plan.max_tokens
    content: dict[str, Any] = {
        "model": plan.model,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "temperature": plan.temperature,
        "max_tokens": max_tokens,
        "seed": plan.seed,
    }
    if plan.ignore_eos:
        content |= {"ignore_eos": True, "min_tokens": max_tokens}
    if pair.prompt.messages is None:
        content["prompt"] = f"[{pair.nonce}] {pair.prompt.prompt}"
    else:
        turns = [pair]
        while (before := turns[-1].after) is not None:
            turns.append(before)
        content["messages"] = [message for turn in reversed(turns) for message in _messages(turn, said)]
    return json.dumps({**content, **plan.extra_body}).encode()


def _messages(turn: Pair, said: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """What a turn adds: the answer before it, unless its own messages begin with one that was recorded, and they."""
    messages = turn.prompt.messages or ()
    last = max(index for index, message in enumerate(messages) if by_user(message))
    marked = {**messages[last], "content": f"[{turn.nonce}] {messages[last]['content']}"}
    own = [*messages[:last], marked, *messages[last + 1 :]]
    if turn.after is None or own[0].get("role") == "assistant":
        return own
    return [{"role": "assistant", "content": said[turn.after.id]}, *own]


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """What an endpoint says about itself."""

    owner: str
    """Of the model."""
    cautions: tuple[str, ...] = ()
    """Of an emulator: what its timings were not fitted to."""
    made_up: tuple[str, ...] = ()
    """Of an emulator: classes for which it knows no acceptance."""

    @property
    def emulated(self) -> bool:
        return self.owner.lower().startswith("emulat")


async def endpoints(http: aiohttp.ClientSession, plan: Plan) -> dict[str, Endpoint]:
    """By arm, what the endpoint says about itself. Raises EndpointError where the model is not served."""
    return {arm.name: await _endpoint(http, arm, plan.model) for arm in plan.arms}


async def _endpoint(http: aiohttp.ClientSession, arm: Arm, model: str) -> Endpoint:
    where = f"{arm.name}: {arm.url}/models"
    remedy = f"is this its address? --arm {arm.name}=URL names another"
    try:
        async with http.get(f"{arm.url}/models", timeout=_TIMEOUT, allow_redirects=False) as response:
            if response.status in (401, 403):
                raise EndpointError(f"{where}: answered HTTP {response.status}; {KEY_REMEDY}")
            if response.status != 200:  # a redirect is not followed: requests to the arm would not be either
                to = response.headers.get("Location")
                answered = f"HTTP {response.status}{f' (to {one_line(to, 200)})' if to else ''}"
                raise EndpointError(f"{where}: answered {answered}; {remedy}")
            content = await read_at_most(response, _MOST_LISTED)
    except StreamFault as fault:
        raise EndpointError(f"{where}: {one_line(f'{fault.name}: {fault}')}; {remedy}") from fault
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        why = one_line(str(error)) or "no answer in 15 s"
        raise EndpointError(f"{where}: {why}; is it up, and {remedy}") from error
    try:
        entries = json_of(content)["data"]
        served = {str(entry["id"]): _about(entry) for entry in entries}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = "an HTML page" if content.lstrip().startswith(b"<") else "not a list of models"
        raise EndpointError(f"{where}: answered {what}; {remedy}") from error
    if model not in served:
        named = [one_line(name, 100) for name in list(served)[:_MOST_NAMED]]
        has = ", ".join(named) + (" ..." if len(served) > _MOST_NAMED else "") or "nothing"
        raise EndpointError(f"{where}: serves {has}, not {model!r}; correct the plan's model or the arm")
    return served[model]


def _about(entry: Mapping[str, Any]) -> Endpoint:
    plain = Endpoint(owner=one_line(str(entry.get("owned_by", "")), _MOST_OWNER))
    metadata = entry.get("metadata")
    if not plain.emulated or not isinstance(metadata, dict):
        return plain
    cautions, made_up = (_texts(metadata.get(name)) for name in ("cautions", "classes_without_acceptance"))
    return replace(plain, cautions=cautions, made_up=made_up)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(one_line(str(text)) for text in value[:_MOST_SAID]) if isinstance(value, list) else ()
