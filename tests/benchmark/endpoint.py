"""A real HTTP server on loopback whose streams are known in advance: arms on a schedule, and faults.

The first part of a URL's path chooses the behaviour: `/steady/v1` is the arm `steady`, `/reset/v1` a fault.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from subprocess import PIPE, Popen
from time import monotonic, perf_counter, sleep
from typing import Any, Self

from aiohttp import web

from tests.conftest import ROOT

MODEL = "Qwen/Qwen3-32B"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """An arm: when its chunks leave and how many tokens each holds."""

    first_s: float = 0.02
    step_s: float = 0.01
    sizes: tuple[int, ...] = (1,)
    """Tokens of the chunks after the first, in turn."""
    owned_by: str = "vllm"
    word: str = "word"
    """What its answers are made of."""


@dataclass
class Seen:
    """One request as the server saw it."""

    arm: str
    body: dict[str, Any]
    began: float
    peer: object = None
    """Its connection's other end."""
    ended: float = 0.0
    """Before the client can know of it."""
    sent_s: list[float] = field(default_factory=list)
    """When each chunk with output left, seconds since the request's arrival."""
    tokens: list[int] = field(default_factory=list)
    """How many it held."""

    @property
    def nonce(self) -> str:
        text = self.body["messages"][-1]["content"] if self.body.get("messages") else self.body["prompt"]
        return str(text)[1:7]


