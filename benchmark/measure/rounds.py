"""A whole run: check the arms, warm them up, run all rounds, record every request.

If a run is started again with the same folder, it is resumed: a set of blocks that all arms have ended is not repeated, and an
interrupted set is measured again as a whole, with other nonces. After a node was replaced, a cell with sets from the earlier node
is measured again too, so each cell is from one node. At a signal (SIGINT from a
keyboard, SIGTERM at the end of a pod) the run stops cleanly.
"""

from __future__ import annotations

import asyncio
import math
import platform
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, count, groupby
from pathlib import Path
from typing import Any

from benchmark import __version__
from benchmark.errors import EndpointError, ErrorRateExceeded, ResultsError
from benchmark.measure import journal
from benchmark.measure.client import http_session
from benchmark.measure.endpoints import Endpoint, counters_in, endpoints, started_in, with_differences
from benchmark.measure.journal import Journal, RawRun
from benchmark.measure.loader import Kind, Loader, kind_of, together
from benchmark.measure.progress import Progress, duration
from benchmark.measure.questions import check_sense
from benchmark.measure.records import REPEATED, BlockKey, BlockRecord, Provenance, RunRecord
from benchmark.measure.schedule import Turn, measured_turns, more_warmup, warmup_turns
from benchmark.plan import MIXED, Load, Plan
from core.words import count as in_words

