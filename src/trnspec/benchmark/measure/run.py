"""A whole run: check the arms, warm them up, run all cells, record every request.

If a run is started again with the same folder, it is resumed: a set of blocks that all arms have ended is not repeated, and an
interrupted set is measured again as a whole, with other nonces. After a node was replaced, a cell with sets from the earlier node
is measured again too, so each cell is from one node. At a signal (SIGINT from a
keyboard, SIGTERM at the end of a pod) the run stops cleanly.
"""

from __future__ import annotations

import asyncio
import platform
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from trnspec import __version__
from trnspec.benchmark.errors import ErrorRateExceeded, ResultsError
from trnspec.benchmark.measure import journal
from trnspec.benchmark.measure.client import http_sessions
from trnspec.benchmark.measure.endpoints import Endpoint, endpoints, with_accepted_fields, with_differences
from trnspec.benchmark.measure.journal import Journal
from trnspec.benchmark.measure.loader import Kind, LoadGenerator, kind_of
from trnspec.benchmark.measure.progress import Progress, duration, limits, size
from trnspec.benchmark.measure.questions import check_sense
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import REPEATED, Provenance, RunRecord
from trnspec.benchmark.measure.sanity_check import QUESTIONS, Question
from trnspec.benchmark.measure.schedule import Block, measured_blocks, more_warmup, warmup_blocks
from trnspec.benchmark.plan import MIXED, Load, Plan
from trnspec.core.words import count as in_words

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_WARMUPS = 3
"""The maximum number of warm-ups. With more requests in flight an answer takes longer, so a rate has more of them in flight."""


def _earlier(plan: Plan, out: Path, nodes: Mapping[str, str] | None) -> RawRun | None:
    """The run in `out`, with the session that begins now on these nodes; None without one. Raises ResultsError for another plan."""
    if not journal.exists(out):
        return None
    raw = journal.read(out)
    first = raw.sessions[0]
    if first.plan_sha256 != plan.sha256():
        raise ResultsError(
            f"{out}: holds run {first.run} of another plan or other options; choose another --out, or repeat "
            "the command that began it"
        )
    if first.client != __version__:
        raise ResultsError(
            f"{out}: run {first.run} was measured by client {first.client}, this is {__version__}; figures of two clients are "
            "not one run: choose another --out (the old folder can still be read)"
        )
    return raw.on(nodes)


def _remaining(plan: Plan, raw: RawRun | None) -> Iterator[Block]:
    """The blocks that the session which begins has to run. A set counts if all arms ended it in one session, and so with the same
    requests. A cell with sets of several starts of the servers is measured again on the nodes of this session."""
    again = raw.sessions[-1].session if raw else 1
    blocks = chain.from_iterable(measured_blocks(plan, round_, again=again) for round_ in (1, REPEATED))
    if raw is None:
        yield from blocks
        return
    for _, of_cell in groupby(blocks, key=lambda block: (block.round, block.class_, block.load)):
        sets = [list(of_set) for _, of_set in groupby(of_cell, key=lambda block: block.number)]
        starts = [_start_of(raw, one) for one in sets]
        whole = None not in starts and len(set(starts)) == 1
        for one, start in zip(sets, starts, strict=True):
            if not whole and start != raw.start_of(again):
                yield from one


def _start_of(raw: RawRun, set_: Iterable[Block]) -> int | None:
    """The start of the servers under which all arms ended a set in one session; None if they did not."""
    ended = [raw.ended.get(block.key) for block in set_]
    sessions = {block.session if block else None for block in ended}
    only = sessions.pop() if len(sessions) == 1 else None
    return only and raw.start_of(only)


async def run(
    plan: Plan,
    *,
    out: Path,
    progress: Progress,
    questions: Sequence[Question] = QUESTIONS,
    max_error_rate: float = 1.0,
    after_warmup: Callable[[LoadGenerator], None] = lambda loader: None,
    nodes: Mapping[str, str] | None = None,
) -> None:
    """Run what is not in `out` yet of `plan`. The plan is recorded with the differences that its servers report; `nodes` is the node of
    each arm.

    Raises ResultsError (the folder of another plan), EndpointError (also after a warm-up without an answer), StorageError, and ErrorRateExceeded if more than
    `max_error_rate` of the measured requests of an arm in this session failed. Requests in flight when the task is
    cancelled are not recorded.
    """
    async with http_sessions(plan) as http:
        served = None
        if not journal.exists(out):  # before the folder exists, so a wrong address leaves none behind
            served = await endpoints(http, plan)
            plan = await with_accepted_fields(http, plan, progress.warn)
        plan, versions = await with_differences(http, plan)
        with Journal(out) as book:
            raw = _earlier(plan, out, nodes)  # after locking, because another run may just have ended
            if raw and raw.unusable_lines:
                progress.warn(f"{raw.unusable_lines}; these requests are repeated")
            if raw:  # asked as before
                plan = plan.model_copy(update={"left_out": raw.sessions[-1].plan.left_out})
            blocks = list(_remaining(plan, raw))
            if raw and not blocks:
                then = raw.sessions[-2].plan
                if (then.prices, then.mix) != (plan.prices, plan.mix):  # changed since then
                    now = round(time.time(), 3)
                    book.append(
                        replace(raw.sessions[-1], nodes=raw.sessions[-2].nodes, started_unix_s=now, plan=plan)
                    )
                return
            served = served or await endpoints(http, plan)
            opening = replace(_opening(plan, raw, served, nodes), versions=versions or None)
            book.append(opening)
            asked = {"run": opening.run, "journal": book, "known": raw.sense if raw else ()}
            await check_sense(http, plan, served, **asked, progress=progress, questions=questions)
            for change in raw.node_changes if raw else ():
                if change.session == opening.session:
                    nodes_now = f"node {change.after} instead of {change.before}"
                    progress.tell(f"{change.arm}: {nodes_now}; an interrupted cell is measured again")
            del raw  # its requests need memory
            loader = LoadGenerator(plan, opening.run, http, book, progress)
            await _Session(loader, blocks, opening.session, max_error_rate, after_warmup).run()


