"""`python -m lab.emulator --listen 127.0.0.1:0 [--plan FILE] [--engine h200] -- vllm serve ...`

Serves until SIGTERM or SIGINT, then exits 0. Exit 2: the argv speculates in a way that is not emulated, or an option is wrong; 3: cannot listen.
The demonstration starts it, with options that it has checked.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from aiohttp import web

from benchmark.commands.report_command import host_and_port
from core.findings import Misuse, Outside, Refusal
from lab.emulator.endpoint import H200, TRN2, Endpoint
from lab.emulator.h200 import MID, started
from lab.emulator.published_steps import read
from lab.emulator.served_arm import ServedArm, parse_argv
from lab.emulator.texts import PromptClasses, load_classes

SHUTDOWN_S = 0.01
"""Grace for running answers at SIGTERM. Not 0, which aiohttp takes for no limit at all."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.emulator",
        description="Emulate one vLLM service, on Trainium2 unless said otherwise: real HTTP, real time, modelled timings.",
        epilog="After '--' comes the argv of the arm's container: vllm serve MODEL --max-num-seqs 4 ...",
    )
    parser.add_argument(
        "--listen", type=_address, required=True, metavar="HOST:PORT", help="port 0: any free one"
    )
    parser.add_argument(
        "--plan", type=Path, metavar="FILE", help="the benchmark's plan, for the prompts' classes"
    )
    parser.add_argument(
        "--caution",
        action="append",
        default=[],
        metavar="TEXT",
        help="say this against the timings in /v1/models",
    )
    parser.add_argument(
        "--timed", type=read, metavar="JSON", help="steps of the arm's own, instead of the reference's"
    )
    parser.add_argument(
        "--engine",
        choices=(TRN2, H200),
        default=TRN2,
        help="h200: prefills join decode steps, steps as measured on one H200, skewed pauses, another speed at each start",
    )
    parser.add_argument(
        "--acceptance",
        type=_shares,
        default=MID,
        metavar="SHARES",
        help="with --engine h200: share of steps in which draft 1, 2, ... is accepted (default "
        f"{','.join(map(str, MID))})",
    )
    parser.add_argument(
        "--start",
        type=int,
        metavar="NUMBER",
        help="with --engine h200: the same start again, instead of another one each time",
    )
    parser.add_argument("--time-scale", type=float, default=1.0, help=argparse.SUPPRESS)
    return parser


def _address(text: str) -> tuple[str, int]:
    try:
        return host_and_port(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _shares(text: str) -> tuple[float, ...]:
    """Falling shares between 0 and 1."""
    try:
        shares = tuple(map(float, text.split(",")))
    except ValueError:
        shares = ()
    if not shares or not all(0 <= b <= a <= 1 for a, b in pairwise((1.0, *shares))):
        raise argparse.ArgumentTypeError(
            f"{text!r} must be shares from 0 to 1 that do not rise, as 0.62,0.42"
        )
    return shares


def _say(arm: ServedArm, url: str, machine: str, time_scale: float) -> None:
    decoding = f"k={arm.speculative_tokens} with {arm.draft}" if arm.speculative_tokens else "plain decoding"
    scale = "" if time_scale == 1.0 else f", time scaled by {time_scale}"
    what = f"{arm.served_names[0]}, {decoding}, {arm.max_num_seqs} slots"
    print(f"emulated {machine}: {what}, {url} (timings modelled{scale})", file=sys.stderr, flush=True)


async def _serve(options: argparse.Namespace, arm: ServedArm, classes: PromptClasses) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    endpoint = Endpoint(
        arm,
        classes,
        time_scale=options.time_scale,
        cautions=options.caution,
        timed=options.timed,
        start=started(options.acceptance, options.start) if options.engine == H200 else None,
    )
    application = endpoint.application()
    runner = web.AppRunner(
        application, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S
    )
    await runner.setup()
    host, port = options.listen
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise Outside(f"--listen {host}:{port}: {error.strerror}; choose a free address") from None
        port = runner.addresses[0][1]
        _say(arm, f"http://{host}:{port}/v1", options.engine, options.time_scale)
        await stop.wait()
    finally:
        await runner.cleanup()


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    split = arguments.index("--") if "--" in arguments else len(arguments)
    try:
        options = _parser().parse_args(arguments[:split])
        if len(arguments) < split + 4:
            raise Misuse(
                "argv: nothing to emulate; after the options give -- vllm serve MODEL --max-num-seqs 4 ..."
            )
        arm = parse_argv(arguments[split + 1 :], heads=options.timed is not None)
        classes = load_classes(options.plan) if options.plan else PromptClasses()
        asyncio.run(_serve(options, arm, classes))
    except Refusal as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
