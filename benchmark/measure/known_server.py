"""When a known-schedule stream sends what: decided in advance, the same in each run.

The known-schedule server: /steady/v1 and /bursts/v1 answer by their timetables, /truth says what was sent when.

The known-schedule server in a process of its own, so that it does not share the client's event loop.

What the client measured against what the server did: the error of each request, then its median.

The server's own lateness cancels: the truth is when its chunks left, not when they were due.

`python -m benchmark.measure.known_server`: the known-schedule server by itself, for any client. Prints its address.
"""

from __future__ import annotations

import argparse
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
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from aiohttp import web

from benchmark.errors import EndpointError

if TYPE_CHECKING:
    from benchmark.measure.records import RequestRecord


MODEL = "known-schedule"
SIZES = {"steady": (1,), "bursts": tuple(range(1, 9))}
"""By arm: tokens in the chunks after the first, in turn. Each first chunk holds one, as after prefill."""


@dataclass(frozen=True, kw_only=True)
class Timetable:
    """One arm's streams."""

    sizes: tuple[int, ...]
    first_s: float
    """From the request's arrival to its first token."""
    step_s: float
    """From each chunk to the next."""

    def chunks(self, tokens: int) -> Iterator[tuple[float, int]]:
        """For an answer of `tokens`: when each chunk is due, seconds since arrival, and what it holds."""
        sizes = cycle(self.sizes)
        sent = step = 0
        while sent < tokens:
            size = min(next(sizes) if sent else 1, tokens - sent)
            yield self.first_s + step * self.step_s, size
            sent, step = sent + size, step + 1


def chunk(index: int, size: int, total: int, *, chat: bool) -> bytes:
    """The event of `size` tokens from number `index` on, with the usage up to there, as vLLM words it."""
    text = "".join(f"w{i} " for i in range(index, index + size))
    last = "length" if index + size == total else None
    content = {"delta": {"content": text}} if chat else {"text": text}
    return _event([{"index": 0, **content, "logprobs": None, "finish_reason": last}], index + size, chat=chat)


def opening() -> bytes:
    """The chunk in which a chat names its role."""
    delta = {"role": "assistant", "content": ""}
    return _event([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}], 0, chat=True)


def ending(total: int, *, chat: bool) -> bytes:
    """The final usage and the end."""
    return _event([], total, chat=chat) + b"data: [DONE]\n\n"


def _event(choices: list[dict[str, object]], tokens: int, *, chat: bool) -> bytes:
    content = {
        "id": "chatcmpl-0" if chat else "cmpl-0",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": 0,
        "model": MODEL,
        "choices": choices,
        "usage": {"prompt_tokens": 9, "total_tokens": 9 + tokens, "completion_tokens": tokens},
    }
    return b"data: " + json.dumps(content).encode() + b"\n\n"


_NONCE = re.compile(r"\[([0-9a-f]{6})\] ")


class KnownSchedule:
    """Answers by timetable and keeps, for each answer, when its chunks really left."""

    def __init__(self, timetables: Mapping[str, Timetable]) -> None:
        self._timetables = timetables
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
        if arm not in self._timetables:
            raise web.HTTPNotFound(text=f"arms are {', '.join(self._timetables)}")
        body = await request.json()
        chat = "messages" in body
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if chat:
            await response.write(opening())
        total = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        due = list(self._timetables[arm].chunks(total))
        sent_s: list[float] = []
        for (due_s, _), data in zip(due, _payloads(tuple(size for _, size in due), chat), strict=True):
            if (early_s := began + due_s - perf_counter()) > 0:
                await asyncio.sleep(early_s)
            sent_s.append(perf_counter() - began)
            await response.write(data)
        await response.write(ending(total, chat=chat))
        self._truths.append(
            {"key": _key(request, body), "arm": arm, "sent_s": sent_s, "tokens": [n for _, n in due]}
        )
        return response


@lru_cache(maxsize=64)
def _payloads(sizes: tuple[int, ...], chat: bool) -> tuple[bytes, ...]:
    """The events of an answer, made once: a server busy with JSON would be late."""
    return tuple(_numbered(sizes, chat))


def _numbered(sizes: tuple[int, ...], chat: bool) -> Iterator[bytes]:
    index = 0
    for size in sizes:
        yield chunk(index, size, sum(sizes), chat=chat)
        index += size


