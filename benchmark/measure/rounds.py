"""A whole run: check the arms, warm them up, work through the rounds, write down every request.

Started again on the same folder, it goes on where it stopped: what the journal holds is not asked again.

Stopping in good order when told to: SIGINT from a keyboard, SIGTERM from a pod's end.
"""

from __future__ import annotations

import asyncio
import platform
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from benchmark import __version__
from benchmark.errors import ErrorRateExceeded
from benchmark.measure import journal
from benchmark.measure.client import Endpoint, endpoints, provenance, session
from benchmark.measure.journal import Earlier, Journal, earlier, loading_s
from benchmark.measure.loader import CounterReader, Loader, Progress, Standing
from benchmark.measure.records import RunRecord
from benchmark.measure.schedule import Turn, blocks_in_round, measured_turns, warmup_turns
from benchmark.plan import Plan


async def run(
    plan: Plan,
    *,
    out: Path,
    timeout_s: float,
    progress: Progress,
    max_error_rate: float = 1.0,
    after_warmup: Callable[[Loader], None] = lambda loader: None,
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
            if before.left_out.lines:
                progress.warn(f"{before.left_out}; these requests are made again")
            if not _anything_left(plan, before):
                if before.repriced(plan):
                    _reprice(plan, book, before.sittings)
                return
            sitting = _sitting(plan, found or await endpoints(http, plan), timeout_s, before)
            book.append(sitting)
            standings = {arm.name: Standing() for arm in plan.arms}
            counters = CounterReader(http, progress.warn)
            loader = Loader(plan, sitting.run, http, book, counters, progress, standings)
            await _rest(loader, before, sitting.sitting, max_error_rate, after_warmup)


async def _rest(
    loader: Loader,
    before: Earlier,
    sitting: int,
    max_error_rate: float,
    after_warmup: Callable[[Loader], None],
) -> None:
    """Warm up, then what is left of every round."""
    plan = loader.plan
    loader.progress.expect(_blocks(plan, before), rounds=plan.rounds > 1 or plan.duration_s is not None)
    await _turns(loader, warmup_turns(plan, sitting), max_error_rate)
    after_warmup(loader)
    for round_ in _rounds(plan, before, loader.standings):
        left = filter(None, map(before.left_of, measured_turns(plan, round_)))
        await _turns(loader, left, max_error_rate)


def _reprice(plan: Plan, book: Journal, sittings: Sequence[RunRecord]) -> None:
    """Write down prices that were changed after the last request."""
    last = sittings[-1]
    started = round(time.time(), 3)
    book.append(replace(last, sitting=last.sitting + 1, started_unix_s=started, plan=plan))


def _anything_left(plan: Plan, before: Earlier) -> bool:
    if any(not before.finished(plan, round_) for round_ in before.in_round or (1,)):
        return True
    if plan.duration_s is None:
        return not all(before.finished(plan, round_) for round_ in range(1, plan.rounds + 1))
    return before.loaded_s(plan) < plan.duration_s


def _blocks(plan: Plan, before: Earlier) -> int | None:
    """How many blocks there are to do, warm-up included; None where the time decides."""
    if plan.duration_s is not None:
        return None
    warm = len(plan.arms) if plan.warmup else 0
    if not before.done:
        return warm + plan.rounds * blocks_in_round(plan)
    turns = (before.left_of(turn) for r in range(1, plan.rounds + 1) for turn in measured_turns(plan, r))
    return warm + sum(map(len, turns))


def _rounds(plan: Plan, before: Earlier, standings: Mapping[str, Standing]) -> Iterator[int]:
    """Rounds to go through: the plan's number, or as many as begin before its duration is over."""
    for round_ in count(1):
        if plan.duration_s is None:
            due = round_ <= plan.rounds
        else:
            now_s = loading_s(plan, (standing.loaded_s for standing in standings.values()))
            due = before.begun(round_) or before.loaded_s(plan) + now_s < plan.duration_s
        if not due:
            return
        if not before.finished(plan, round_):
            yield round_


async def _turns(loader: Loader, turns: Iterable[Turn], max_error_rate: float) -> None:
    for turn in turns:
        try:
            async with asyncio.TaskGroup() as blocks:
                for block in turn:
                    blocks.create_task(loader.carry_out(block))
        except ExceptionGroup as group:
            raise group.exceptions[0] from group
        for arm, standing in loader.standings.items():
            if standing.failed > max_error_rate * standing.ended:
                raise ErrorRateExceeded(
                    f"{arm}: {standing.failed} of {standing.ended} requests failed, more than --max-error-rate "
                    f"{max_error_rate:g} of them; look at the errors above, then repeat the command to go on"
                )


def _sitting(plan: Plan, found: Mapping[str, Endpoint], timeout_s: float, before: Earlier) -> RunRecord:
    """The record that opens this sitting. Raises ResultsError for mixed provenance."""
    origin = provenance(found)
    before.check_provenance(origin)
    now = time.time()
    identity = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{plan.sha256()[:8]}"
    return RunRecord(
        run=before.sittings[0].run if before.sittings else identity,
        sitting=len(before.sittings) + 1,
        started_unix_s=round(now, 3),
        provenance=origin,
        plan=plan,
        plan_sha256=before.sittings[0].plan_sha256 if before.sittings else plan.sha256(),
        owned_by={arm: endpoint.owner for arm, endpoint in found.items()},
        cautions=[text for endpoint in found.values() for text in endpoint.cautions] or None,
        made_up={arm: list(one.made_up) for arm, one in found.items() if one.made_up} or None,
        timeout_s=timeout_s,
        client=__version__,
        python=platform.python_version(),
    )


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
