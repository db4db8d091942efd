"""The known-schedule server: /steady/v1 and /bursts/v1 answer by their timetables, /truth says what was sent when."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from time import perf_counter
from typing import Any

from aiohttp import web

from benchmark.selftest.timetable import MODEL, Timetable, chunk, ending, opening

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
