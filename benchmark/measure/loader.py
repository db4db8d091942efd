"""Loading an arm with a block of requests: each is written down as it ends, and said to people.

Around a block the server's own counters of tokens and drafts are read. vLLM counts per engine and model since its
start, so the difference over a block is the block's, as long as nobody else asks the server meanwhile.
https://docs.vllm.ai/en/latest/usage/metrics.html
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from typing import TextIO

import aiohttp

from benchmark.measure.client import Failure, ask, read_at_most, request_body, request_path
from benchmark.measure.journal import Journal
from benchmark.measure.records import (
    COUNTED_ACCEPTED,
    COUNTED_DRAFTED,
    COUNTED_DRAFTS,
    COUNTED_GENERATED,
    COUNTED_PER_POSITION,
    LATE_S,
    BlockRecord,
    RequestRecord,
)
from benchmark.measure.schedule import Block, Pair, threads
from benchmark.measure.stream import Output, StreamFault
from benchmark.plan import Plan

OF_DRAFTS = (COUNTED_DRAFTS, COUNTED_DRAFTED, COUNTED_ACCEPTED)
_COUNTED = (COUNTED_GENERATED, *OF_DRAFTS, COUNTED_PER_POSITION)
_LINE = re.compile(r"^(?P<name>[^\s{]+)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_POSITION = re.compile(r'(?:^|,)\s*position="([0-9]{1,3})"')
_TIMEOUT = aiohttp.ClientTimeout(total=5)
_MOST_BYTES = 16 << 20
"""Of a server's metrics."""
_WATCH_S = 0.2
"""Seldom enough to cost nothing beside the requests themselves."""
_STAGGER_S = 0.001
"""Between the first requests of a block: opening many connections in one instant, a client would measure its
own queue."""
_DECIMALS = 6
"""Times are written down to the microsecond."""
_BACK = "\r\x1b[K"
"""Takes a terminal back to the start of an empty line."""


@dataclass
class _UnderWay:
    """A block that is being loaded."""

    title: str
    began: float
    ok: int = 0
    failed: int = 0

    def __str__(self) -> str:
        return f"{self.title}: {self.ok} ok, {self.failed} failed, {time.monotonic() - self.began:.1f} s"


class Progress:
    """Where a run stands, for people: a line per block in a log, one moving line on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._moving = stream.isatty()
        self._blocks: int | None = 0
        self._rounds = False
        self._begun = 0
        self._under_way: dict[tuple[str, str], _UnderWay] = {}

    def expect(self, blocks: int | None, *, rounds: bool = False) -> None:
        """Say how many blocks there will be, None for as many as fit, and whether rounds are worth naming."""
        self._blocks, self._rounds = blocks, rounds

    def begin(self, block: Block) -> None:
        """A block starts."""
        self._begun += 1
        count = f"[{self._begun}]" if self._blocks is None else f"[{self._begun}/{self._blocks}]"
        round_ = f"round {block.round} " if self._rounds else ""
        measured = f"{round_}{block.class_} {block.load} {block.arm}"
        title = f"{count} {f'warm-up {block.arm}' if block.phase == 'warmup' else measured}"
        self._under_way[block.arm, block.class_] = _UnderWay(title, time.monotonic())

    def count(self, block: Block, *, failed: bool) -> None:
        """One request of the block has ended."""
        under_way = self._under_way[block.arm, block.class_]
        under_way.failed += failed
        under_way.ok += not failed
        if self._moving:
            self._stream.write(_BACK + " | ".join(map(str, self._under_way.values())))
            self._stream.flush()

    def end(self, block: Block, *, lag_s: float) -> None:
        """The block has ended; the client's event loop was `lag_s` late at the worst."""
        self.tell(str(self._under_way.pop((block.arm, block.class_))))
        if lag_s > LATE_S and block.phase == "measured":
            self.warn(
                f"this client was up to {lag_s * 1000:.0f} ms late in that block, and its times may be too long by as "
                "much; give it a core of its own or fewer requests at once"
            )

    def tell(self, text: str) -> None:
        """Say something, on a line of its own."""
        self._stream.write(f"{_BACK if self._moving else ''}{text}\n")
        self._stream.flush()

    def warn(self, text: str) -> None:
        """The same, as a warning."""
        self.tell(f"warning: {text}")


