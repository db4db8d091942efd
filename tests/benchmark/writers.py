"""A real HTTP server whose arms write known tokens with known log-probabilities."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.benchmark.endpoint import DONE, Endpoint, Seen, choice, event

WORDS = ("Ann", " saw", " the", " old", " mill", " by", " the", " river")
SURE = {" zebra": -6.0, " quartz": -7.0}
END = "<|end|>"


@dataclass
class Writer:
    """What an arm writes, and how it tells of it."""

    tokens: tuple[str, ...] = WORDS
    """Of every answer."""
    second: tuple[str, ...] | None = None
    """Of every answer to a request that was asked before."""
    again: tuple[str, ...] | None = None
    """Where log-probabilities are asked for; else as ever."""
    top: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """By place, the log-probabilities there; elsewhere the token is nearly sure."""
    continues: bool = True
    """Whether it goes on from an answer that was begun."""
    told: Callable[[dict[str, Any]], dict[str, Any] | web.Response] = lambda answer: answer
    """What it makes of an answer with log-probabilities."""
    ended: bool = False
    """Whether a token for the end follows."""
    endless: bool = False
    """Whether its log-probabilities never end."""

    def listed(self, place: int, token: str) -> dict[str, float]:
        return dict(self.top.get(place, {token: -0.01 - place / 1000, **SURE}))


class Writers(Endpoint):
    """The server."""

    def __init__(self, **arms: Writer) -> None:
        super().__init__({})
        self.writers = arms
        self.asked: list[tuple[str, dict[str, Any]]] = []
        """Requests for log-probabilities, by arm."""
        self._before: set[str] = set()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        arm, body = request.match_info["arm"], await request.json()
        writer, chat = self.writers[arm], "messages" in body
        if body.get("stream"):
            self.seen.append(Seen(arm, body, 0.0))
            known = f"{arm} {json.dumps(body)}"
            tokens = writer.second if writer.second and known in self._before else writer.tokens
            self._before.add(known)
            return await _streamed(request, "".join(tokens), len(tokens), chat=chat)
        self.asked.append((arm, body))
        if writer.endless:
            return await _without_end(request)
        tokens, place = writer.again or writer.tokens, 0
        if given := _given(body):
            starts = [i for i in range(len(tokens)) if "".join(tokens[:i]) == given]
            tokens, place = (tokens, starts[0]) if starts and writer.continues else (("Else",), 0)
        written = [*tokens, *([END] if writer.ended else [])][place:][: body["max_tokens"]]
        steps = [(token, writer.listed(place + i, token)) for i, token in enumerate(written)]
        answer = writer.told(_chat(steps) if chat else _completion(steps))
        return answer if isinstance(answer, web.Response) else web.json_response(answer)


async def _without_end(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    while True:
        await response.write(b" " * (1 << 20))


def _given(body: Mapping[str, Any]) -> str:
    if "prompt" in body:
        return str(body["prompt"]).partition("Beginning 0")[2]
    last = body["messages"][-1]
    return last["content"] if last["role"] == "assistant" and body.get("continue_final_message") else ""


def _chat(steps: list[tuple[str, dict[str, float]]]) -> dict[str, Any]:
    content = [
        {
            "token": token,
            "logprob": top.get(token, -0.5),
            "top_logprobs": [{"token": t, "logprob": p} for t, p in top.items()],
        }
        for token, top in steps
    ]
    return {"choices": [{"index": 0, "message": {"content": "..."}, "logprobs": {"content": content}}]}


def _completion(steps: list[tuple[str, dict[str, float]]]) -> dict[str, Any]:
    told = {
        "tokens": [token for token, _ in steps],
        "token_logprobs": [top.get(token, -0.5) for token, top in steps],
        "top_logprobs": [top for _, top in steps],
    }
    return {"choices": [{"index": 0, "text": "...", "logprobs": told}]}


async def _streamed(request: web.Request, text: str, tokens: int, *, chat: bool) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    first, rest = text[:3], text[3:]
    for part, count in ((first, 1), (rest, tokens)):
        of = choice({"content": part}) if chat else {"index": 0, "text": part, "finish_reason": None}
        await response.write(event(of, count))
    await response.write(DONE)
    return response
