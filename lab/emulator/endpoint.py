"""The HTTP face: vLLM's OpenAI endpoints over an `Engine`, every response marked as emulated."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from uuid import uuid4

from aiohttp import web

from lab.emulator.engine import Engine, Output
from lab.emulator.h200 import Start
from lab.emulator.meters import CONTENT_TYPE, Meters
from lab.emulator.openai_api import (
    DONE,
    EVENT_STREAM,
    Dialect,
    Generation,
    Payload,
    RequestError,
    event,
    parse_generation,
    usage,
)
from lab.emulator.served_arm import ServedArm
from lab.emulator.texts import PromptClasses
from lab.emulator.timings import CONDITIONAL_ACCEPTANCE, StepCosts, Timed

MARK = "X-Emulated"
"""Header of every response; its value is the machine."""
TRN2, H200 = "trn2", "h200"
VERSION = "0.9.1+emulated"
MAX_BODY_BYTES = 16 * 2**20

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoint:
    """One emulated arm as an aiohttp application."""

    def __init__(
        self,
        arm: ServedArm,
        classes: PromptClasses,
        *,
        time_scale: float = 1.0,
        cautions: Sequence[str] = (),
        timed: Timed | None = None,
        start: Start | None = None,
    ) -> None:
        """With a `start`, an H200's engine in place of a Trn2 node's."""
        self._arm = arm
        self._machine = H200 if start else TRN2
        self._cautions = [*cautions, *([_caution(arm, start)] if start else [])]
        known = timed.known if timed else tuple(CONDITIONAL_ACCEPTANCE)
        self._made_up = classes.beyond(known) if arm.speculative_tokens and not start else []
        self._time_scale = time_scale
        self._started = int(time.time())
        self._meters = Meters(arm.served_names[0])
        costs = (timed or StepCosts()).scaled(time_scale)
        self._engine = Engine(arm, classes, costs, self._meters, start=start, time_scale=time_scale)

    def application(self) -> web.Application:
        application = web.Application(middlewares=[_errors_as_json], client_max_size=MAX_BODY_BYTES)
        application.router.add_post("/v1/chat/completions", partial(self._answer, chat=True))
        application.router.add_post("/v1/completions", partial(self._answer, chat=False))
        application.router.add_get("/v1/models", self._models)
        application.router.add_get("/health", self._health)
        application.router.add_get("/version", self._version)
        application.router.add_get("/metrics", self._metrics)
        application.on_response_prepare.append(self._mark)
        application.cleanup_ctx.append(self._running_engine)
        return application

    async def _running_engine(self, _: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self._engine.run())
        yield
        task.cancel()
        await asyncio.wait([task])

    async def _mark(self, _: web.Request, response: web.StreamResponse) -> None:
        response.headers[MARK] = self._machine

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [self._card(name) for name in self._arm.served_names]}
        )

    def _card(self, name: str) -> Payload:
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "emulator",
            "root": self._arm.model,
            "parent": None,
            "max_model_len": self._arm.max_model_len,
            "metadata": {
                "emulated": self._machine,
                "time_scale": self._time_scale,
                "speculative_tokens": self._arm.speculative_tokens,
                "draft": self._arm.draft or None,
                "max_num_seqs": self._arm.max_num_seqs,
                "cautions": self._cautions,
                "classes_without_acceptance": self._made_up,
            },
        }

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def _metrics(self, _: web.Request) -> web.Response:
        page = self._meters.page(self._engine.gauges)
        return web.Response(body=page.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        try:
            body = json.loads(await request.read())
        except ValueError as error:
            raise RequestError(f"body: not valid JSON ({error})") from None
        generation = parse_generation(body, self._arm, chat=chat)
        id_ = f"{'chatcmpl' if chat else 'cmpl'}-{uuid4().hex}"
        dialect = Dialect(chat=chat, id=id_, model=generation.model, created=int(time.time()))
        async with aclosing(self._engine.generate(generation)) as outputs:
            if generation.stream:
                return await _streamed(request, generation, outputs, dialect)
            return await _whole(generation, outputs, dialect)


async def _whole(generation: Generation, outputs: AsyncIterator[Output], dialect: Dialect) -> web.Response:
    """Wait for the last token, then answer."""
    collected = [output async for output in outputs]
    payload = dialect.whole("".join(output.text for output in collected), collected[-1].finish_reason or "")
    payload["usage"] = usage(generation.prompt_tokens, sum(output.tokens for output in collected))
    return web.json_response(payload)


async def _streamed(
    request: web.Request, generation: Generation, outputs: AsyncIterator[Output], dialect: Dialect
) -> web.StreamResponse:
    """Send every step's tokens as they come; as in vLLM, chat's role chunk comes with the first token."""
    response = web.StreamResponse(headers={"Content-Type": f"{EVENT_STREAM}; charset=utf-8"})
    await response.prepare(request)
    sent = 0
    async for output in outputs:
        payloads = [(payload, sent) for payload in (dialect.opening() if output.first else ())]
        sent += output.tokens
        payloads.append((dialect.chunk(output.text, output.finish_reason), sent))
        for payload, count in payloads:
            if generation.continuous_usage:
                payload["usage"] = usage(generation.prompt_tokens, count)
            await response.write(event(payload))
    if generation.include_usage:
        await response.write(event({**dialect.closing(), "usage": usage(generation.prompt_tokens, sent)}))
    await response.write(DONE)
    return response


def _caution(arm: ServedArm, start: Start) -> str:
    k = arm.speculative_tokens
    emulated = "plain decoding is emulated with step times measured on one H200"
    if k:
        emulated = f"k = {k} is emulated with step times measured on one H200 and an acceptance that was set"
    return f"{emulated}; steps of this start take {start.factor:.3f} times the mean over starts"


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refused requests as vLLM's error object, unknown routes as its framework's `detail`."""
    try:
        return await handler(request)
    except RequestError as error:
        return web.json_response(error.payload, status=error.status)
    except web.HTTPException as error:
        return web.json_response({"detail": error.reason}, status=error.status)