@dataclass
class Standing:
    """One arm in this sitting."""

    ended: int = 0
    """Measured requests, failed ones included."""
    failed: int = 0
    loaded_s: float = 0.0
    """How long it was loaded with measured requests."""
    rest_until: float = 0.0
    """On the monotonic clock: when it may be asked again after it refused."""
    counts: bool = True
    """Whether its server has counters, as far as is known."""
    warmup: list[RequestRecord] = field(default_factory=list)
    warmup_block: list[BlockRecord] = field(default_factory=list)


@dataclass(frozen=True)
class Loader:
    """Carries out blocks against the arms of one run."""

    plan: Plan
    run: str
    http: aiohttp.ClientSession
    book: Journal
    progress: Progress
    standings: dict[str, Standing]
    """By arm."""
    said: dict[str, str] = field(default_factory=dict)
    """By pair of a conversation, the answer that the turn after it is given: the first that came from any arm, so that all
    arms are asked the same."""

    async def carry_out(self, block: Block) -> None:
        """Load the block's arm until its pairs are used up. Raises StorageError."""
        self.progress.begin(block)
        before = await self._counters(block.arm)
        began_unix_s, began = time.time(), time.perf_counter()
        with closing(LagWatch()) as lag:
            await self._load(block)
        took_s = time.perf_counter() - began
        record = BlockRecord(
            run=self.run,
            arm=block.arm,
            class_=block.class_,
            concurrency=block.load.concurrency,
            rate_per_s=block.load.rate_per_s,
            round=block.round,
            started_unix_s=round(began_unix_s, 3),
            duration_s=round(took_s, _DECIMALS),
            client_lag_s=round(lag.worst_s, _DECIMALS),
            counters_before=before,
            counters_after=await self._counters(block.arm),
        )
        standing = self.standings[block.arm]
        if block.phase == "measured":
            self.book.append(record)
            standing.loaded_s += record.duration_s
        else:
            standing.warmup_block.append(record)
        self.progress.end(block, lag_s=lag.worst_s)

    async def _load(self, block: Block) -> None:
        """Send the block's requests: so many at a time, or each when it is due, however many are still in flight. The
        turns of a conversation wait for each other."""
        async with together() as tasks:
            found = threads(block.pairs)
            if block.load.concurrency is not None:
                waiting = iter(found)
                for index in range(min(block.load.concurrency, len(found))):
                    tasks.create_task(self._slot(block, waiting, index * _STAGGER_S))
                return
            now = asyncio.get_running_loop().time
            began, due_s = now(), 0.0
            for thread in found:
                if thread[0].after is None:
                    due_s += thread[0].gap_s or 0.0
                await asyncio.sleep(began + due_s - now())
                tasks.create_task(self._thread(block, thread, began, due_s))

    async def _slot(self, block: Block, waiting: Iterator[list[Pair]], delay_s: float) -> None:
        """One request after another. A server that refuses is left alone for a while: one that restarts is not
        to meet, and fail, all the requests of a run within a second."""
        await asyncio.sleep(delay_s)
        for first, *later in waiting:
            for pair in (first, *later):
                await asyncio.sleep(pair.prompt.think_s if pair is not first else 0)
                await asyncio.sleep(self.standings[block.arm].rest_until - time.monotonic())
                await self._one(block, pair)

    async def _thread(self, block: Block, turns: list[Pair], began: float, due_s: float) -> None:
        """An arrival, and the turns that follow it: each when it is due and the answer before it has been read."""
        now = asyncio.get_running_loop().time
        first_s = due_s - (turns[0].gap_s or 0.0 if turns[0].after else 0.0)
        for turn in turns:
            if turn is not turns[0]:
                due_s = max(first_s + (turn.gap_s or 0.0), now() - began + turn.prompt.think_s)
                await asyncio.sleep(began + due_s - now())
            await self._one(block, turn, due_s, began)

    async def _one(self, block: Block, pair: Pair, due_s: float | None = None, began: float = 0.0) -> None:
        """Send one request and record it. What was due `due_s` after `began` counts its times from then: how late the
        client was is part of what a user would have waited."""
        url = self.plan.arm(block.arm).url + request_path(pair)
        asked = RequestRecord(
            run=self.run,
            arm=block.arm,
            class_=pair.class_,
            concurrency=block.load.concurrency,
            prompt_id=pair.prompt.id,
            nonce=pair.nonce,
            pair_id=pair.id,
            phase=block.phase,
            started_unix_s=round(time.time(), 3),
            round=block.round,
            rate_per_s=block.load.rate_per_s,
            scheduled_s=None if due_s is None else round(due_s, _DECIMALS),
            forced_length=self.plan.ignore_eos,
            api="completions" if pair.prompt.messages is None else "chat",
        )
        result: Output | Failure
        try:
            body = request_body(self.plan, pair, self.said)
        except LookupError:
            result = Failure("no_turn_before", "there is no answer to the turn before it")
        else:
            late_s = 0.0 if due_s is None else max(0.0, asyncio.get_running_loop().time() - began - due_s)
            most = self.plan.most_tokens(pair.prompt)
            result = await ask(self.http, url, body, max_tokens=most, late_s=late_s)
        if isinstance(result, Output) and pair.prompt.conversation and block.phase == "measured":
            self.said.setdefault(pair.id, result.text)
        record = completed(asked, result)
        self.book.append(record)
        failed = isinstance(result, Failure)
        self.progress.count(block, failed=failed)
        standing = self.standings[block.arm]
        if block.phase == "measured":
            standing.ended += 1
            standing.failed += failed
        else:
            standing.warmup.append(record)
        if isinstance(result, Failure) and result.pause_s:
            standing.rest_until = time.monotonic() + result.pause_s

    async def _counters(self, arm: str) -> dict[str, float] | None:
        """What the arm's server counts; None where it cannot be reached, and for good where it has no counters."""
        standing, url = self.standings[arm], metrics_url(self.plan.arm(arm).url)
        if not standing.counts:
            return None
        content = b""
        try:
            async with self.http.get(url, timeout=_TIMEOUT, allow_redirects=False) as response:
                if response.status == 200:
                    content = await read_at_most(response, _MOST_BYTES)
        except (aiohttp.ClientConnectionError, ConnectionError):
            return None
        except StreamFault as fault:
            self.progress.warn(f"{url}: {fault.name}: {fault}; its counters are left out")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            pass
        found = counters_in(content.decode(errors="replace"))
        standing.counts = found is not None
        return found


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """Tasks of which the first failure ends all, raised as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except ExceptionGroup as group:
        raise group.exceptions[0] from group


class LagWatch:
    """How late the client's own event loop is: what it adds to each time that it takes. Sets an alarm again and again
    until it is closed, and keeps by how much the worst one was late."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._set()

    def close(self) -> None:
        self._alarm.cancel()

    def _set(self) -> None:
        due_s = self._loop.time() + _WATCH_S
        self._alarm = self._loop.call_at(due_s, self._ring, due_s)

    def _ring(self, due_s: float) -> None:
        self.worst_s = max(self.worst_s, self._loop.time() - due_s)
        self._set()