Choose = Callable[[RawRun], tuple[Load, int, int, int] | None]
"""Chooses the next cell of a search from the records so far: its load and round, the number of cells before it, and its start of the
servers; None at the end."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_WARMUPS = 3
"""The maximum number of warm-ups. With more requests in flight an answer takes longer, so a rate has more of them in flight."""
_LOOK_S, _SAY_S = 1.0, 60.0
"""The intervals at which the client checks whether servers were restarted, and prints that it waits."""


@dataclass
class EarlierRun:
    """The earlier sessions of a run that is resumed, without its requests: what is not asked again."""

    plan: Plan
    sessions: tuple[RunRecord, ...] = ()
    blocks: dict[BlockKey, BlockRecord] = field(default_factory=dict)
    """The blocks that have ended."""
    begun: dict[int, int] = field(default_factory=dict)
    """The last round with measured requests, by start of the servers."""
    met: int = 0
    """The last start of the servers with a request, 0 for none."""
    unusable_lines: str = ""
    """A sentence about lines of the journal that cannot be used; their requests are repeated."""
    nodes: int = 0
    """The number of node replacements before the session that begins."""
    nodes_of: Mapping[int, int] = field(default_factory=dict)
    """The number of node replacements before each earlier session."""

    def turns(self, start: int, loaded_now_s: Callable[[], float] = lambda: 0.0) -> Iterator[Turn]:
        """The remaining turns of one start of the servers: of the rounds of the plan, or of rounds that begin before its part of the duration
        has passed; at the end of the last start also the repetition of the first cell."""
        plan, before_s = self.plan, 0.0
        if plan.duration_s is not None:
            own = (b for b in self.blocks.values() if b.start == start and b.round != REPEATED)
            before_s = plan.loading_s(block.duration_s for block in own)
        for round_ in count(1):
            if plan.duration_s is None:
                over = round_ > plan.rounds
            else:
                over = before_s + loaded_now_s() >= plan.duration_s / plan.starts
                over = over and round_ > self.begun.get(start, 0)
            if over:
                break
            yield from self.left(plan, round_, start=start)
        if start == plan.starts:
            yield from self.left(plan, REPEATED, start=start)

    def left(self, plan: Plan, round_: int, before: int = 0, start: int = 1) -> Iterator[Turn]:
        """The remaining turns of a round, or of a cell of a search with its plan."""
        turns = measured_turns(plan, round_, before, start=start, again=len(self.sessions) + 1)
        for _, of_cell in groupby(turns, key=lambda turn: (turn[0].class_, turn[0].load)):
            cell = list(of_cell)
            each = len(plan.arms) // len(cell[0])
            sets = [cell[first : first + each] for first in range(0, len(cell), each)]
            ended = [self._ended_on(one) for one in sets]
            whole = None not in ended and len(set(ended)) == 1
            for one, nodes in zip(sets, ended, strict=True):
                if not whole and nodes != self.nodes:
                    yield from one

    def _ended_on(self, set_: list[Turn]) -> int | None:
        """The nodes (as a number of replacements) on which all arms ended their blocks of a set in one session, and so with the same requests;
        None if they did not."""
        ended = [self.blocks.get(block.key) for turn in set_ for block in turn]
        sessions = {block.session for block in ended if block}
        return None if None in ended or len(sessions) > 1 else self.nodes_of.get(sessions.pop(), 0)


def earlier(plan: Plan, out: Path, nodes: Mapping[str, str] | None = None) -> EarlierRun:
    """The earlier sessions in `out`, for a new session with these nodes. Raises ResultsError if they belong to another plan."""
    if not journal.exists(out):
        return EarlierRun(plan)
    raw = journal.read(out)
    now = raw.on(nodes)
    first = raw.sessions[0]
    if first.plan_sha256 != plan.sha256():
        raise ResultsError(
            f"{out}: holds run {first.run} of another plan or other options; choose another --out, or repeat "
            "the command that began it"
        )
    if first.client != __version__:
        raise ResultsError(
            f"{out}: run {first.run} was measured by client {first.client}, this is {__version__}; figures of two clients are "
            "not one run: choose another --out (the old folder stays readable)"
        )
    begun: dict[int, int] = {}
    for record in raw.asked:
        if record.round != REPEATED:
            begun[record.start] = max(begun.get(record.start, 0), record.round)
    return EarlierRun(
        plan,
        raw.sessions,
        blocks=now.ended,
        begun=begun,
        met=max((record.start for record in raw.requests), default=0),
        unusable_lines=raw.unusable_lines,
        nodes=now.nodes_of(now.sessions[-1]),
        nodes_of={session.session: now.nodes_of(session) for session in raw.sessions},
    )


async def run(
    plan: Plan,
    *,
    out: Path,
    timeout_s: float,
    progress: Progress,
    sense_check: bool = True,
    max_error_rate: float = 1.0,
    after_warmup: Callable[[Loader], None] = lambda loader: None,
    choose: Choose = lambda raw: None,
    search_status: Callable[[RawRun], str] = lambda raw: "",
    nodes: Mapping[str, str] | None = None,
) -> None:
    """Run what is not in `out` yet of `plan`. The plan is recorded with the differences that its servers report; `nodes` is the node of
    each arm.

    Raises ResultsError (the folder of another plan), EndpointError, StorageError, and ErrorRateExceeded if more than
    `max_error_rate` of the measured requests of an arm in this session failed. Requests in flight when the task is
    cancelled are not recorded.
    """
    async with http_session(timeout_s) as http:
        served = None
        if not journal.exists(out):  # before the folder exists, so a wrong address leaves none behind
            served = await endpoints(http, plan)
            await check_sense(http, plan, served, out=out, progress=progress, wanted=sense_check)
        plan = await with_differences(http, plan)
        with Journal(out) as book:
            before = earlier(plan, out, nodes)  # after locking, because another run may just have ended
            if before.unusable_lines:
                progress.warn(f"{before.unusable_lines}; these requests are repeated")
            if plan.search:
                known = journal.read(out).on(nodes).with_plan(plan) if before.sessions else None
                ended = known is not None and choose(known) is None
            else:
                ended = next(chain.from_iterable(map(before.turns, _starts(plan))), None) is None
            if ended:
                last = before.sessions[-1]
                if (last.plan.prices, last.plan.search) != (plan.prices, plan.search):  # changed since then
                    now = round(time.time(), 3)
                    book.append(replace(last, session=last.session + 1, started_unix_s=now, plan=plan))
                return
            opening = _opening(before, served or await endpoints(http, plan), timeout_s, nodes)
            book.append(opening)
            for change in journal.read(out).node_changes if nodes else ():
                if change.session == opening.session:
                    nodes_now = f"node {change.after} instead of {change.before}"
                    progress.tell(f"{change.arm}: {nodes_now}; an interrupted cell is measured again")
            loader = Loader(plan, opening.run, http, book, progress)
            session = _Session(loader, before, opening.session, max_error_rate, after_warmup)
            await (session.search(choose, search_status) if plan.search else session.listed())


def _starts(plan: Plan) -> range:
    return range(1, plan.starts + 1)


@dataclass
class _Session:
    """One call of `run`, from the warm-up to the last block."""

    loader: Loader
    before: EarlierRun
    number: int
    max_error_rate: float
    after_warmup: Callable[[Loader], None]
    start: int = 0
    """The current start of the servers; 0 before the first block."""

    async def listed(self) -> None:
        """Run the listed loads of the plan, start by start."""
        plan, before, progress = self.loader.plan, self.before, self.loader.progress
        starts = [start for start in _starts(plan) if next(before.turns(start), None) is not None]
        blocks = None
        if not plan.duration_s:
            blocks = sum(len(turn) for start in starts for turn in before.turns(start))
            blocks += len(plan.arms) * len(starts) if plan.warmup else 0
        progress.expect(blocks, rounds=plan.rounds > 1 or plan.duration_s is not None)
        for start in starts:
            await self._meet(start)
            loaded_s = self._loaded_s()
            turns = before.turns(start, lambda: self._loaded_s() - loaded_s)  # noqa: B023
            await self._carry_out(turns, () if plan.duration_s else before.turns(start))

    async def search(self, choose: Choose, search_status: Callable[[RawRun], str]) -> None:
        """Run a search: choose each cell from all records so far."""
        plan, progress, folder = self.loader.plan, self.loader.progress, self.loader.book.path.parent
        assert plan.search
        progress.expect(None)
        progress.tell(f"search: at most {plan.search.budget}; then the first cell once more")
        asked = set[object]()
        while (cell := choose(journal.read(folder))) is not None and cell not in asked:
            asked.add(cell)
            load, round_, cells_before, start = cell
            await self._meet(start)
            turns = list(self.before.left(plan.cell(load), round_, cells_before, start))
            await self._carry_out(turns, turns)
            progress.tell(search_status(journal.read(folder)))

    def _loaded_s(self) -> float:
        return self.loader.plan.loading_s(state.loaded_s for state in self.loader.arm_states.values())

    async def _meet(self, start: int) -> None:
        """Wait for this start of the servers, if the run has measured an earlier one, and warm them up at the largest load. For a rate, the
        number in flight is increased until it is that of the rate."""
        if start == self.start:
            return
        loader, concurrency = self.loader, None
        if 0 < (self.start or self.before.met) < start:
            await new_starts(loader, start)
        for _ in range(_WARMUPS):
            turns = list(warmup_turns(loader.plan, self.number, start=start, concurrency=concurrency))
            if concurrency:
                loader.progress.expect(len(turns))
            await self._carry_out(turns, ())
            slowest_s = max(state.answers_s.get(MIXED, 0.0) for state in loader.arm_states.values())
            reached = max((block.load.concurrency or 0 for turn in turns for block in turn), default=0)
            concurrency = more_warmup(loader.plan, reached, slowest_s) if turns else None
            if concurrency is None:
                break
        if not self.start:
            self.after_warmup(loader)
        self.start = start

    async def _carry_out(self, turns: Iterable[Turn], announced: Iterable[Turn]) -> None:
        """Run the blocks one after the other, and print the expected time of those in `announced`."""
        loader, left, cells = self.loader, Counter[Kind](), set[tuple[str, Load, int]]()
        for block in chain.from_iterable(announced):
            left[kind_of(block)] += 1
            cells.add((block.class_, block.load, block.round))
        if seconds := loader.expected_s(left):
            again = any(round_ == REPEATED for *_, round_ in cells)
            size = [in_words(len(cells) - again, "cell")] * (len(cells) > again)
            size += ["the first cell once more"] * again + [in_words(left.total(), "block")]
            loader.progress.tell(f"{', '.join(size)}: about {duration(seconds)} of loading")
        for turn in turns:
            loader.progress.left_s = loader.expected_s(left) or None
            async with together() as blocks:
                for block in turn:
                    blocks.create_task(loader.carry_out(block))
            left.subtract(map(kind_of, turn))
            for arm, state in loader.arm_states.items():
                if state.failed > self.max_error_rate * state.ended:
                    raise ErrorRateExceeded(
                        f"{arm}: {state.failed} of {state.ended} requests failed, more than --max-error-rate "
                        f"{self.max_error_rate:g} of them; look at the errors above, then repeat the command to continue"
                    )


async def new_starts(loader: Loader, start: int) -> None:
    """Wait until the servers of all arms were restarted. If a server reports its start time, that is used. Otherwise a server counts as
    restarted if its counters fell, or if it could not be reached for a while."""
    plan, waiting, gone = loader.plan, {arm.name for arm in loader.plan.arms}, set[str]()
    title, said_s = f"start {start} of {plan.starts}", -math.inf
    known: dict[str, tuple[float | None, float]] = {}
    for block in journal.read(loader.book.path.parent).blocks:
        known[block.arm] = block.server_started_unix_s, sum((block.counters_after or {}).values())
    while waiting:
        for arm in sorted(waiting):
            if (text := await loader.metrics(arm)) is None:
                gone.add(arm)
                continue
            before, counted = known.get(arm, (None, 0.0))
            now, counters = started_in(text), counters_in(text)
            fewer = counters is not None and sum(counters.values()) < counted
            if now > before if now and before else fewer or arm in gone:
                with suppress(EndpointError):  # it answers, but does not serve the model yet
                    await endpoints(loader.http, plan.with_arms([arm]))
                    waiting.discard(arm)
        if waiting and time.monotonic() - said_s >= _SAY_S:
            said_s, names = time.monotonic(), ", ".join(sorted(waiting))
            loader.progress.tell(f"{title}: start the servers of {names} again; the run then continues")
            loader.progress.to_programs(waits_for_start=start)
        await asyncio.sleep(_LOOK_S if waiting else 0)
    loader.progress.tell(f"{title}: all servers were started again")


def _opening(
    before: EarlierRun, served: Mapping[str, Endpoint], timeout_s: float, nodes: Mapping[str, str] | None
) -> RunRecord:
    """The first record of this session. Its provenance is `measured` only if no endpoint says that it is emulated.

    Raises ResultsError if earlier requests have another provenance.
    """
    plan, first, now = before.plan, next(iter(before.sessions), None), time.time()
    origin: Provenance = "emulated" if any(endpoint.emulated for endpoint in served.values()) else "measured"
    if first is not None and first.provenance != origin:
        raise ResultsError(
            f"run {first.run}: its requests are {first.provenance}, the arms are now {origin}; choose another --out"
        )
    identity = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{plan.sha256()[:8]}"
    return RunRecord(
        run=first.run if first else identity,
        session=len(before.sessions) + 1,
        started_unix_s=round(now, 3),
        provenance=origin,
        plan=plan,
        plan_sha256=first.plan_sha256 if first else plan.sha256(),
        owned_by={arm: endpoint.owner for arm, endpoint in served.items()},
        cautions=[text for endpoint in served.values() for text in endpoint.cautions] or None,
        made_up={arm: list(endpoint.made_up) for arm, endpoint in served.items() if endpoint.made_up} or None,
        timeout_s=timeout_s,
        client=__version__,
        python=platform.python_version(),
        held=True,
        nodes=nodes or None,
    )


def run_until_signalled(work: Coroutine[Any, Any, None]) -> signal.Signals | None:
    """Run `work` to its end or to the first signal; returns the signal. Main thread only."""

    async def guarded() -> signal.Signals | None:
        task, received = asyncio.ensure_future(work), list[signal.Signals]()

        def stop(number: signal.Signals) -> None:
            received.append(number)
            task.cancel()

        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        try:
            await task
        except asyncio.CancelledError:
            if not received:
                raise
        finally:
            for number in _SIGNALS:
                asyncio.get_running_loop().remove_signal_handler(number)
        return received[0] if received else None

    return asyncio.run(guarded())
