"""Loading an arm with a block of requests: each is written down as it ends, and said to people. Around a block the server's own
counters of tokens and drafts are read.
"""

from __future__ import annotations

import asyncio
import hashlib
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmark.cell_size import block_s, sets_in_all
from benchmark.measure import endpoints
from benchmark.measure.client import Failure, ask, request_body, request_path
from benchmark.measure.journal import Journal
from benchmark.measure.progress import Progress
from benchmark.measure.records import BlockRecord, Phase, RequestRecord
from benchmark.measure.schedule import STAGGER_S, Block, HeldLoad, Pair, Supply, threads
from benchmark.measure.stream import Output
from benchmark.plan import MIXED, Load, Plan

_WATCH_S = 0.2
"""Seldom enough to cost nothing beside the requests themselves."""
_DECIMALS = 6
"""Times are written down to the microsecond."""
Kind = tuple[str, str, Load, int]
"""What decides how long a block takes: its arm, class and load, and how many of its requests count."""


def kind_of(block: Block) -> Kind:
    return block.arm, block.class_, block.load, block.supply.counted if block.supply else 0


@dataclass
class Standing:
    """One arm in this sitting."""

    ended: int = 0
    """Measured requests, failed ones included."""
    failed: int = 0
    loaded_s: float = 0.0
    """How long it was loaded with measured requests."""
    answers_s: dict[str, float] = field(default_factory=dict)
    """The median time of an answer by class and load of a block, and in the last warm-up by class."""
    light_s: dict[str, float] = field(default_factory=dict)
    """The median time of an answer in the first warm-up, by class."""
    rest_until: float = 0.0
    """When it may be asked again after it refused, on the monotonic clock."""
    counts: bool = True
    """Whether its server has counters, as far as is known."""
    warmup: list[RequestRecord] = field(default_factory=list)
    warmup_block: list[BlockRecord] = field(default_factory=list)

    def answer_s(self, class_: str, load: Load) -> float | None:
        """What an answer is expected to take: what it took under the same load, or else in the warm-up."""
        names = (f"{class_}/{load}", class_, MIXED)
        return next((self.answers_s[name] for name in names if name in self.answers_s), None)

    async def rest(self) -> None:
        """A server that refuses is left alone for a while: one that restarts is not to meet, and fail, all the requests of a
        run within a second."""
        if (seconds := self.rest_until - time.monotonic()) > 0:
            await asyncio.sleep(seconds)