def completed(asked: RequestRecord, result: Output | Failure) -> RequestRecord:
    """`asked` with what came of it: numbers or a named error, never both."""
    if isinstance(result, Failure):
        return replace(asked, error=result.name, message=result.message)
    chunk_s = tuple(round(at_s, _DECIMALS) for at_s in result.chunk_s)
    digest = hashlib.sha256(result.text.encode(errors="surrogatepass")).hexdigest()
    said = vars(result) | {"chunk_s": chunk_s}
    return replace(asked, **said, ttft_s=chunk_s[0], e2e_s=chunk_s[-1], text_sha256=digest)


def metrics_url(base_url: str) -> str:
    """Where vLLM shows its metrics: beside /v1, not below it."""
    return base_url.removesuffix("/v1") + "/metrics"


def counters_in(text: str) -> dict[str, float] | None:
    """The counters in Prometheus' text format, summed over label sets; None without any."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith(_COUNTED) or (match := _LINE.match(line)) is None:
            continue
        name = match["name"]
        if name == COUNTED_PER_POSITION and (position := _POSITION.search(match["labels"] or "")):
            name = f"{name}/{position[1]}"
        elif name not in (COUNTED_GENERATED, *OF_DRAFTS):
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if value >= 0 and math.isfinite(value):
            found[name] = found.get(name, 0.0) + value
    return found or None
