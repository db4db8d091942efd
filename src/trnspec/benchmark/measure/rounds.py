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
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from trnspec import __version__
from trnspec.benchmark.errors import ErrorRateExceeded, ResultsError
from trnspec.benchmark.measure import journal
from trnspec.benchmark.measure.accepted_fields import with_accepted_fields
from trnspec.benchmark.measure.client import http_session
from trnspec.benchmark.measure.endpoints import Endpoint, endpoints, with_differences
from trnspec.benchmark.measure.journal import Journal
from trnspec.benchmark.measure.loader import Kind, Loader, kind_of
from trnspec.benchmark.measure.progress import Progress, duration
from trnspec.benchmark.measure.questions import check_sense
from trnspec.benchmark.measure.records import REPEATED, BlockKey, BlockRecord, Provenance, RunRecord
from trnspec.benchmark.measure.schedule import Block, measured_blocks, more_warmup, warmup_blocks
from trnspec.benchmark.plan import MIXED, Load, Plan
from trnspec.core.words import count as in_words

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_WARMUPS = 3
"""The maximum number of warm-ups. With more requests in flight an answer takes longer, so a rate has more of them in flight."""


@dataclass
class EarlierRun:
    """The earlier sessions of a run that is resumed, without its requests: what is not asked again."""

    plan: Plan
    sessions: tuple[RunRecord, ...] = ()
    blocks: dict[BlockKey, BlockRecord] = field(default_factory=dict)
    """The blocks that have ended."""
    unusable_lines: str = ""
    """A sentence about lines of the journal that cannot be used; their requests are repeated."""
    nodes: int = 0
    """The number of node replacements before the session that begins."""
    nodes_of: Mapping[int, int] = field(default_factory=dict)
    """The number of node replacements before each earlier session."""

    def remaining(self) -> Iterator[Block]:
        """The remaining blocks; at the end those of the repetition of the first cell."""
        again = len(self.sessions) + 1
        rounds = (measured_blocks(self.plan, round_, again=again) for round_ in (1, REPEATED))
        blocks = chain.from_iterable(rounds)
        for _, of_cell in groupby(blocks, key=lambda block: (block.round, block.class_, block.load)):
            cell, each = list(of_cell), len(self.plan.arms)
            sets = [cell[first : first + each] for first in range(0, len(cell), each)]
            ended = [self._ended_on(one) for one in sets]
            whole = None not in ended and len(set(ended)) == 1
            for one, nodes in zip(sets, ended, strict=True):
                if not whole and nodes != self.nodes:
                    yield from one

    def _ended_on(self, set_: list[Block]) -> int | None:
        """The nodes (as a number of replacements) on which all arms ended their blocks of a set in one session, and so with the same requests;
        None if they did not."""
        ended = [self.blocks.get(block.key) for block in set_]
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
    return EarlierRun(
        plan,
        raw.sessions,
        blocks=now.ended,
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
            plan = await with_accepted_fields(http, plan, progress.warn)
            await check_sense(http, plan, served, out=out, progress=progress, wanted=sense_check)
        plan = await with_differences(http, plan)
        with Journal(out) as book:
            before = earlier(plan, out, nodes)  # after locking, because another run may just have ended
            if before.unusable_lines:
                progress.warn(f"{before.unusable_lines}; these requests are repeated")
            if before.sessions:  # asked as before
                plan = plan.model_copy(update={"left_out": before.sessions[-1].plan.left_out})
            if next(before.remaining(), None) is None:
                last = before.sessions[-1]
                if last.plan.prices != plan.prices:  # changed since then
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
            await _Session(loader, before, opening.session, max_error_rate, after_warmup).carry_out()


@dataclass
class _Session:
    """One call of `run`, from the warm-up to the last block."""

    loader: Loader
    before: EarlierRun
    number: int
    max_error_rate: float
    after_warmup: Callable[[Loader], None]

    async def carry_out(self) -> None:
        """Run the remaining blocks."""
        plan, blocks = self.loader.plan, list(self.before.remaining())
        self.loader.progress.expect(len(blocks) + (len(plan.arms) if plan.warmup else 0))
        await self._warm_up()
        await self._carry_out(blocks, blocks)

    async def _warm_up(self) -> None:
        """Warm the servers up at the largest load. For a rate, the number in flight is increased until it is that of the rate."""
        loader, concurrency = self.loader, None
        for _ in range(_WARMUPS):
            blocks = list(warmup_blocks(loader.plan, self.number, concurrency=concurrency))
            if concurrency:
                loader.progress.expect(len(blocks))
            await self._carry_out(blocks, ())
            slowest_s = max(state.answers_s.get(MIXED, 0.0) for state in loader.arm_states.values())
            reached = max((block.load.concurrency or 0 for block in blocks), default=0)
            concurrency = more_warmup(loader.plan, reached, slowest_s) if blocks else None
            if concurrency is None:
                break
        self.after_warmup(loader)

    async def _carry_out(self, blocks: Iterable[Block], announced: Iterable[Block]) -> None:
        """Run the blocks one after the other, and print the expected time of those in `announced`."""
        loader, left, cells = self.loader, Counter[Kind](), set[tuple[str, Load, int]]()
        for block in announced:
            left[kind_of(block)] += 1
            cells.add((block.class_, block.load, block.round))
        if seconds := loader.expected_s(left):
            again = any(round_ == REPEATED for *_, round_ in cells)
            size = [in_words(len(cells) - again, "cell")] * (len(cells) > again)
            size += ["the first cell once more"] * again + [in_words(left.total(), "block")]
            loader.progress.tell(f"{', '.join(size)}: about {duration(seconds)} of loading")
        for block in blocks:
            loader.progress.left_s = loader.expected_s(left) or None
            await loader.carry_out(block)
            left[kind_of(block)] -= 1
            for arm, state in loader.arm_states.items():
                if state.failed > self.max_error_rate * state.ended:
                    raise ErrorRateExceeded(
                        f"{arm}: {state.failed} of {state.ended} requests failed, more than --max-error-rate "
                        f"{self.max_error_rate:g} of them; look at the errors above, then repeat the command to continue"
                    )


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