@dataclass
class _Session:
    """One call of `run`, from the warm-up to the last block."""

    loader: LoadGenerator
    blocks: list[Block]
    number: int
    max_error_rate: float
    after_warmup: Callable[[LoadGenerator], None]

    async def run(self) -> None:
        """Run the remaining blocks."""
        plan, blocks = self.loader.plan, self.blocks
        progress = self.loader.progress
        progress.tell(size(plan))
        progress.expect(len(blocks) + (len(plan.arms) if plan.warmup else 0))
        try:
            await self._warm_up()
            await self._run_blocks(blocks, blocks)
        finally:
            progress.summary()

    async def _warm_up(self) -> None:
        """Warm the servers up at the largest load. For a rate, the number in flight is increased until it is that of the rate."""
        loader, concurrency = self.loader, None
        for _ in range(_WARMUPS):
            blocks = list(warmup_blocks(loader.plan, self.number, concurrency=concurrency))
            if concurrency:
                loader.progress.expect(len(blocks))
            await self._run_blocks(blocks, ())
            slowest_s = max(state.answers_s.get(MIXED, 0.0) for state in loader.arm_states.values())
            reached = max((block.load.concurrency or 0 for block in blocks), default=0)
            concurrency = more_warmup(loader.plan, reached, slowest_s) if blocks else None
            if concurrency is None:
                break
        self.after_warmup(loader)
        warmups = {arm: state.warmup for arm, state in loader.arm_states.items()}
        counts = {arm: state.counts for arm, state in loader.arm_states.items()}
        if unknown := limits(loader.plan, warmups, counts):
            loader.progress.tell(f"this run will not be able to say {unknown}")

    async def _run_blocks(self, blocks: Iterable[Block], announced: Iterable[Block]) -> None:
        """Run the blocks one after the other, and print the expected time of those in `announced`."""
        loader, left, cells = self.loader, Counter[Kind](), set[tuple[str, Load, int]]()
        for block in announced:
            left[kind_of(block)] += 1
            cells.add((block.class_, block.load, block.round))
        if seconds := loader.expected_s(left):
            again = any(round_ == REPEATED for *_, round_ in cells)
            parts = [in_words(len(cells) - again, "cell")] * (len(cells) > again)
            parts += ["the first cell again"] * again + [in_words(left.total(), "block")]
            loader.progress.tell(f"about {duration(seconds)} of load: {', '.join(parts)}")
        for block in blocks:
            loader.progress.left_s = loader.expected_s(left) or None
            await loader.run_block(block)
            left[kind_of(block)] -= 1
            for arm, state in loader.arm_states.items():
                if state.failed > self.max_error_rate * state.ended:
                    raise ErrorRateExceeded(
                        f"{arm}: {state.failed} of {state.ended} requests failed, more than --max-error-rate "
                        f"{self.max_error_rate:g} of them; look at the errors above, then repeat the command to continue"
                    )


def _opening(
    plan: Plan,
    raw: RawRun | None,
    served: Mapping[str, Endpoint],
    nodes: Mapping[str, str] | None,
) -> RunRecord:
    """The first record of this session. Its provenance is `measured` only if no endpoint says that it is emulated.

    Raises ResultsError if earlier requests have another provenance.
    """
    first, now = raw.sessions[0] if raw else None, time.time()
    origin: Provenance = "emulated" if any(endpoint.emulated for endpoint in served.values()) else "measured"
    if first is not None and first.provenance != origin:
        raise ResultsError(
            f"run {first.run}: its requests are {first.provenance}, the arms are now {origin}; choose another --out"
        )
    identity = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{plan.sha256()[:8]}"
    return RunRecord(
        run=first.run if first else identity,
        session=raw.sessions[-1].session if raw else 1,
        started_unix_s=round(now, 3),
        provenance=origin,
        plan=plan,
        plan_sha256=first.plan_sha256 if first else plan.sha256(),
        owned_by={arm: endpoint.owner for arm, endpoint in served.items()},
        cautions=[text for endpoint in served.values() for text in endpoint.cautions] or None,
        made_up={arm: list(endpoint.made_up) for arm, endpoint in served.items() if endpoint.made_up} or None,
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
