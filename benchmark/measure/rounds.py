"""A whole run: check the arms, warm them up, work through the rounds, write down every request.

Started again on the same folder, it goes on where it stopped: what the journal holds is not asked again.
It stops in good order when told to: SIGINT from a keyboard, SIGTERM from a pod's end.
"""

from __future__ import annotations

import asyncio
import platform
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from benchmark import __version__
from benchmark.errors import ErrorRateExceeded, ResultsError
from benchmark.measure import journal
from benchmark.measure.client import Endpoint, endpoints, session
from benchmark.measure.journal import Journal, RawRun
from benchmark.measure.loader import Loader, Progress, Standing, together
from benchmark.measure.records import Provenance, RunRecord
from benchmark.measure.schedule import Turn, blocks_in_round, measured_turns, warmup_turns
from benchmark.plan import Load, Plan

Choose = Callable[[RawRun], tuple[Load, int, int] | None]
"""Of a search: the next cell's load and round and how many cells are before it, from what the journal holds; None at its
end."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Earlier:
    """What a folder holds of a run that is started again, without its requests: what need not be asked once more."""

    plan: Plan
    sittings: tuple[RunRecord, ...] = ()
    done: set[tuple[str, str]] = field(default_factory=set)
    """Pair and arm of each recorded request."""
    in_round: Counter[int] = field(default_factory=Counter)
    """Measured requests by round."""
    durations_s: list[float] = field(default_factory=list)
    """Of the blocks."""
    said: dict[str, str] = field(default_factory=dict)
    """By pair of a conversation, the first answer to it."""
    left_out: str = ""
    """Which lines of the journal cannot be used: their requests are made again."""

    def unfinished(self, loaded_now_s: Callable[[], float] = lambda: 0.0) -> Iterator[int]:
        """Rounds with something left to ask: of the plan's number, or as many as begin before its duration is over."""
        plan = self.plan
        before_s = plan.loading_s(self.durations_s)
        for round_ in count(1):
            if plan.duration_s is None:
                due = round_ <= plan.rounds
            else:
                due = round_ in self.in_round or before_s + loaded_now_s() < plan.duration_s
            if not due:
                return
            if self.in_round[round_] < plan.requests_per_round:
                yield round_

    def left_of(self, turn: Turn) -> Turn:
        """The turn without what is recorded; nothing where all of it is."""
        left = (
            replace(block, pairs=tuple(pair for pair in block.pairs if (pair.id, block.arm) not in self.done))
            for block in turn
        )
        return tuple(block for block in left if block.pairs)

    def blocks(self) -> int | None:
        """How many blocks there are to do, warm-up included; None where the time decides."""
        plan = self.plan
        if plan.duration_s is not None:
            return None
        warm = len(plan.arms) if plan.warmup else 0
        if not self.done:
            return warm + plan.rounds * blocks_in_round(plan)
        turns = (self.left_of(turn) for r in range(1, plan.rounds + 1) for turn in measured_turns(plan, r))
        return warm + sum(map(len, turns))


def earlier(plan: Plan, out: Path) -> Earlier:
    """What `out` holds. Raises ResultsError where it belongs to another plan."""
    if not journal.exists(out):
        return Earlier(plan)
    raw = journal.read(out)
    # The plan itself is compared: an earlier version's hash held the prices too.
    if raw.sittings[0].plan.sha256() != plan.sha256():
        raise ResultsError(
            f"{out}: holds run {raw.sittings[0].run} of another plan or other options; choose another --out, or repeat "
            "the command that began it"
        )
    measured = [record for record in raw.requests if record.phase == "measured"]
    return Earlier(
        plan,
        raw.sittings,
        done={(record.pair_id, record.arm) for record in measured},
        in_round=Counter(record.round for record in measured),
        durations_s=[block.duration_s for block in raw.blocks],
        said=raw.said,
        left_out=raw.left_out,
    )


