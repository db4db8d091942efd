"""`python -m benchmark.selftest`: the known-schedule server by itself, for any client. Prints its address."""

from __future__ import annotations

import argparse
import asyncio
import sys

from aiohttp import web

from benchmark.selftest.server import KnownSchedule
from benchmark.selftest.timetable import SIZES, Timetable


def main() -> int:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m benchmark.selftest", description=__doc__)
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
