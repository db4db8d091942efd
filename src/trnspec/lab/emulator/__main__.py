"""`python -m trnspec.lab.emulator --listen 127.0.0.1:0 [--plan FILE] [--of FILE ARM] -- vllm serve ...`

Serves until SIGTERM or SIGINT, then exits 0. Exit 2: the argv speculates in a way that is not emulated, or an option is wrong;
3: cannot listen. The demonstration starts it, with options that it has checked. It serves vLLM's OpenAI endpoints over an `Engine`. Its
list of models says that it is emulated, and has the cautions about its timings.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from uuid import uuid4

import click
from aiohttp import web

from trnspec.core.command_line import carried_out
from trnspec.core.findings import Misuse, Outside
from trnspec.experiment import load
from trnspec.lab.emulator.engine import Engine
from trnspec.lab.emulator.payloads import (
    DONE,
    Payload,
    PayloadFormat,
    PromptClasses,
    RequestError,
    ServedArm,
    event,
    load_classes,
    parse_argv,
    parse_generation,
    usage,
)
from trnspec.lab.emulator.timings import CONDITIONAL_ACCEPTANCE, StepCosts, Timed, emulated

VERSION = "0.9.1+emulated"
MAX_BODY_BYTES = 16 * 2**20


class EmulatedEndpoint:
    """The HTTP server of one emulated arm."""

    def __init__(
        self,
        arm: ServedArm,
        classes: PromptClasses,
        *,
        time_scale: float = 1.0,
        cautions: Sequence[str] = (),
        timed: Timed | None = None,
    ) -> None:
        self._arm = arm
        known = timed.known if timed else tuple(CONDITIONAL_ACCEPTANCE)
        scaled = [] if time_scale == 1.0 else [f"every step takes {time_scale} of its time"]
        self._metadata = {
            "cautions": [*cautions, *scaled],
            "classes_without_acceptance": classes.beyond(known) if arm.speculative_tokens else [],
        }
        self._started = int(time.time())
        costs = timed or StepCosts()
        self._engine = Engine(arm, classes, costs, time_scale=time_scale)

    def application(self) -> web.Application:
        """Return the application, whose engine runs as long as it does."""
        application = web.Application(client_max_size=MAX_BODY_BYTES)
        application.router.add_post("/v1/chat/completions", partial(self._answer, chat=True))
        application.router.add_post("/v1/completions", partial(self._answer, chat=False))
        application.router.add_get("/v1/models", self._models)
        application.router.add_get("/health", self._health)
        application.router.add_get("/version", self._version)
        application.router.add_get("/metrics", self._metrics)
        application.cleanup_ctx.append(self._running_engine)
        return application

    async def _running_engine(self, _: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self._engine.run())
        yield
        task.cancel()
        await asyncio.wait([task])

    async def _models(self, _: web.Request) -> web.Response:
        card = {
            "object": "model",
            "created": self._started,
            "owned_by": "emulator",
            "root": self._arm.model,
            "parent": None,
            "max_model_len": self._arm.max_model_len,
            "metadata": self._metadata,
        }
        cards = [{"id": name, **card} for name in self._arm.served_names]
        return web.json_response({"object": "list", "data": cards})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def _metrics(self, _: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._engine.metrics().encode(), headers=headers)

    async def _answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        """Stream every step's tokens as they come; as in vLLM, chat's role chunk comes with the first token."""
        try:
            generation = parse_generation(await request.read(), self._arm, chat=chat)
        except RequestError as error:
            return web.json_response(error.payload, status=error.status)
        id_ = f"{'chatcmpl' if chat else 'cmpl'}-{uuid4().hex}"
        dialect = PayloadFormat(
            chat=chat, id=id_, model=generation.model or self._arm.served_names[0], created=int(time.time())
        )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        options, prompt = generation.stream_options, generation.prompt_tokens
        at_end = bool(options and options.include_usage)
        each = bool(options and options.include_usage and options.continuous_usage_stats)
        sent = 0

        async def write(payload: Payload, *, used: bool) -> None:
            await response.write(event({**payload, "usage": usage(prompt, sent)} if used else payload))

        async with aclosing(self._engine.generate(generation)) as outputs:
            await response.prepare(request)
            async for output in outputs:
                if output.first:
                    for payload in dialect.opening():
                        await write(payload, used=each)
                sent += output.tokens
                await write(dialect.chunk(output.text, output.finish_reason), used=each)
        if at_end:
            await write(dialect.closing(), used=True)
        await response.write(DONE)
        return response


SHUTDOWN_S = 0.01
"""Grace for running answers at SIGTERM. Not 0, which aiohttp takes for no limit at all."""


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not int(port) < 65536:
        raise click.BadParameter(f"{text!r} is not HOST:PORT, as in 127.0.0.1:8001")
    return host, int(port)


@click.command()
@click.option("--listen", type=_address, required=True, metavar="HOST:PORT", help="Port 0: any free one.")
@click.option(
    "--plan",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The benchmark's plan, for the prompts' classes.",
)
@click.option(
    "--of",
    type=(click.Path(path_type=Path), str),
    metavar="FILE ARM",
    help="The experiment and its arm, for the arm's own step times and the cautions about them.",
)
@click.option("--time-scale", type=float, default=1.0, hidden=True)
@click.argument("argv", nargs=-1, metavar="-- vllm serve MODEL ...")
def command(
    listen: tuple[str, int],
    plan: Path | None,
    of: tuple[Path, str] | None,
    time_scale: float,
    argv: tuple[str, ...],
) -> int:
    """Emulate one vLLM service on Trainium2: real HTTP, real time, modelled timings."""
    if len(argv) < 3:
        raise Misuse(
            "argv: nothing to emulate; after the options give -- vllm serve MODEL --max-num-seqs 4 ..."
        )
    known = emulated(load(of[0]))[of[1]] if of else None
    timed = known.timed if known else None
    arm = parse_argv(argv, heads=timed is not None)
    endpoint = EmulatedEndpoint(
        arm,
        load_classes(plan) if plan else PromptClasses(),
        time_scale=time_scale,
        cautions=[known.caution] if known and known.caution else [],
        timed=timed,
    )
    k, slots = arm.speculative_tokens, arm.max_num_seqs
    what = f"{arm.served_names[0]}, {f'k={k} with {arm.draft}' if k else 'plain decoding'}, {slots} slots"
    scale = "" if time_scale == 1.0 else f", time scaled by {time_scale}"
    first_line = f"emulated trn2: {what}, http://{{}}:{{}}/v1 (timings modelled{scale})"
    asyncio.run(_serve(endpoint.application(), *listen, first_line))
    return 0


async def _serve(application: web.Application, host: str, port: int, first_line: str) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = web.AppRunner(
        application, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise Outside(f"--listen {host}:{port}: {error.strerror}; choose a free address") from None
        print(first_line.format(host, runner.addresses[0][1]), file=sys.stderr, flush=True)
        await stop.wait()
    finally:
        await runner.cleanup()


def main(arguments: Sequence[str] | None = None) -> int:
    return carried_out(command, arguments, prog="python -m trnspec.lab.emulator")


if __name__ == "__main__":
    sys.exit(main())
