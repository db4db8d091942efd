"""A search for the load up to which drafting pays, against servers whose step time is a known function of the requests
under way: one arm crosses the baseline at a known load, one never pays, one always does.

`python -m tests.benchmark.searching` prints the figures of simulated searches (`tests/benchmark/analyse/searches.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import cycle
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.benchmark.analyse.noise import shown
from tests.benchmark.analyse.searches import (
    DRAFTING,
    PLAIN,
    figures,
)
from tests.benchmark.conftest import plan_content
from tests.benchmark.endpoint import Endpoint, in_a_process, serve, sse
from tests.conftest import ROOT

TOKENS = 37
"""The first, and then chunks of 1 to 8."""
SIZES = {"plain": (1,), **dict.fromkeys(("crosses", "never", "always", "breaks", "dead"), tuple(range(1, 9)))}
CROSSES = DRAFTING["from 20"]
_MEAN = 4.5
BREAKS_AT = 24
STEP_S: dict[str, Callable[[int], float]] = {
    "plain": PLAIN.step_s,
    "crosses": CROSSES.step_s,
    "never": lambda n: _MEAN * (0.024 + 0.0003 * n),
    "always": lambda n: _MEAN * (0.012 + 0.00005 * n),
    "breaks": lambda n: _MEAN * (0.012 + 0.0001 * n),
    "dead": lambda n: 0.0,
}
"""By arm, seconds of a decode step with n requests under way: `crosses` meets `plain` at 16, `breaks` answers 503 from
BREAKS_AT on, and `dead` always."""
CROSSING = 16.0


class Loaded(Endpoint):
    """The arms, each with its own requests under way."""

    def __init__(self, speed: float = 1.0) -> None:
        super().__init__({})
        self._speed = speed
        self._under_way = dict.fromkeys(STEP_S, 0)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        arm = request.match_info["arm"]
        if self._under_way[arm] >= {"breaks": BREAKS_AT, "dead": 0}.get(arm, math.inf):
            raise web.HTTPServiceUnavailable(text="full")
        now = asyncio.get_running_loop().time
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self._under_way[arm] += 1
        try:
            due = now() + PLAIN.first_s / self._speed
            await response.prepare(request)
            for sent, size in chunks(arm):
                await asyncio.sleep(due - now())
                await response.write(_event({"text": "w " * size}, sent + size))
                due += STEP_S[arm](self._under_way[arm]) / self._speed
            await response.write(_event(None, TOKENS) + b"data: [DONE]\n\n")
        finally:
            self._under_way[arm] -= 1
        return response


def chunks(arm: str) -> Iterator[tuple[int, int]]:
    """Tokens sent before each chunk, and in it."""
    sent, turns = 0, cycle(SIZES[arm])
    while sent < TOKENS:
        size = min(next(turns) if sent else 1, TOKENS - sent)
        yield sent, size
        sent += size


def _event(choice: dict[str, Any] | None, done: int) -> bytes:
    choices = [] if choice is None else [{"index": 0, "finish_reason": None, **choice}]
    return sse({"choices": choices, "usage": {"prompt_tokens": 9, "completion_tokens": done}})


def served(speed: float = 1.0) -> AbstractContextManager[str]:
    """The address of the servers, so many times as fast."""
    return in_a_process("tests.benchmark.searching", "--serve", speed)


def plan(address: str, arms: tuple[str, ...], requests: int, **more: Any) -> dict[str, Any]:
    """A plan of these arms, the first of them the baseline."""
    each = [
        {
            **{"name": arm, "url": f"{address}/{arm}/v1", "usd_per_hour": 10.0},
            **{"speculative_tokens": max(SIZES[arm]) - 1, "max_tokens_per_step": max(SIZES[arm])},
        }
        for arm in arms
    ]
    prompts = [{"id": f"p{i}", "class": "chat", "prompt": f"prompt {i}"} for i in range(8)]
    known = {"experiment": "known", "baseline": arms[0], "arms": each, "prompts": prompts}
    sizes = {"concurrency": [1], "requests": requests, "warmup": 2, "max_tokens": TOKENS}
    return plan_content(**(known | sizes | more))


def search(folder: Path, content: dict[str, Any], *options: str) -> tuple[dict[str, Any], str]:
    """The summary of `benchmark run` with these options, and what it said."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "given.json").write_text(json.dumps(content))
    command = [sys.executable, "-m", "benchmark", "run", "--plan", str(folder / "given.json")]
    done = subprocess.run(
        [*command, "--out", str(folder), *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if not (folder / "summary.json").exists():
        return {}, done.stderr
    return json.loads((folder / "summary.json").read_text()), done.stdout + done.stderr


def main() -> int:
    """Print the figures; 1 when a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--runs", type=int, default=1000, help="simulated searches of each kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.serve:
        serve(Loaded(options.serve))
        return 0
    return shown(figures(options.runs, options.seed))


if __name__ == "__main__":
    sys.exit(main())
