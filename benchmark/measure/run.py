"""A whole run: check the arms, warm them up, work through the blocks, write down every request.

Started again on the same folder, it goes on where it stopped: what the journal holds is not asked again.
"""

from __future__ import annotations

import asyncio
import hashlib
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from benchmark import __version__
from benchmark.errors import ResultsError
from benchmark.measure import journal
from benchmark.measure.body import request_body, request_path
from benchmark.measure.client import Failure, ask, session
from benchmark.measure.endpoints import owners, provenance
from benchmark.measure.journal import Journal
from benchmark.measure.progress import Progress
from benchmark.measure.records import RequestRecord, RunRecord
from benchmark.measure.schedule import Block, Pair, measured_blocks, warmup_blocks
from benchmark.measure.stream import Output
from benchmark.plan import Plan

_STAGGER_S = 0.001
"""Between the first requests of a block: opening many connections in one instant, a client would measure its
own queue."""
_DECIMALS = 6
"""Times are written down to the microsecond."""


async def run(plan: Plan, *, out: Path, timeout_s: float, progress: Progress) -> None:
    """Carry out what `out` does not hold yet of `plan`.

    Raises ResultsError (another plan's folder), EndpointError, StorageError. Requests in flight when the
    task is cancelled are not recorded.
    """
    before = _earlier(plan, out)
    todo = _remaining(measured_blocks(plan), before)
    if not todo:
        return
    async with session(timeout_s) as http:
        sitting = await _sitting(plan, http, timeout_s, before)
        with Journal(out) as book:
            book.append(sitting)
            blocks = (*warmup_blocks(plan, sitting.sitting), *todo)
            progress.expect(len(blocks))
            for block in blocks:
                progress.begin(block)
                await _Load(plan, http, book, progress, sitting.run).carry_out(block)
                progress.end()


def _earlier(plan: Plan, out: Path) -> journal.RawRun | None:
    """What `out` holds, or None. Raises ResultsError where it belongs to another plan."""
    if not journal.exists(out):
        return None
    before = journal.read(out)
    if before.sittings[0].plan_sha256 != plan.sha256():
        raise ResultsError(
            f"{out}: holds run {before.sittings[0].run} of another plan or other options; "
            "choose another --out, or repeat the command that began it"
        )
    return before


def _remaining(blocks: tuple[Block, ...], before: journal.RawRun | None) -> tuple[Block, ...]:
    recorded = before.requests if before else ()
    done = {(record.pair_id, record.arm) for record in recorded}
    left = (
        replace(block, pairs=tuple(pair for pair in block.pairs if (pair.id, block.arm) not in done))
        for block in blocks
    )
    return tuple(block for block in left if block.pairs)


async def _sitting(
    plan: Plan, http: aiohttp.ClientSession, timeout_s: float, before: journal.RawRun | None
) -> RunRecord:
    """The record that opens this sitting. Raises EndpointError, and ResultsError for mixed provenance."""
    owned_by = await owners(http, plan)
    origin = provenance(owned_by)
    if before and before.sittings[0].provenance != origin:
        raise ResultsError(
            f"run {before.sittings[0].run}: its requests are {before.sittings[0].provenance}, the arms are "
            f"now {origin}; choose another --out"
        )
    now = time.time()
    identity = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{plan.sha256()[:8]}"
    return RunRecord(
        run=before.sittings[0].run if before else identity,
        sitting=len(before.sittings) + 1 if before else 1,
        started_unix_s=round(now, 3),
        provenance=origin,
        plan=plan.to_dict(),
        plan_sha256=plan.sha256(),
        owned_by=owned_by,
        timeout_s=timeout_s,
        client=__version__,
        python=platform.python_version(),
    )


@dataclass(frozen=True)
class _Load:
    plan: Plan
    http: aiohttp.ClientSession
    book: Journal
    progress: Progress
    run: str

    async def carry_out(self, block: Block) -> None:
        """Keep `block.concurrency` requests in flight until the block's pairs are used up."""
        waiting = iter(block.pairs)
        try:
            async with asyncio.TaskGroup() as slots:
                for index in range(min(block.concurrency, len(block.pairs))):
                    slots.create_task(self._slot(block, waiting, index * _STAGGER_S))
        except ExceptionGroup as group:
            raise group.exceptions[0] from group

    async def _slot(self, block: Block, waiting: Iterator[Pair], delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        for pair in waiting:
            record = await self._one(block, pair)
            self.book.append(record)
            self.progress.count(failed=record.error is not None)

    async def _one(self, block: Block, pair: Pair) -> RequestRecord:
        url = self.plan.arm(block.arm).url + request_path(pair)
        body = request_body(self.plan, pair)
        record = RequestRecord(
            run=self.run,
            arm=block.arm,
            class_=pair.class_,
            concurrency=block.concurrency,
            prompt_id=pair.prompt.id,
            nonce=pair.nonce,
            pair_id=pair.id,
            phase=block.phase,
            started_unix_s=round(time.time(), 3),
        )
        return completed(record, await ask(self.http, url, body))


def completed(record: RequestRecord, result: Output | Failure) -> RequestRecord:
    """`record` with what came of it: numbers or a named error, never both."""
    if isinstance(result, Failure):
        return replace(record, error=result.name, message=result.message)
    chunk_s = tuple(round(at_s, _DECIMALS) for at_s in result.chunk_s)
    return replace(
        record,
        ttft_s=chunk_s[0],
        e2e_s=chunk_s[-1],
        chunk_s=chunk_s,
        chunk_tokens=result.chunk_tokens,
        stream_chunks=result.stream_chunks,
        prompt_tokens=result.prompt_tokens,
        cached_tokens=result.cached_tokens,
        completion_tokens=result.completion_tokens,
        finish_reason=result.finish_reason,
        token_source=result.token_source,
        speculation=result.speculation,
        text_sha256=hashlib.sha256(result.text.encode()).hexdigest(),
        text=result.text,
    )
