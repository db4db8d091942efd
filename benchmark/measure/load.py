"""Loading an arm with a block of requests, and writing down each of them as it ends."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

import aiohttp

from benchmark.measure.body import request_body, request_path
from benchmark.measure.client import Failure, ask
from benchmark.measure.counters import CounterReader
from benchmark.measure.journal import Journal
from benchmark.measure.lag import LagWatch
from benchmark.measure.progress import Progress
from benchmark.measure.records import BlockRecord, RequestRecord
from benchmark.measure.schedule import Block, Pair
from benchmark.measure.stream import Output
from benchmark.plan import Plan

_STAGGER_S = 0.001
"""Between the first requests of a block: opening many connections in one instant, a client would measure its
own queue."""
_DECIMALS = 6
"""Times are written down to the microsecond."""


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
    warmup: list[RequestRecord] = field(default_factory=list)
    warmup_block: list[BlockRecord] = field(default_factory=list)


@dataclass(frozen=True)
class Loader:
    """Carries out blocks against the arms of one run."""

    plan: Plan
    run: str
    http: aiohttp.ClientSession
    book: Journal
    counters: CounterReader
    progress: Progress
    standings: dict[str, Standing]
    """By arm."""

    async def carry_out(self, block: Block) -> None:
        """Load the block's arm until its pairs are used up. Raises StorageError."""
        self.progress.begin(block)
        url = self.plan.arm(block.arm).url
        measured = block.phase == "measured"
        before = await self.counters.read(url)
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
            counters_after=await self.counters.read(url),
        )
        if measured:
            self.book.append(record)
            self.standings[block.arm].loaded_s += record.duration_s
        else:
            self.standings[block.arm].warmup_block.append(record)
        self.progress.end(block, lag_s=lag.worst_s)

    async def _load(self, block: Block) -> None:
        """Send the block's requests: so many at a time, or each when it is due."""
        try:
            async with asyncio.TaskGroup() as tasks:
                if block.load.concurrency is None:
                    await self._arrivals(block, tasks)
                    return
                waiting = iter(block.pairs)
                for index in range(min(block.load.concurrency, len(block.pairs))):
                    tasks.create_task(self._slot(block, waiting, index * _STAGGER_S))
        except ExceptionGroup as group:
            raise group.exceptions[0] from group

    async def _slot(self, block: Block, waiting: Iterator[Pair], delay_s: float) -> None:
        """One request after another. A server that refuses is left alone for a while: one that restarts is not
        to meet, and fail, all the requests of a run within a second."""
        await asyncio.sleep(delay_s)
        for pair in waiting:
            await asyncio.sleep(self.standings[block.arm].rest_until - time.monotonic())
            await self._one(block, pair)

    async def _arrivals(self, block: Block, tasks: asyncio.TaskGroup) -> None:
        """Send each request when it is due, however many are still in flight."""
        now = asyncio.get_running_loop().time
        began = now()
        due_s = 0.0
        for pair in block.pairs:
            due_s += pair.gap_s or 0.0
            await asyncio.sleep(began + due_s - now())
            tasks.create_task(self._one(block, pair, scheduled_s=round(due_s, _DECIMALS)))

    async def _one(self, block: Block, pair: Pair, scheduled_s: float | None = None) -> None:
        """Send one request and record it."""
        url = self.plan.arm(block.arm).url + request_path(pair)
        body = request_body(self.plan, pair)
        record = RequestRecord(
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
            scheduled_s=scheduled_s,
            forced_length=self.plan.ignore_eos,
            api="completions" if pair.prompt.messages is None else "chat",
        )
        result = await ask(self.http, url, body, max_tokens=self.plan.most_tokens(pair.prompt))
        ended = completed(record, result)
        self.book.append(ended)
        failed = isinstance(result, Failure)
        self.progress.count(block, failed=failed)
        standing = self.standings[block.arm]
        if block.phase == "measured":
            standing.ended += 1
            standing.failed += failed
        else:
            standing.warmup.append(ended)
        if isinstance(result, Failure) and result.pause_s:
            standing.rest_until = time.monotonic() + result.pause_s


def completed(record: RequestRecord, result: Output | Failure) -> RequestRecord:
    """`record` with what came of it: numbers or a named error, never both."""
    if isinstance(result, Failure):
        return replace(record, error=result.name, message=result.message)
    chunk_s = tuple(round(at_s, _DECIMALS) for at_s in result.chunk_s)
    digest = hashlib.sha256(result.text.encode(errors="surrogatepass")).hexdigest()
    said = vars(result) | {"chunk_s": chunk_s}
    return replace(record, **said, ttft_s=chunk_s[0], e2e_s=chunk_s[-1], text_sha256=digest)
