"""A search for the load up to which drafting pays, against servers whose step time is a known function of the requests
under way: one arm crosses the baseline at a known load, one never pays, one always does.

`python -m tests.benchmark.searching`, after simulated searches (`tests/benchmark/analyse/searches.py`), runs
`benchmark run --search` in a process of its own, closed and open loop, and holds what it says against the truth.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, cycle
from pathlib import Path
from typing import Any

from aiohttp import web

from benchmark.analyse.frontier import crossovers
from benchmark.measure import journal
from benchmark.measure.journal import RawRun
from benchmark.measure.records import REPEATED
from benchmark.plan import Load
from tests.benchmark.analyse.noise import shown
from tests.benchmark.analyse.searches import (
    DRAFTING,
    GRID,
    MOST_CELLS,
    PLAIN,
    crossing_of,
    figures,
    queued,
    sizes,
)
from tests.benchmark.conftest import plan_content
from tests.benchmark.endpoint import Endpoint, sse
from tests.conftest import ROOT

MOST_OF_GRID = 1.0
"""A search measures around a crossing, and high loads need many requests: it finds what a grid of these loads cannot show, within 10 %,
for no more than the grid costs."""
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
OBJECTIVE_S = 0.024
HOLDS_UP_TO = {"plain": 40.0, "crosses": 20.0, "never": None, "always": None}
"""Closed loop, up to which load an arm's time per token is below OBJECTIVE_S; half of eight prompts are enough to show it."""


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


@contextlib.contextmanager
def served(speed: float = 1.0) -> Iterator[str]:
    """The address of the servers, so many times as fast, in a process of their own that ends with the block."""
    command = [sys.executable, "-m", "tests.benchmark.searching", "--serve", str(speed)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as server:
        try:
            assert server.stdout
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


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
    parser.add_argument("--runs", type=int, default=1000, help="simulated searches of each kind; 0 for none")
    parser.add_argument(
        "--requests", type=int, default=64, help="of a cell, open loop eight times as many (default 64)"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.serve:
        with Loaded(options.serve) as server:
            print(f"http://127.0.0.1:{server.port}", flush=True)
            sys.stdin.read()
        return 0
    simulated = figures(options.runs, options.seed) if options.runs else ()
    return shown(chain(simulated, _measured(options.requests)))


def _measured(requests: int) -> Iterator[tuple[str, bool]]:
    for kind, between, count in (("concurrency", "1:64", requests), ("rate", "4:64", 8 * requests)):
        with served() as address, tempfile.TemporaryDirectory() as folder:
            option = "--search" if kind == "concurrency" else "--search-rate"
            content = plan(address, ("plain", "crosses", "never", "always"), count)
            wanted = ("--objective", f"tpot_s.p50={OBJECTIVE_S}")
            found, said = search(Path(folder), content, option, between, *wanted)
            if not found:
                yield said, False
                continue
            by_rate = queued(PLAIN, CROSSES)
            truth = CROSSING if kind == "concurrency" else crossing_of(by_rate, 1200, skip=200)
            yield f"\n{kind} {between}, {count} requests a cell, the truth is {truth:.1f}:\n{said}", True
            yield from _against(found, truth, kind)
            yield from _spent(journal.read(Path(folder)), kind)


def _against(found: dict[str, Any], truth: float, kind: str) -> Iterator[tuple[str, bool]]:
    rows = {one["treatment"]: one for one in found["crossovers"] if one["class"] is None}
    crosses, by_rate = rows["crosses"], kind == "rate"

    def near(load: float | None, truth: float) -> bool:
        return abs((load or math.inf) - truth) <= (0.1 * truth if by_rate else max(1.0, 0.1 * truth))

    told = f"{kind}: crosses {crosses['found']} at {crosses['load']} [{crosses['low']}, {crosses['high']}]"
    yield told, near(crosses["load"], truth) and crosses["precise"] and not crosses["more"]
    holds = crosses["low"] <= truth <= crosses["high"]
    yield f"{kind}: the interval {'holds' if holds else 'misses'} the truth, as one of 20 may", True
    for arm in ("never", "always"):
        yield f"{kind}: {arm} is {rows[arm]['found']}", rows[arm]["found"] == arm
    for arm in found["search"]["arms"]:
        held, told = (
            arm["objective"],
            f"{kind}: {arm['arm']} holds the objective: {arm['objective']['found']}",
        )
        if by_rate:
            yield f"{told} at {held['load']}", True
        elif (most := HOLDS_UP_TO[arm["arm"]]) is None:
            yield told, held["found"] == ("never" if arm["arm"] == "never" else "always")
        else:
            yield f"{told} at {held['load']}, the truth is {most:g}", near(held["load"], most)


def _spent(raw: RawRun, kind: str) -> Iterator[tuple[str, bool]]:
    """Cells, and measured requests over those of a grid of such cells: of the whole search, and of its cells until the crossings
    are known."""
    grid, cells = sum(sum(sizes(raw.plan.requests, load, kind != "rate")) for load in GRID), list(raw.visits)
    share = {cell: count / grid / len(raw.plan.arms) for cell, count in raw.visits.items()}
    *searched, (_, last) = cells
    known = next(count for count in range(3, len(cells) + 1) if _known(_until(raw, cells[:count])))
    yield f"{kind}: all crossings are known after {known} of the cells", True
    alone, repeated = sum(share[cell] for cell in searched), sum(share.values())
    told = f"{kind}: {len(searched)} cells with the objective's, a grid has {len(GRID)}"
    if kind == "concurrency":  # at a rate a cell has as many as arrive in its time
        told += f"; {alone:.0%} of the grid's requests, {repeated:.0%} with the first cell's repetition"
    few = kind == "rate" or repeated <= MOST_OF_GRID
    yield told, last == REPEATED and len(searched) <= MOST_CELLS and few


def _until(raw: RawRun, cells: list[tuple[Load, int]]) -> RawRun:
    def kept(record: Any) -> bool:
        return (Load(concurrency=record.concurrency, rate_per_s=record.rate_per_s), record.round) in cells

    return replace(raw, requests=tuple(filter(kept, raw.requests)), blocks=tuple(filter(kept, raw.blocks)))


def _known(raw: RawRun) -> bool:
    mix = [one for one in crossovers(raw) if one["class"] is None]
    return all(one["precise"] or one["found"] in ("always", "never") for one in mix)


if __name__ == "__main__":
    sys.exit(main())