async def run(
    plan: Plan,
    *,
    out: Path,
    timeout_s: float,
    progress: Progress,
    max_error_rate: float = 1.0,
    after_warmup: Callable[[Loader], None] = lambda loader: None,
    choose: Choose = lambda raw: None,
    standing: Callable[[RawRun], str] = lambda raw: "",
) -> None:
    """Carry out what `out` does not hold yet of `plan`.

    Raises ResultsError (another plan's folder), EndpointError, StorageError, and ErrorRateExceeded once more
    than `max_error_rate` of an arm's measured requests of this sitting failed. Requests in flight when the
    task is cancelled are not recorded.
    """
    async with session(timeout_s) as http:
        # Before there is a folder: a wrong address leaves nothing behind.
        found = None if journal.exists(out) else await endpoints(http, plan)
        with Journal(out) as book:
            before = earlier(plan, out)  # with the lock: another run may have ended a moment ago
            if before.left_out:
                progress.warn(f"{before.left_out}; these requests are made again")
            if plan.search:
                ended = bool(before.sittings) and choose(journal.read(out).with_plan(plan)) is None
            else:
                ended = next(before.unfinished(), None) is None
            if ended:
                last = before.sittings[-1]
                if (last.plan.prices, last.plan.search) != (plan.prices, plan.search):  # changed since then
                    now = round(time.time(), 3)
                    book.append(replace(last, sitting=last.sitting + 1, started_unix_s=now, plan=plan))
                return
            opening = _opening(before, found or await endpoints(http, plan), timeout_s)
            book.append(opening)
            standings = {arm.name: Standing() for arm in plan.arms}
            loader = Loader(plan, opening.run, http, book, progress, standings, before.said)
            if plan.search:
                progress.expect(None)
                progress.tell(f"search: at most {plan.search.budget}; then the first cell once more")
            else:
                progress.expect(before.blocks(), rounds=plan.rounds > 1 or plan.duration_s is not None)
            await _carry_out(loader, warmup_turns(plan, opening.sitting), max_error_rate)
            after_warmup(loader)
            if plan.search:
                await _search(loader, before, choose, standing, max_error_rate)
                return
            for round_ in before.unfinished(lambda: plan.loading_s(s.loaded_s for s in standings.values())):
                left = filter(None, map(before.left_of, measured_turns(plan, round_)))
                await _carry_out(loader, left, max_error_rate)


async def _search(
    loader: Loader, before: Earlier, choose: Choose, standing: Callable[[RawRun], str], max_error_rate: float
) -> None:
    """Cell after cell, each chosen from all that the journal holds."""
    folder, asked = loader.book.path.parent, set()
    while (cell := choose(journal.read(folder))) is not None and cell not in asked:
        asked.add(cell)
        load, *place = cell
        left = filter(None, map(before.left_of, measured_turns(loader.plan.cell(load), *place)))
        await _carry_out(loader, left, max_error_rate)
        loader.progress.tell(standing(journal.read(folder)))


def _opening(before: Earlier, found: Mapping[str, Endpoint], timeout_s: float) -> RunRecord:
    """The record that opens this sitting; `measured` only if no arm says of itself that its timings come from a model.

    Raises ResultsError where new requests would mix with others of another kind.
    """
    plan, first, now = before.plan, next(iter(before.sittings), None), time.time()
    origin: Provenance = "emulated" if any(one.emulated for one in found.values()) else "measured"
    if first is not None and first.provenance != origin:
        raise ResultsError(
            f"run {first.run}: its requests are {first.provenance}, the arms are now {origin}; choose another --out"
        )
    identity = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{plan.sha256()[:8]}"
    return RunRecord(
        run=first.run if first else identity,
        sitting=len(before.sittings) + 1,
        started_unix_s=round(now, 3),
        provenance=origin,
        plan=plan,
        plan_sha256=first.plan_sha256 if first else plan.sha256(),
        owned_by={arm: endpoint.owner for arm, endpoint in found.items()},
        cautions=[text for endpoint in found.values() for text in endpoint.cautions] or None,
        made_up={arm: list(one.made_up) for arm, one in found.items() if one.made_up} or None,
        timeout_s=timeout_s,
        client=__version__,
        python=platform.python_version(),
    )


async def _carry_out(loader: Loader, turns: Iterable[Turn], max_error_rate: float) -> None:
    for turn in turns:
        async with together() as blocks:
            for block in turn:
                blocks.create_task(loader.carry_out(block))
        for arm, standing in loader.standings.items():
            if standing.failed > max_error_rate * standing.ended:
                raise ErrorRateExceeded(
                    f"{arm}: {standing.failed} of {standing.ended} requests failed, more than --max-error-rate "
                    f"{max_error_rate:g} of them; look at the errors above, then repeat the command to go on"
                )


def run_until_signalled(work: Coroutine[Any, Any, None]) -> signal.Signals | None:
    """Run `work` to its end or to the first signal, and say which signal it was. Main thread only."""
    return asyncio.run(_guarded(work))


async def _guarded(work: Coroutine[Any, Any, None]) -> signal.Signals | None:
    task = asyncio.ensure_future(work)
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not received:
            raise
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    return received[0] if received else None