def _key(request: web.Request, body: Mapping[str, Any]) -> str:
    """What the client can tell its request by: the header that some send, else the nonce of the prompt."""
    if request_id := request.headers.get("X-Request-ID"):
        return request_id
    text = body["messages"][-1]["content"] if body.get("messages") else body.get("prompt", "")
    found = _NONCE.match(text) if isinstance(text, str) else None
    return found[1] if found else ""


@dataclass(frozen=True)
class Served:
    """A server that runs."""

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
    times = ["--first-ms", str(first_ms), "--step-ms", str(step_ms)]
    command = [sys.executable, "-m", "benchmark.measure.known_server", *times, "--until-stdin-ends"]
    package = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    ) as server:
        try:
            address = server.stdout.readline().strip() if server.stdout else ""
            if not address:
                raise EndpointError(f"{' '.join(command)}: did not start; its own message is above")
            yield Served(address, server.pid)
        finally:
            server.terminate()


CALM = 4
"""Up to so many requests in flight the stricter limits hold."""
_LIMIT_S = {True: 0.005, False: 0.03}
_TPOT_LIMIT = {True: 0.005, False: 0.01}


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Errors of one arm at one concurrency, as medians over its requests."""

    arm: str
    concurrency: int
    n: int
    failed: int
    """Requests that ended in an error, or whose chunks or tokens are not what was sent."""
    ttft_error_s: float
    e2e_error_s: float
    tpot_error: float
    """Relative."""
    client_lag_s: float

    @property
    def within_limits(self) -> bool:
        """Whether the client is to be believed here."""
        calm = self.concurrency <= CALM
        times = max(abs(self.ttft_error_s), abs(self.e2e_error_s))
        return not self.failed and times <= _LIMIT_S[calm] and abs(self.tpot_error) <= _TPOT_LIMIT[calm]


def accuracy(
    records: Iterable[RequestRecord], truths: Iterable[Mapping[str, Any]], *, client_lag_s: float
) -> Accuracy:
    """Compare the records of one arm and concurrency with what the server says of them."""
    by_key = {(truth["arm"], truth["key"]): truth for truth in truths}
    errors: list[tuple[float, float, float]] = []
    failed = 0
    for record in records:
        truth = by_key.get((record.arm, record.nonce))
        if truth is None or record.error or list(record.chunk_tokens or ()) != truth["tokens"]:
            failed += 1
        else:
            errors.append(_errors(record, truth))
    ttft, e2e, tpot = (median(values) for values in zip(*errors, strict=True)) if errors else (0.0, 0.0, 0.0)
    return Accuracy(
        arm=record.arm,
        concurrency=record.concurrency or 0,
        n=len(errors),
        failed=failed,
        ttft_error_s=ttft,
        e2e_error_s=e2e,
        tpot_error=tpot,
        client_lag_s=client_lag_s,
    )


def _errors(record: RequestRecord, truth: Mapping[str, Any]) -> tuple[float, float, float]:
    sent_s: list[float] = truth["sent_s"]
    true_span, span = sent_s[-1] - sent_s[0], record.chunk_s[-1] - record.chunk_s[0]
    return record.chunk_s[0] - sent_s[0], record.chunk_s[-1] - sent_s[-1], span / true_span - 1


def main() -> int:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m benchmark.measure.known_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="default: any that is free")
    parser.add_argument("--first-ms", type=float, default=100.0, help="to the first token (default 100)")
    parser.add_argument("--step-ms", type=float, default=45.0, help="between chunks (default 45)")
    parser.add_argument(
        "--until-stdin-ends", action="store_true", help="stop with the process that started it"
    )
    options = parser.parse_args()
    first_s, step_s = options.first_ms / 1000, options.step_ms / 1000
    timetables = {arm: Timetable(sizes=sizes, first_s=first_s, step_s=step_s) for arm, sizes in SIZES.items()}
    try:
        asyncio.run(
            _serve(KnownSchedule(timetables), options.port, until_stdin_ends=options.until_stdin_ends)
        )
    except KeyboardInterrupt:
        return 130
    return 0


async def _serve(schedule: KnownSchedule, port: int, *, until_stdin_ends: bool) -> None:
    runner = web.AppRunner(schedule.app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    ended = asyncio.StreamReader()
    if until_stdin_ends:
        protocol = asyncio.StreamReaderProtocol(ended)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    await ended.read()
    await runner.cleanup()


if __name__ == "__main__":
    sys.exit(main())
