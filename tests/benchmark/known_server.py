"""A server whose every chunk leaves at a known time.

`/steady/v1` and `/bursts/v1` answer by their timetables, `/truth` says what was sent when. The server's own lateness
cancels: the truth is when its chunks left, not when they were due. `python -m tests.benchmark.known_server FIRST_MS
STEP_MS` serves until its standard input ends, and prints its address first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Any

from aiohttp import web

from benchmark.errors import EndpointError

MODEL = "known-schedule"
SIZES = {"steady": (1,), "bursts": tuple(range(1, 9))}
"""By arm: tokens in the chunks after the first, in turn. Each first chunk holds one, as after prefill."""
_NONCE = re.compile(r"\[([0-9a-f]{6})\] ")


def timetable(
    sizes: Iterable[int], *, first_s: float, step_s: float, tokens: int
) -> Iterator[tuple[float, int]]:
    """When each chunk of an answer of `tokens` is due, seconds since the request's arrival, and what it holds."""
    turns = cycle(sizes)
    sent = step = 0
    while sent < tokens:
        size = min(next(turns) if sent else 1, tokens - sent)
        yield first_s + step * step_s, size
        sent, step = sent + size, step + 1


class KnownSchedule:
    """Answers by timetable and keeps, for each answer, when its chunks really left."""

    def __init__(self, first_s: float, step_s: float) -> None:
        self._first_s, self._step_s = first_s, step_s
        self._truths: list[dict[str, Any]] = []

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application()
        app.router.add_get("/{arm}/v1/models", self._models)
        app.router.add_post("/{arm}/v1/completions", self._answer)
        app.router.add_post("/{arm}/v1/chat/completions", self._answer)
        app.router.add_get("/truth", self._truth)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": MODEL, "owned_by": "emulated timetable"}]}
        )

    async def _truth(self, request: web.Request) -> web.Response:
        """What was answered since this was last asked."""
        said, self._truths = self._truths, []
        return web.json_response(said)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        began = perf_counter()
        arm = request.match_info["arm"]
        if arm not in SIZES:
            raise web.HTTPNotFound(text=f"arms are {', '.join(SIZES)}")
        body = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        total = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        due = list(timetable(SIZES[arm], first_s=self._first_s, step_s=self._step_s, tokens=total))
        opening, *chunks, ending = _events(tuple(size for _, size in due), "messages" in body)
        if opening:
            await response.write(opening)
        sent_s: list[float] = []
        for (due_s, _), data in zip(due, chunks, strict=True):
            if (early_s := began + due_s - perf_counter()) > 0:
                await asyncio.sleep(early_s)
            sent_s.append(perf_counter() - began)
            await response.write(data)
        await response.write(ending)
        self._truths.append(
            {"key": _key(request, body), "arm": arm, "sent_s": sent_s, "tokens": [n for _, n in due]}
        )
        return response


@lru_cache(maxsize=64)
def _events(sizes: tuple[int, ...], chat: bool) -> tuple[bytes, ...]:
    """What an answer sends, as vLLM words it, made once: a server busy with JSON would be late.

    First the chunk in which a chat names its role, then one of each size with the usage up to there, then the end.
    """
    total, done = sum(sizes), 0
    found = [_event({"delta": {"role": "assistant", "content": ""}}, 0, chat) if chat else b""]
    for size in sizes:
        text = "".join(f"w{i} " for i in range(done, done + size))
        done += size
        content = {"delta": {"content": text}} if chat else {"text": text}
        found.append(_event(content, done, chat, finish_reason="length" if done == total else None))
    return (*found, _event(None, total, chat) + b"data: [DONE]\n\n")


def _event(
    content: dict[str, Any] | None, tokens: int, chat: bool, finish_reason: str | None = None
) -> bytes:
    choice = {"index": 0, **(content or {}), "logprobs": None, "finish_reason": finish_reason}
    event = {
        "id": "chatcmpl-0" if chat else "cmpl-0",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": 0,
        "model": MODEL,
        "choices": [] if content is None else [choice],
        "usage": {"prompt_tokens": 9, "total_tokens": 9 + tokens, "completion_tokens": tokens},
    }
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def _key(request: web.Request, body: Mapping[str, Any]) -> str:
    """What the client can tell its request by: the header that some send, else the nonce of the prompt."""
    if request_id := request.headers.get("X-Request-ID"):
        return request_id
    text = body["messages"][-1]["content"] if body.get("messages") else body.get("prompt", "")
    found = _NONCE.match(text) if isinstance(text, str) else None
    return found[1] if found else ""


async def _serve(first_s: float, step_s: float) -> None:
    runner = web.AppRunner(KnownSchedule(first_s, step_s).app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    ended = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(ended)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    await ended.read()
    await runner.cleanup()


@dataclass(frozen=True)
class Served:
    """A server that runs, in a process of its own: it does not share the client's event loop."""

    address: str
    pid: int

    def url(self, arm: str) -> str:
        """Base URL of an arm."""
        return f"{self.address}/{arm}/v1"

    def truth(self) -> list[dict[str, Any]]:
        """What it has sent since it was last asked: key, arm, sent_s and tokens of each answer."""
        with urllib.request.urlopen(f"{self.address}/truth", timeout=30) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found


@contextlib.contextmanager
def served(*, first_ms: float, step_ms: float) -> Iterator[Served]:
    """Start it, stop it. It also ends when this process does. Raises EndpointError."""
    command = [sys.executable, "-m", "tests.benchmark.known_server", str(first_ms), str(step_ms)]
    package = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as server:
        try:
            address = server.stdout.readline().strip() if server.stdout else ""
            if not address:
                raise EndpointError(f"{' '.join(command)}: did not start; its own message is above")
            yield Served(address, server.pid)
        finally:
            server.terminate()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]) / 1000, float(sys.argv[2]) / 1000))
