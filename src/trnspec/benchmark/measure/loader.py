"""Load an arm with a block of requests. Each request is recorded and reported when it ends. Before and after a block the server's
counters of tokens and drafts are read.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trnspec.benchmark.cell_size import SETS, block_s
from trnspec.benchmark.errors import EndpointError
from trnspec.benchmark.measure import endpoints
from trnspec.benchmark.measure.client import Sessions, ask, request_body, request_path
from trnspec.benchmark.measure.journal import Journal
from trnspec.benchmark.measure.progress import Progress
from trnspec.benchmark.measure.records import BlockRecord, Phase, RequestRecord, values_of
from trnspec.benchmark.measure.schedule import STAGGER_S, Block, Pair, SteadyLoad
from trnspec.benchmark.plan import MIXED, Load, Plan
from trnspec.core.words import count

_WATCH_S = 0.2
"""The interval at which the lateness of the client is measured; long enough to cost almost nothing."""
_DECIMALS = 6
"""Times are recorded in microseconds."""
_Item = TypeVar("_Item")
Kind = tuple[str, str, Load, int]
"""Blocks with the same values take about the same time: arm, class, load, and the number of requests that count."""


def kind_of(block: Block) -> Kind:
    return block.arm, block.class_, block.load, block.counted


@dataclass
class ArmState:
    """The state of one arm in this session."""

    ended: int = 0
    """Measured requests, including failed ones."""
    failed: int = 0
    answers_s: dict[str, float] = field(default_factory=dict)
    """The median time of an answer, by class and load of a block; of the last warm-up, by class."""
    light_s: dict[str, float] = field(default_factory=dict)
    """The median time of an answer in the first warm-up, by class."""
    rest_until: float = 0.0
    """The time, on the monotonic clock, from which requests may be sent again after a refusal."""
    counts: bool = True
    """Whether its server has counters; true until known."""
    warmup: list[RequestRecord] = field(default_factory=list)
    warmup_block: list[BlockRecord] = field(default_factory=list)

    def answer_s(self, class_: str, load: Load) -> float | None:
        """The expected time of an answer: the median under the same load, or else in the warm-up; None if unknown."""
        names = (f"{class_}/{load}", class_, MIXED)
        return next((self.answers_s[name] for name in names if name in self.answers_s), None)

    async def rest(self) -> None:
        """Wait after a refusal. Otherwise all requests of a run would fail within seconds while a server restarts."""
        if (seconds := self.rest_until - time.monotonic()) > 0:
            await asyncio.sleep(seconds)


@dataclass(frozen=True)
class LoadGenerator:
    """Runs the blocks of one run."""

    plan: Plan
    run: str
    http: Sessions
    journal: Journal
    progress: Progress
    arm_states: dict[str, ArmState] = field(init=False)
    """The state of each arm."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arm_states", {arm.name: ArmState() for arm in self.plan.arms})

    async def run_block(self, block: Block) -> None:
        """Send the requests of a block until it ends. Raises StorageError, and EndpointError after a warm-up without an answer."""
        self.progress.begin(block)
        state, held, medians = self.arm_states[block.arm], None, dict[str, float]()
        before = await self._counters(block.arm)
        began_unix_s, began = time.time(), time.perf_counter()
        with _lateness() as late_s:
            if block.counted:
                held = self._steady_load(block)
                await self._hold(block, held)
            else:
                await self._warm_up(block)
        took_s = time.perf_counter() - began
        after = await self._counters(block.arm)
        record = BlockRecord(
            **self._place(block),
            class_=block.class_,
            started_unix_s=round(began_unix_s, 3),
            duration_s=round(took_s, _DECIMALS),
            client_lag_s=round(late_s[0], _DECIMALS),
            counters_before=before,
            counters_after=after,
            steady_from_s=_rounded(held.steady_from_s) if held else None,
            steady_until_s=_rounded(held.steady_until_s) if held else None,
        )
        if block.phase == "measured":
            self.journal.append(record)
            if held and held.median_s is not None:
                state.answers_s[f"{block.class_}/{block.load}"] = held.median_s
        else:
            state.warmup_block.append(record)
            medians = _medians(state.warmup[-len(block.pairs) :])
            state.answers_s |= medians
            state.light_s = medians | state.light_s
        self.progress.end(block, lag_s=late_s[0])
        if block.phase == "warmup" and not medians:
            last, sent = state.warmup[-1], count(len(block.pairs), "warm-up request")
            why = f"{last.error}: {last.message}".rstrip(": ")
            remedy = "correct the arm, then repeat the command. If its options change, choose another --out"
            raise EndpointError(f"{block.arm}: no answer to {sent} ({why}); {remedy}")

    def expected_s(self, blocks: Mapping[Kind, int]) -> float:
        """The approximate loading time of blocks, by kind and number; 0 if the time of an answer is unknown for a kind."""
        total_s = 0.0
        for (arm, class_, load, counted), number in blocks.items():
            answer_s = self.arm_states[arm].answer_s(class_, load)
            if number > 0 and not (counted and answer_s):
                return 0.0
            # The concurrency, or the number in flight by Little's law.
            in_flight = load.concurrency or max((load.rate_per_s or 0.0) * (answer_s or 0.0), 1e-9)
            max_s, answer_s = self._max_s(answer_s), answer_s or 0.0
            each_s = block_s(answer_s=answer_s, counted=counted, in_flight=in_flight, max_s=max_s)
            total_s += max(number, 0) * each_s
        return total_s

    def _max_s(self, answer_s: float | None) -> float | None:
        """The maximum length of the steady window of a block: its part of `cell_minutes`, without ramp and drain."""
        if self.plan.cell_minutes is None:
            return None
        own_s = self.plan.cell_minutes * 60 / (SETS * len(self.plan.arms))
        return max(own_s - 3 * (answer_s or 0.0), answer_s or 0.0)

    def _steady_load(self, block: Block) -> SteadyLoad:
        state = self.arm_states[block.arm]
        answer_s = state.answer_s(block.class_, block.load)
        return SteadyLoad(
            concurrency=block.load.concurrency,
            counted=block.counted,
            answer_s=answer_s,
            light_s=state.light_s.get(block.class_, state.light_s.get(MIXED)),
            max_s=self._max_s(answer_s),
        )

    async def _hold(self, block: Block, held: SteadyLoad) -> None:
        """Hold the load of the block until the last request that counts has ended."""
        measured, unmeasured = block.measured(), block.unmeasured()
        now = asyncio.get_running_loop().time
        began = now()

        async def send(phase: Phase, pair: Pair, due_s: float | None = None) -> float:
            sent_s = now() - began if due_s is None else due_s
            ok = await self._ask(block, pair, phase, due_s, began)
            return held.ended(phase, took_s=now() - began - sent_s, ok=ok)

        def next_pair(phase: Phase) -> Pair:
            return next(measured if phase == "measured" else unmeasured)

        async def slot(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            while True:
                await self.arm_states[block.arm].rest()
                if (phase := held.send(now() - began)) is None:
                    return
                if pause_s := await send(phase, next_pair(phase)):
                    await asyncio.sleep(pause_s)

        async with _together() as tasks:
            if held.concurrency is not None:
                for delay_s in held.starts_s:
                    tasks.create_task(slot(delay_s))
                return
            due_s = 0.0
            while (phase := held.send(due_s)) is not None:
                pair = next_pair(phase)
                tasks.create_task(send(phase, pair, due_s))
                due_s += pair.gap_s or 0.0
                await asyncio.sleep(began + due_s - now())

    async def _warm_up(self, block: Block) -> None:
        """Send the requests of a warm-up, with its concurrency."""

        async def send(pair: Pair) -> None:
            await self.arm_states[block.arm].rest()
            await self._ask(block, pair, block.phase)

        await in_slots(block.pairs, send, block.load.concurrency or 1)

    async def _ask(
        self, block: Block, pair: Pair, phase: Phase, due_s: float | None = None, began: float = 0.0
    ) -> bool:
        """Send one request and record it; returns whether it was answered. If it was due at `due_s` after `began`, its times count from
        then, because a user would have waited while the client was late."""
        plan, state, started_unix_s = self.plan, self.arm_states[block.arm], round(time.time(), 3)
        body = request_body(plan, pair)
        url, maximum = plan.arm(block.arm).url + request_path(pair), plan.answer_limit(pair.prompt)
        late_s = 0.0 if due_s is None else max(0.0, asyncio.get_running_loop().time() - began - due_s)
        reply = await ask(self.http[block.arm], url, body, max_tokens=maximum, late_s=late_s)
        record = RequestRecord(
            **self._place(block),
            **values_of(reply),
            class_=pair.prompt.class_name,
            prompt_id=pair.prompt.id,
            nonce=pair.nonce,
            pair_id=pair.id,
            phase=phase,
            started_unix_s=started_unix_s,
            scheduled_s=_rounded(due_s),
            forced_length=plan.ignore_eos and "ignore_eos" not in plan.left_out,
            api="completions" if pair.prompt.messages is None else "chat",
        )
        self.journal.append(record)
        failed = record.error is not None
        if phase == "measured":
            state.ended += 1
            state.failed += failed
        elif phase == "warmup":
            state.warmup.append(record)
        if phase == block.phase:
            self.progress.count(failed=failed)
        if record.error is not None:
            self.progress.failed(block.arm, record.error, record.message or "")
            if record.pause_s:
                state.rest_until = time.monotonic() + record.pause_s
        return not failed

    def _place(self, block: Block) -> dict[str, Any]:
        """The common fields of the records of a block and of its requests."""
        number = {"round": block.round, "block": block.number, "session": block.session}
        return {"run": self.run, "arm": block.arm, **vars(block.load), **number}

    async def _counters(self, arm: str) -> dict[str, float] | None:
        """The counters of the arm's server; None if unknown. A server without counters is not asked again."""
        state = self.arm_states[arm]
        if not state.counts:
            return None
        text = await endpoints.counters_page(self.http[arm], self.plan.arm(arm), self.progress.warn)
        if text is None:
            return None
        counters = endpoints.counters_in(text)
        state.counts = counters is not None
        return counters


@asynccontextmanager
async def _together() -> AsyncIterator[asyncio.TaskGroup]:
    """A group of tasks. The first failure cancels the others and is raised unchanged."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except ExceptionGroup as group:
        raise group.exceptions[0] from group


async def in_slots(items: Iterable[_Item], do: Callable[[_Item], Awaitable[None]], concurrency: int) -> None:
    """Call `do` for each item, at most `concurrency` at a time. The first calls are spread."""
    waiting = iter(items)

    async def slot(delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        for item in waiting:
            await do(item)

    async with _together() as tasks:
        for index in range(concurrency):
            tasks.create_task(slot(index * STAGGER_S))


@contextmanager
def _lateness() -> Iterator[Sequence[float]]:
    """The maximum lateness of the client's event loop so far, in seconds: measured times may be too long by this."""
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