class Endpoint:
    """The server, in a thread of its own. A context manager."""

    def __init__(self, arms: dict[str, Timing], port: int = 0) -> None:
        self.arms = arms
        self.seen: list[Seen] = []
        self.metrics: dict[str, Callable[[], str]] = {}
        """By arm, what its /metrics says; others have none."""
        self.versions: dict[str, str] = {}
        """By arm, what its /version says; others have none."""
        self.says: Callable[[dict[str, Any]], str | None] = lambda body: None
        """What is answered to a request, in one chunk; where it gives nothing, the arm's own words come."""
        self.keys: dict[str, str] = {}
        """By arm, the header and value without which it answers 401, repeating what it got: `x-key: secret`."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = port
        self._runner: web.AppRunner

    def url(self, arm: str) -> str:
        return f"http://127.0.0.1:{self.port}/{arm}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(120)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(120)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(middlewares=[self._locked])
        app.router.add_get("/{arm}/v1/models", self._models)
        app.router.add_get("/{arm}/metrics", self._metrics)
        app.router.add_get("/{arm}/version", self._version)
        app.router.add_get("/truth", self._truth)
        app.router.add_post("/{arm}/v1/completions", self._answer)
        app.router.add_post("/{arm}/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.05, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        for one in self._runner.server.connections if self._runner.server else ():
            if one.transport:
                one.transport.abort()  # what is still being written would keep it open
        await self._runner.cleanup()

    @web.middleware
    async def _locked(self, request: web.Request, handler: Any) -> web.StreamResponse:
        name, _, value = self.keys.get(request.match_info.get("arm", ""), "").partition(": ")
        if name and request.headers.get(name) != value:
            raise web.HTTPUnauthorized(text=f"got {request.headers.get(name)}")
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _models(self, request: web.Request) -> web.Response:
        timing = self.arms.get(request.match_info["arm"], Timing())
        return web.json_response({"object": "list", "data": [{"id": MODEL, "owned_by": timing.owned_by}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        if request.match_info["arm"] not in self.metrics:
            raise web.HTTPNotFound
        return web.Response(text=self.metrics[request.match_info["arm"]]())

    async def _version(self, request: web.Request) -> web.Response:
        if request.match_info["arm"] not in self.versions:
            raise web.HTTPNotFound
        return web.json_response({"version": self.versions[request.match_info["arm"]]})

    async def _truth(self, request: web.Request) -> web.Response:
        """What was answered since this was last asked."""
        seen, self.seen[:] = [*self.seen], []
        answers = [{"key": s.nonce, "arm": s.arm, "sent_s": s.sent_s, "tokens": s.tokens} for s in seen]
        return web.json_response(answers)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        arm = request.match_info["arm"]
        seen = Seen(arm, await request.json(), perf_counter(), request.get_extra_info("peername"))
        self.seen.append(seen)
        if known := FAULTS.get(arm) or ODDITIES.get(arm):
            return await known(request)
        if (said := self.says(seen.body)) is not None:
            return await _raw(request, ROLE, event(choice({"content": said})), END, TOTAL, DONE)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await _stream(response, self.arms[arm], seen)
        return response


def wait_until(holds: Callable[[], bool]) -> None:
    """For what takes a second on an idle machine, and two minutes at most."""
    limit = monotonic() + 120
    while not holds():
        assert monotonic() < limit
        sleep(0.01)


KNOWN = {"steady": (1,), "bursts": tuple(range(1, 9))}
"""By arm of a server in a process: tokens in the chunks after the first, in turn. Each first chunk holds one, as after prefill."""


@dataclass(frozen=True)
class Served:
    """A server in a process of its own, which does not share the client's event loop. Its lateness cancels: the truth is when its
    chunks left, not when they were due."""

    address: str

    def url(self, arm: str) -> str:
        """Base URL of an arm."""
        return f"{self.address}/{arm}/v1"

    def truth(self) -> list[dict[str, Any]]:
        """What it has sent since it was last asked: key, arm, sent_s and tokens of each answer."""
        with urllib.request.urlopen(f"{self.address}/truth", timeout=30) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found


@contextmanager
def served(*, first_ms: float, step_ms: float) -> Iterator[Served]:
    """Two arms whose every chunk leaves at a known time, `/steady/v1` and `/bursts/v1`, until its standard input ends."""
    command = [sys.executable, "-m", "tests.benchmark.endpoint", str(first_ms), str(step_ms)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT, env=env) as server:
        try:
            assert server.stdout
            yield Served(server.stdout.readline().strip())
        finally:
            server.terminate()


async def _stream(response: web.StreamResponse, timing: Timing, seen: Seen) -> None:
    """A role-only chunk with the first token, then a chunk each step, on an absolute schedule."""
    chat = "messages" in seen.body
    total = seen.body["max_tokens"]
    if chat:
        await response.write(event(choice({"role": "assistant", "content": ""}), 0))
    sizes = cycle(timing.sizes)
    done, steps = 0, 0
    while done < total:
        size = min(next(sizes) if done else 1, total - done)
        due = seen.began + timing.first_s + steps * timing.step_s
        await asyncio.sleep(max(0.0, due - perf_counter()))
        text = "".join(f"{timing.word}{done + i} " for i in range(size))
        done, steps = done + size, steps + 1
        content = choice({"content": text}) if chat else {"index": 0, "text": text, "finish_reason": None}
        if done == total:
            content["finish_reason"] = "length"
        seen.sent_s.append(perf_counter() - seen.began)
        seen.tokens.append(size)
        await response.write(event(content, done))
    await response.write(sse({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": done}}))
    seen.ended = perf_counter()
    await response.write(DONE)


def choice(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason}


def event(of: dict[str, Any], tokens: int | None = None) -> bytes:
    """A chunk, with the usage up to there where the server counts as it goes."""
    usage = {} if tokens is None else {"usage": {"prompt_tokens": 9, "completion_tokens": tokens}}
    return sse({"choices": [of], **usage})


def sse(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


async def _raw(request: web.Request, *packets: bytes, pause_s: float = 0.0) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for packet in packets:
        await response.write(packet)
        await asyncio.sleep(pause_s)
    return response


def _status(status: int, **headers: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=f"told to\nanswer {status}", status=status, headers=headers)

    return answer


def _packets(*packets: bytes, pause_s: float = 0.0) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await _raw(request, *packets, pause_s=pause_s)

    return answer


async def _reset(request: web.Request) -> web.StreamResponse:
    response = await _raw(request, WORD, WORD, pause_s=0.01)
    assert request.transport is not None
    request.transport.abort()
    return response


ROLE = event(choice({"role": "assistant", "content": ""}))
WORD = event(choice({"content": "word "}))
END = event(choice({"content": ""}, "stop"))
TOTAL = sse({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}})
DONE = b"data: [DONE]\n\n"


async def _no_template(request: web.Request) -> web.StreamResponse:
    return web.json_response({"message": "a model without a default chat template"}, status=400)


FAULTS: dict[str, Answer] = {
    "429": _status(429, **{"Retry-After": "7"}),
    "500": _status(500),
    "hang-after": _packets(WORD, pause_s=30),
    "no-template": _no_template,
    "reset": _reset,
}
ODDITIES: dict[str, Answer] = {
    "early-eos": _packets(ROLE, WORD, END, TOTAL, DONE),
    "late-end": _packets(WORD, END, DONE, pause_s=0.01),
    "lingering": _packets(ROLE, WORD, END, DONE, b": still here\n\n", pause_s=0.05),
}

if __name__ == "__main__":
    _first_s, _step_s = (float(word) / 1000 for word in sys.argv[1:])
    _known = {
        name: Timing(first_s=_first_s, step_s=_step_s, sizes=sizes, owned_by="emulated timetable")
        for name, sizes in KNOWN.items()
    }
    with Endpoint(_known) as _server:
        print(f"http://127.0.0.1:{_server.port}", flush=True)
        sys.stdin.read()
