"""`python -m lab.emulator --listen 127.0.0.1:0 [--plan FILE] [--engine h200] -- vllm serve ...`

Serves until SIGTERM or SIGINT, then exits 0. Exit 2: the argv speculates in a way that is not emulated, or an option is wrong;
3: cannot listen. The demonstration starts it, with options that it has checked.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import click
from aiohttp import web

from core.command_line import carried_out
from core.findings import Misuse, Outside
from lab.command import PATH
from lab.emulator.endpoint import H200, TRN2, EmulatedEndpoint
from lab.emulator.h200 import MID, started
from lab.emulator.payloads import parse_argv
from lab.emulator.texts import PromptClasses, load_classes
from lab.emulator.timings import read

SHUTDOWN_S = 0.01
"""Grace for running answers at SIGTERM. Not 0, which aiohttp takes for no limit at all."""
_ENGINE = (
    "h200: prefills join decode steps, steps as on one H200, skewed pauses, another speed at each start."
)
_ACCEPTANCE = "With --engine h200: share of steps in which draft 1, 2, ... is accepted."
_START = "With --engine h200: the same start again, instead of another one each time."


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not int(port) < 65536:
        raise click.BadParameter(f"{text!r} is not HOST:PORT, as in 127.0.0.1:8001")
    return host, int(port)


def _shares(text: str) -> tuple[float, ...]:
    """Falling shares between 0 and 1."""
    try:
        shares = tuple(map(float, text.split(",")))
    except ValueError:
        shares = ()
    if not shares or not all(0 <= b <= a <= 1 for a, b in pairwise((1.0, *shares))):
        raise click.BadParameter(f"{text!r} must be shares from 0 to 1 that do not rise, as 0.62,0.42")
    return shares


@click.command()
@click.option("--listen", type=_address, required=True, metavar="HOST:PORT", help="Port 0: any free one.")
@click.option("--plan", type=PATH, metavar="FILE", help="The benchmark's plan, for the prompts' classes.")
@click.option("--caution", multiple=True, metavar="TEXT", help="Say this against the timings in /v1/models.")
@click.option("--timed", metavar="JSON", help="Steps of the arm's own, instead of the reference's.")
@click.option("--engine", type=click.Choice([TRN2, H200]), default=TRN2, help=_ENGINE)
@click.option(
    "--acceptance", type=_shares, default=",".join(map(str, MID)), metavar="SHARES", help=_ACCEPTANCE
)
@click.option("--start", type=int, metavar="NUMBER", help=_START)
@click.option("--time-scale", type=float, default=1.0, hidden=True)
@click.argument("argv", nargs=-1, metavar="-- vllm serve MODEL ...")
def command(
    listen: tuple[str, int],
    plan: Path | None,
    caution: tuple[str, ...],
    timed: str | None,
    engine: str,
    acceptance: tuple[float, ...],
    start: int | None,
    time_scale: float,
    argv: tuple[str, ...],
) -> int:
    """Emulate one vLLM service, on Trainium2 unless said otherwise: real HTTP, real time, modelled timings."""
    if len(argv) < 3:
        raise Misuse(
            "argv: nothing to emulate; after the options give -- vllm serve MODEL --max-num-seqs 4 ..."
        )
    arm = parse_argv(argv, heads=timed is not None)
    endpoint = EmulatedEndpoint(
        arm,
        load_classes(plan) if plan else PromptClasses(),
        time_scale=time_scale,
        cautions=caution,
        timed=read(timed) if timed else None,
        start=started(acceptance, start) if engine == H200 else None,
    )
    k, slots = arm.speculative_tokens, arm.max_num_seqs
    what = f"{arm.served_names[0]}, {f'k={k} with {arm.draft}' if k else 'plain decoding'}, {slots} slots"
    scale = "" if time_scale == 1.0 else f", time scaled by {time_scale}"
    first_line = f"emulated {engine}: {what}, http://{{}}:{{}}/v1 (timings modelled{scale})"
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
    """`python -m lab.emulator`."""
    return carried_out(command, arguments, prog="python -m lab.emulator")


if __name__ == "__main__":
    sys.exit(main())
