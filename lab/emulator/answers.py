"""One request's answer as an HTTP response: a stream with one event an engine step, or one JSON object
at the end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from uuid import uuid4

from aiohttp import web

from lab.emulator.batch import Output
from lab.emulator.requests import Generation
from lab.emulator.wire import DONE, EVENT_STREAM, Dialect, event, usage


def _dialect(generation: Generation, *, chat: bool) -> Dialect:
    return Dialect(
        chat=chat,
        id=f"{'chatcmpl' if chat else 'cmpl'}-{uuid4().hex}",
        model=generation.model,
        created=int(time.time()),
    )


async def whole_answer(generation: Generation, outputs: AsyncIterator[Output], *, chat: bool) -> web.Response:
    """Wait for the last token, then answer."""
    collected = [output async for output in outputs]
    text = "".join(output.text for output in collected)
    payload = _dialect(generation, chat=chat).whole(text, collected[-1].finish_reason or "")
    payload["usage"] = usage(generation.prompt_tokens, sum(output.tokens for output in collected))
    return web.json_response(payload)


async def streamed_answer(
    request: web.Request, generation: Generation, outputs: AsyncIterator[Output], *, chat: bool
) -> web.StreamResponse:
    """Send every step's tokens as they come; as in vLLM, chat's role chunk comes with the first token."""
    response = web.StreamResponse(headers={"Content-Type": f"{EVENT_STREAM}; charset=utf-8"})
    await response.prepare(request)
    dialect = _dialect(generation, chat=chat)
    sent = 0
    async for output in outputs:
        payloads = [*dialect.opening()] if output.first else []
        counts = [sent] * len(payloads) + [sent + output.tokens]
        payloads.append(dialect.chunk(output.text, output.finish_reason))
        sent += output.tokens
        for payload, count in zip(payloads, counts, strict=True):
            if generation.continuous_usage:
                payload["usage"] = usage(generation.prompt_tokens, count)
            await response.write(event(payload))
    if generation.include_usage:
        await response.write(event({**dialect.closing(), "usage": usage(generation.prompt_tokens, sent)}))
    await response.write(DONE)
    return response