@dataclass(frozen=True)
class Loader:
    """Carries out blocks against the arms of one run."""

    plan: Plan
    run: str
    http: aiohttp.ClientSession
    book: Journal
    progress: Progress
    first_answers: dict[str, str] = field(default_factory=dict)
    """The answer to each pair of a conversation that the turn after it is given: the first that came from any arm, so that
    all arms are asked the same."""
    standings: dict[str, Standing] = field(init=False)
    """The state of each arm."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "standings", {arm.name: Standing() for arm in self.plan.arms})

    async def carry_out(self, block: Block) -> None:
        """Load the block's arm until its pairs are used up. Raises StorageError."""
        self.progress.begin(block)
        standing, held = self.standings[block.arm], None
        before, _ = await self._counters(block.arm)
        began_unix_s, began = time.time(), time.perf_counter()
        with _lateness() as late_s:
            if block.supply:
                held = self._held_load(block, block.supply)
                await self._hold(block, block.supply, held)
            else:
                await self._replay(block)
        took_s = time.perf_counter() - began
        after, server_started = await self._counters(block.arm)
        record = BlockRecord(
            **self._place(block),
            class_=block.class_,
            started_unix_s=round(began_unix_s, 3),
            duration_s=round(took_s, _DECIMALS),
            client_lag_s=round(late_s[0], _DECIMALS),
            counters_before=before,
            counters_after=after,
            server_started_unix_s=server_started,
            sitting=block.sitting,
            steady_from_s=_rounded(held.steady_from_s) if held else None,
            steady_until_s=_rounded(held.steady_until_s) if held else None,
        )
        if block.phase == "measured":
            self.book.append(record)
            standing.loaded_s += record.duration_s
            if held and held.median_s is not None:
                standing.answers_s[f"{block.class_}/{block.load}"] = held.median_s
        else:
            standing.warmup_block.append(record)
            medians = _medians(standing.warmup[-len(block.pairs) :])
            standing.answers_s |= medians
            standing.light_s = medians | standing.light_s
        self.progress.end(block, lag_s=late_s[0])

    def expected_s(self, blocks: Mapping[Kind, int]) -> float:
        """About how long so many blocks of each kind take; 0 where nothing is known of the answers of some of them."""
        total_s = 0.0
        for (arm, class_, load, counted), number in blocks.items():
            answer_s = self.standings[arm].answer_s(class_, load)
            if number > 0 and not (counted and answer_s):
                return 0.0
            # Given, or by Little's law.
            in_flight = load.concurrency or max((load.rate_per_s or 0.0) * (answer_s or 0.0), 1e-9)
            most_s, answer_s = self._most_s(answer_s), answer_s or 0.0
            each_s = block_s(answer_s=answer_s, counted=counted, in_flight=in_flight, most_s=most_s)
            total_s += max(number, 0) * each_s
        return self.plan.loading_s([total_s])

    def _most_s(self, answer_s: float | None) -> float | None:
        """How long a block's steady window may last: its part of `cell_minutes`, less what is not in the window."""
        if self.plan.cell_minutes is None:
            return None
        in_turns = 1 if self.plan.simultaneous else len(self.plan.arms)
        own_s = self.plan.cell_minutes * 60 / (sets_in_all(self.plan.starts) * in_turns)
        return max(own_s - 3 * (answer_s or 0.0), answer_s or 0.0)

    def _held_load(self, block: Block, supply: Supply) -> HeldLoad:
        standing = self.standings[block.arm]
        answer_s = standing.answer_s(block.class_, block.load)
        return HeldLoad(
            at_once=block.load.concurrency,
            counted=supply.counted,
            answer_s=answer_s,
            light_s=standing.light_s.get(block.class_, standing.light_s.get(MIXED)),
            most_s=self._most_s(answer_s),
        )

    async def _hold(self, block: Block, supply: Supply, held: HeldLoad) -> None:
        """Keep the block's load up until the last request that counts has ended."""
        pairs = {"measured": supply.measured(), "beside": supply.beside()}
        now = asyncio.get_running_loop().time
        began = now()

        async def send(phase: Phase, pair: Pair, due_s: float | None = None) -> float:
            sent_s = now() - began if due_s is None else due_s
            ok = await self._ask(block, pair, phase, due_s, began)
            return held.ended(phase, took_s=now() - began - sent_s, ok=ok)

        def next_pair(phase: Phase) -> Pair:
            return next(pairs["measured" if phase == "measured" else "beside"])

        async def slot(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            while True:
                await self.standings[block.arm].rest()
                if (phase := held.send(now() - began)) is None:
                    return
                if pause_s := await send(phase, next_pair(phase)):
                    await asyncio.sleep(pause_s)

        async with together() as tasks:
            if held.at_once is not None:
                for delay_s in held.starts_s:
                    tasks.create_task(slot(delay_s))
                return
            due_s = 0.0
            while (phase := held.send(due_s)) is not None:
                pair = next_pair(phase)
                tasks.create_task(send(phase, pair, due_s))
                due_s += pair.gap_s or 0.0
                await asyncio.sleep(began + due_s - now())

    async def _replay(self, block: Block) -> None:
        """Send the block's requests: so many at a time, or each when it is due, however many are still in flight. The
        turns of a conversation wait for each other."""
        now, talks = asyncio.get_running_loop().time, threads(block.pairs)
        began, due_s, waiting = now(), 0.0, iter(talks)

        async def slot(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            for turns in waiting:
                for turn in turns:
                    if turn is not turns[0]:
                        await asyncio.sleep(turn.prompt.think_s)
                    await self.standings[block.arm].rest()
                    await self._ask(block, turn, block.phase)

        async def arrival(turns: list[Pair], first_s: float) -> None:
            """Each turn when it is due and the answer before it has been read."""
            due_s = first_s
            for turn in turns:
                if turn is not turns[0]:
                    due_s = max(first_s + (turn.gap_s or 0.0), now() - began + turn.prompt.think_s)
                    await asyncio.sleep(began + due_s - now())
                await self._ask(block, turn, block.phase, due_s, began)

        async with together() as tasks:
            if block.load.concurrency is not None:
                for index in range(min(block.load.concurrency, len(talks))):
                    tasks.create_task(slot(index * STAGGER_S))
                return
            for turns in talks:
                if turns[0].after is None:
                    due_s += turns[0].gap_s or 0.0
                await asyncio.sleep(began + due_s - now())
                tasks.create_task(arrival(turns, due_s))

    async def _ask(
        self, block: Block, pair: Pair, phase: Phase, due_s: float | None = None, began: float = 0.0
    ) -> bool:
        """Send one request and record it; whether it was answered. What was due `due_s` after `began` counts its times from
        then: how late the client was is part of what a user would have waited."""
        plan, standing, started_unix_s = self.plan, self.standings[block.arm], round(time.time(), 3)
        result: Output | Failure
        try:
            body = request_body(plan, pair, self.first_answers)
        except LookupError:
            result = Failure("no_turn_before", "there is no answer to the turn before it")
        else:
            url, most = plan.arm(block.arm).url + request_path(pair), plan.most_tokens(pair.prompt)
            late_s = 0.0 if due_s is None else max(0.0, asyncio.get_running_loop().time() - began - due_s)
            result = await ask(self.http, url, body, class_=pair.class_, max_tokens=most, late_s=late_s)
        if isinstance(result, Output) and pair.prompt.conversation and block.phase == "measured":
            self.first_answers.setdefault(pair.id, result.text)
        record = RequestRecord(
            **self._place(block),
            class_=pair.class_,
            prompt_id=pair.prompt.id,
            nonce=pair.nonce,
            pair_id=pair.id,
            phase=phase,
            started_unix_s=started_unix_s,
            scheduled_s=_rounded(due_s),
            forced_length=plan.ignore_eos,
            api="completions" if pair.prompt.messages is None else "chat",
            **_outcome(result),
        )
        self.book.append(record)
        failed = isinstance(result, Failure)
        if phase == "measured":
            standing.ended += 1
            standing.failed += failed
        elif phase == "warmup":
            standing.warmup.append(record)
        if phase == block.phase:
            self.progress.count(block, failed=failed)
        if isinstance(result, Failure) and result.pause_s:
            standing.rest_until = time.monotonic() + result.pause_s
        return not failed

    def _place(self, block: Block) -> dict[str, Any]:
        """What the records of a block and of its requests have in common."""
        load = {"concurrency": block.load.concurrency, "rate_per_s": block.load.rate_per_s}
        number = {"round": block.round, "block": block.number, "start": block.start}
        return {"run": self.run, "arm": block.arm, **load, **number}

    async def _counters(self, arm: str) -> tuple[dict[str, float] | None, float | None]:
        """What the arm's server counts, None where it cannot be reached, and for good where it has no counters; and when it was
        started, where it says so."""
        standing = self.standings[arm]
        if not standing.counts or (text := await self.metrics(arm)) is None:
            return None, None
        counters, started = endpoints.counters_in(text), endpoints.started_in(text)
        standing.counts = counters is not None or started is not None
        return counters, started

    async def metrics(self, arm: str) -> str | None:
        """What the arm's server has at `/metrics`, empty where that is nothing of use; None where it cannot be reached."""
        return await endpoints.counters_page(self.http, self.plan.arm(arm), self.progress.warn)


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """Tasks of which the first failure ends all, raised as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except ExceptionGroup as group:
        raise group.exceptions[0] from group


@contextmanager
def _lateness() -> Iterator[Sequence[float]]:
    """How late the client's own event loop was at its worst so far, in seconds: what it adds to each time that it takes."""
    loop, worst_s = asyncio.get_running_loop(), [0.0]

    async def watch() -> None:
        while True:
            due_s = loop.time() + _WATCH_S
            await asyncio.sleep(_WATCH_S)
            worst_s[0] = max(worst_s[0], loop.time() - due_s)

    watching = loop.create_task(watch())
    try:
        yield worst_s
    finally:
        watching.cancel()


def _outcome(result: Output | Failure) -> dict[str, Any]:
    """What came of a request, by field of its record: numbers or a named error, never both."""
    if isinstance(result, Failure):
        return {"error": result.name, "message": result.message}
    chunk_s = tuple(round(at_s, _DECIMALS) for at_s in result.chunk_s)
    digest = hashlib.sha256(result.text.encode(errors="surrogatepass")).hexdigest()
    times = {"ttft_s": chunk_s[0], "e2e_s": chunk_s[-1], "chunk_s": chunk_s}
    return vars(result) | times | {"text_sha256": digest}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, _DECIMALS)


def _medians(records: Sequence[RequestRecord]) -> dict[str, float]:
    """The median time of an answer by class, and of all classes (MIXED)."""
    by_class: dict[str, list[float]] = {}
    for record in records:
        if record.e2e_s is not None:
            for name in (record.class_, MIXED):
                by_class.setdefault(name, []).append(record.e2e_s)
    return {name: statistics.median(own) for name, own in by_class.items()}
