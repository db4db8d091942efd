"""A run by llmperf: one arm after the other, cell by cell, every request in this project's records as it ends.

Started again on the same folder it goes on: a finished cell is not asked again, of another only what is left.
"""

from __future__ import annotations

import asyncio
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.errors import PlanError, ResultsError
from benchmark.llmperf import asking, process, reading
from benchmark.llmperf.asking import Cell, Lengths, Text
from benchmark.measure import journal
from benchmark.measure.client import session
from benchmark.measure.earlier import Earlier, earlier
from benchmark.measure.endpoints import owners, provenance
from benchmark.measure.records import RequestRecord, RunRecord
from benchmark.plan import Plan
from benchmark.show.llmperf_files import cell_folder

_TIMEOUT_S = 180.0
"""llmperf's own, for a connection and for each wait within a stream."""


@dataclass(frozen=True, kw_only=True)
class Harness:
    """llmperf in the folder `home`, and how it is to ask."""

    home: Path
    text: Text
    lengths: Lengths
    program: tuple[str, ...] = (sys.executable, "-m", "benchmark.llmperf.program")

    def run(self, plan: Plan, out: Path, report: Callable[[str], None]) -> None:
        """Carry out what `out` does not hold yet.

        Raises PlanError, ResultsError (another run's folder), EndpointError, HarnessError, StorageError.
        """
        self._check(plan)
        asked = asking.as_asked(plan, self.text)
        before = earlier(asked, out)
        client = asking.described(self.lengths, self.text, self.home)
        if before.sittings and before.sittings[0].client != client:
            raise ResultsError(
                f"{out}: holds a run of {before.sittings[0].client}, not of {client}; choose another --out"
            )
        known = _recorded(out) if before.sittings else []
        done = Counter((record.arm, record.class_, record.concurrency) for record in known)
        left = [(cell, asked.requests - done[_key(cell)]) for cell in cells(asked)]
        if not any(wanted > 0 for _, wanted in left):
            return
        sitting = asyncio.run(_sitting(asked, before, client))
        with journal.Journal(out) as book:
            book.append(sitting)
            for number, (cell, wanted) in enumerate(left, start=1):
                if wanted > 0:
                    report(f"[{number}/{len(left)}] {cell}: {wanted} requests")
                    self._cell(asked, cell, wanted, out, _Recorder(book, sitting, cell, known))

    def _check(self, plan: Plan) -> None:
        if not (self.home / "token_benchmark_ray.py").is_file():
            raise PlanError(
                f"--llmperf {self.home}: holds no token_benchmark_ray.py; give the folder of llmperf's sources"
            )
        if self.lengths.mean_input_tokens < asking.LEAST_INPUT_TOKENS:
            raise PlanError(
                f"--mean-input-tokens {self.lengths.mean_input_tokens}: llmperf's instruction alone is longer; use "
                f"{asking.LEAST_INPUT_TOKENS} or more"
            )

    def _cell(self, plan: Plan, cell: Cell, wanted: int, out: Path, recorder: _Recorder) -> None:
        results = cell_folder(out, cell.arm.name, cell.class_, f"c{cell.concurrency}")
        if recorder.sitting.sitting > 1:
            results = results / f"sitting-{recorder.sitting.sitting}"
        with _scratch() as folder:
            own = {"LLMPERF_RECORDS": str(folder / "records.jsonl")}
            if self.text == "classes":
                (folder / "sonnet.txt").write_text(asking.lines(plan, cell.class_), encoding="utf-8")
                own["LLMPERF_TEXT"] = str(folder)
            program = process.Program(
                command=[
                    *self.program,
                    *asking.options(plan, cell, self.lengths, wanted=wanted, results=results.resolve()),
                ],
                environment=asking.environment(cell, home=self.home.resolve(), own=own),
                folder=self.home,
                records=folder / "records.jsonl",
                results=results,
                log=out / "llmperf.log",
            )
            patience_s = asking.patience_s(plan, wanted, cell.concurrency)
            process.run(program, recorder.take, wanted=wanted, patience_s=patience_s, what=str(cell))


def cells(plan: Plan) -> Iterator[Cell]:
    """One arm after the other, as llmperf's users do it."""
    for arm in plan.arms:
        for concurrency in plan.concurrency:
            for class_ in plan.classes:
                yield Cell(arm=arm, class_=class_, concurrency=concurrency)


class _Recorder:
    """Writes requests of one cell into the journal."""

    def __init__(
        self, book: journal.Journal, sitting: RunRecord, cell: Cell, known: list[RequestRecord]
    ) -> None:
        self.sitting = sitting
        self._book, self._pairing = book, reading.Pairing()
        self._about = {
            "run": sitting.run,
            "arm": cell.arm.name,
            "class_": cell.class_,
            "concurrency": cell.concurrency,
        }
        for record in known:
            if (record.arm, record.class_, record.concurrency) == _key(cell):
                self._pairing.next(f"{cell.class_}/c{cell.concurrency}", record.prompt_id)

    def take(self, line: dict[str, Any]) -> None:
        """One line of the program's file."""
        self._book.append(reading.record(line, about=self._about, pairing=self._pairing))


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="llmperf-") as folder:
        yield Path(folder)


def _key(cell: Cell) -> tuple[str, str, int]:
    return cell.arm.name, cell.class_, cell.concurrency


def _recorded(out: Path) -> list[RequestRecord]:
    return [record for record in journal.records(out) if isinstance(record, RequestRecord)]


async def _sitting(plan: Plan, before: Earlier, client: str) -> RunRecord:
    """The record that opens this sitting. Raises EndpointError, and ResultsError for mixed provenance."""
    async with session(_TIMEOUT_S) as http:
        owned_by = await owners(http, plan)
    before.check_provenance(provenance(owned_by))
    now = time.time()
    identity = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{plan.sha256()[:8]}"
    return RunRecord(
        run=before.sittings[0].run if before.sittings else identity,
        sitting=len(before.sittings) + 1,
        started_unix_s=round(now, 3),
        provenance=provenance(owned_by),
        plan=plan.to_dict(),
        plan_sha256=plan.sha256(),
        owned_by=owned_by,
        timeout_s=_TIMEOUT_S,
        client=client,
        python=platform.python_version(),
    )
