"""The journal of a run, `requests.jsonl`: records are appended as whole lines, and none twice.

Each line is written with one call, so a killed process loses at most the line that it was writing. A partial line is removed
before the next line is written.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from trnspec.benchmark.errors import ResultsError, StorageError
from trnspec.benchmark.measure import repeats, sanity_check
from trnspec.benchmark.measure.records import (
    LAST_MOMENT,
    REPEATED,
    BlockKey,
    BlockRecord,
    JournalValidator,
    NodeChange,
    Record,
    RequestRecord,
    RunRecord,
    from_json,
    to_json,
)
from trnspec.benchmark.measure.repeats import Repeat
from trnspec.benchmark.measure.schedule import measured_blocks
from trnspec.benchmark.plan import MIXED, Plan, PlannedArm
from trnspec.core import files
from trnspec.core.files import MAX_LINE_BYTES, json_of, lines_in, lines_of, regular
from trnspec.core.json_text import json_text

FILE_NAME = "requests.jsonl"
_WALL_S = 0.5
"""The tolerated change of the wall clock, which gives the start times, during a block. A run is resumed later than this."""
_NODE_GONE_ERRORS = ("connect_refused", "connect_failed", "no_done", "reset", "timeout")
"""Errors of requests to a server whose node was removed."""


@dataclass(frozen=True)
class RawRun:
    """The records of a journal, in the order in which they were written."""

    sessions: tuple[RunRecord, ...]
    requests: tuple[RequestRecord, ...]
    blocks: tuple[BlockRecord, ...] = ()
    unusable_lines: str = ""
    """A sentence about lines that cannot be used; empty if there are none."""
    repeats: tuple[Repeat, ...] = ()
    """The second answers of the baseline."""
    sense: tuple[sanity_check.Answer, ...] = ()
    """The sanity check of each arm before the load."""

    @cached_property
    def plan(self) -> Plan:
        """The plan of the last session. Between sessions only addresses and prices may change."""
        return self.sessions[-1].plan

    def with_plan(self, plan: Plan) -> RawRun:
        """The run with this plan in its last session."""
        return replace(self, sessions=(*self.sessions[:-1], replace(self.sessions[-1], plan=plan)))

    @property
    def held(self) -> bool:
        """Whether loads were held constant during measurement."""
        return self.sessions[0].held

    @cached_property
    def _spans(self) -> dict[BlockKey, tuple[float, float]]:
        """The times of each block of a held load; of a repeated block, the last one."""
        return {
            key: (block.started_unix_s - _WALL_S, block.started_unix_s + block.duration_s + _WALL_S)
            for key, block in self.ended.items()
            if block.block is not None
        }

    @cached_property
    def node_changes(self) -> tuple[NodeChange, ...]:
        """Replaced nodes, in their order. A session without nodes counts as having those of the session before."""
        known, changes = dict[str, str](), list[NodeChange]()
        for session in self.sessions:
            for arm, node in (session.nodes or {}).items():
                # In a later round of arms, a new arm on a node of earlier arms is not a change.
                before = known.get(arm) or (
                    node if node in known.values() else next(iter(known.values()), node)
                )
                if before != node:
                    at_unix_s = session.started_unix_s
                    changes.append(NodeChange(session.session, at_unix_s, arm, before, node))
            known |= session.nodes or {}
        return tuple(changes)

    @cached_property
    def _replaced_unix_s(self) -> list[float]:
        """The times from which other nodes served."""
        return sorted({change.at_unix_s - _WALL_S for change in self.node_changes})

    def nodes_of(self, record: RequestRecord | BlockRecord | RunRecord) -> int:
        """The number of node replacements before a record. Records with the same number were served by the same nodes."""
        return bisect_right(self._replaced_unix_s, record.started_unix_s)

    @cached_property
    def ended(self) -> dict[BlockKey, BlockRecord]:
        """The blocks that ended; of a repeated block, the last one. A block whose last requests failed because the node was removed does not
        count as ended."""
        return {
            block.key: block for block in self.blocks if (self.nodes_of(block), block.key) not in self._cut
        }

    @cached_property
    def _cut(self) -> set[tuple[int, BlockKey]]:
        """Blocks with a failure after which their arm answered nothing until its node was replaced."""
        cut, answered = set[tuple[int, BlockKey]](), set[tuple[int, str]]()
        for record in reversed(self.requests) if self.node_changes else ():
            nodes = self.nodes_of(record)
            if nodes == len(self._replaced_unix_s) or (nodes, record.arm) in answered:
                continue
            if record.error not in _NODE_GONE_ERRORS:
                answered.add((nodes, record.arm))
                continue
            for queue in (record.class_, MIXED):
                cut.add((nodes, (record.arm, queue, record.load, record.round, record.block)))
        return cut

    def on(self, nodes: Mapping[str, str] | None) -> RawRun:
        """The run with a further session that begins now with these nodes."""
        last = self.sessions[-1]
        coming = replace(last, session=last.session + 1, started_unix_s=LAST_MOMENT, nodes=nodes)
        return replace(self, sessions=(*self.sessions, coming))

    @cached_property
    def by_nodes(self) -> RawRun:
        """The run with a start of the servers for each node. A replaced node counts as another start, so no result pools over the
        replacement."""
        if not self.node_changes:
            return self
        requests = tuple(replace(record, start=self.nodes_of(record) + 1) for record in self.requests)
        blocks = tuple(replace(block, start=self.nodes_of(block) + 1) for block in self.blocks)
        return replace(self, requests=requests, blocks=blocks)

    def counts(self, record: RequestRecord) -> bool:
        """Whether the block of a request ended. An interrupted set was repeated with the same number, so the time of the request is compared
        with that of the block."""
        if record.block is None:
            return True
        keys = (
            (record.arm, queue, record.load, record.round, record.block) for queue in (record.class_, MIXED)
        )
        spans = (self._spans[key] for key in keys if key in self._spans)
        return any(begin <= record.started_unix_s <= end for begin, end in spans)

    @cached_property
    def asked(self) -> tuple[RequestRecord, ...]:
        """Measured requests, including those of an interrupted set."""
        return tuple(record for record in self.requests if record.phase == "measured")

    @cached_property
    def measured(self) -> tuple[RequestRecord, ...]:
        """The requests that count, including failed ones."""
        return tuple(filter(self.counts, self.asked))

    @property
    def made_up(self) -> dict[str, tuple[str, ...]]:
        """The classes for which an emulated endpoint made up the acceptance in any session, by arm."""
        by_arm: dict[str, tuple[str, ...]] = {}
        for session in self.sessions:
            for arm, classes in (session.made_up or {}).items():
                by_arm[arm] = tuple(dict.fromkeys((*by_arm.get(arm, ()), *classes)))
        return by_arm

    @property
    def cautions(self) -> tuple[str, ...]:
        """Cautions of emulated endpoints about their own timings, each once."""
        return tuple(dict.fromkeys(text for session in self.sessions for text in session.cautions or ()))


def read(folder: Path) -> RawRun:
    """Read the journal in `folder`, or the journals of all rounds in it as one run. A partial last line is ignored.

    Raises ResultsError if there is no journal, or one without a run.
    """
    path = folder / FILE_NAME
    if not path.exists():
        names = (path.name.removeprefix("round-") for path in folder.glob("round-*"))
        if numbers := sorted(int(name) for name in names if name.isdecimal()):
            return _together(folder, [read(folder / f"round-{number}") for number in numbers])
    reader, remedy = JournalReader(path), "give the folder that `run --out` wrote"
    try:
        raw = reader.read()
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}; {remedy}") from error
    first, number = reader.first_unusable, reader.unusable
    if raw is None:
        raise ResultsError(f"{path}: holds no run{f' ({first})' if first else ''}; {remedy}")
    several = f"{number} lines cannot be used and are left out: first {first}"
    lines = several if number > 1 else f"1 line cannot be used and is left out: {first}"
    return replace(
        raw,
        unusable_lines=f"{FILE_NAME}: {lines}" if number else "",
        repeats=repeats.read(folder, raw.sessions[0].run),
        sense=sanity_check.read(folder, raw.sessions[0].plan_sha256),
    )


class JournalReader:
    """Reads a journal, also one that grows: each time only its new lines. They are checked against its first valid run record, which
    is usually its first line."""

    def __init__(self, path: Path) -> None:
        self._path, self._bytes, self._lines = path, 0, 0
        self._run = list[RunRecord](), list[RequestRecord](), list[BlockRecord]()
        self._validator: JournalValidator | None = None
        self.unusable, self.first_unusable = 0, ""

    def read(self, report: Callable[[str], None] = lambda line: None) -> RawRun | None:
        """The run so far, None without one; `report` gets a sentence for each line that cannot be used. Raises OSError."""
        self._validator = self._validator or _validator(self._path)
        with regular(self._path) as file:
            file.seek(self._bytes)
            for line in lines_in(file):
                self._bytes, self._lines = file.tell(), self._lines + 1
                try:
                    self._take(_record(line))
                except ValueError as error:
                    self.unusable += 1
                    self.first_unusable = self.first_unusable or f"line {self._lines} ({error})"
                    report(f"{FILE_NAME}: line {self._lines} cannot be used and is left out ({error})")
        if self._validator is None:
            self._bytes = self._lines = self.unusable = 0  # a later line may begin the run
            return None
        sessions, requests, blocks = self._run
        return RawRun(tuple(sessions), tuple(requests), tuple(blocks))

    def _take(self, record: Record) -> None:
        if self._validator is None:
            raise ValueError("no line before or after it begins a run")
        self._validator.check(record)
        sessions, requests, blocks = self._run
        if isinstance(record, RequestRecord):
            requests.append(record)
        elif isinstance(record, BlockRecord):
            blocks.append(record)
        else:
            sessions.append(record)


def _validator(path: Path) -> JournalValidator | None:
    """The validator of the first valid run record; None without one."""
    for line in lines_of(path):
        with suppress(ValueError):
            if isinstance(record := _record(line), RunRecord):
                return JournalValidator(record)
    return None


def _record(line: bytes | None) -> Record:
    """The record of a line. Raises ValueError."""
    if line is None:
        raise ValueError(f"longer than {MAX_LINE_BYTES >> 20} MiB")
    return from_json(json_of(line))


def _together(folder: Path, rounds: Sequence[RawRun]) -> RawRun:
    """The rounds of a run, each with some of its arms, as one run. If an arm was in several rounds, the first one counts."""
    plan, arms, seen = rounds[0].plan, list[PlannedArm](), set[str]()
    requests, blocks = list[RequestRecord](), list[BlockRecord]()
    for round_ in rounds:
        whole = round_.plan.model_copy(update={"arms": plan.arms, "baseline": plan.baseline})
        if whole != plan:
            raise ResultsError(
                f"{folder}: its rounds differ in more than their arms; give one of its folders round-1, round-2, ..."
            )
        new = {arm.name for arm in round_.plan.arms} - seen
        arms += (arm for arm in round_.plan.arms if arm.name in new)
        requests += (record for record in round_.requests if record.arm in new)
        blocks += (block for block in round_.blocks if block.arm in new)
        seen |= new
    plan = plan.model_copy(update={"arms": tuple(arms)})
    sessions = (
        replace(s, plan=plan, plan_sha256=plan.sha256()) for round_ in rounds for s in round_.sessions
    )
    unusable_lines = "; ".join(
        dict.fromkeys(round_.unusable_lines for round_ in rounds if round_.unusable_lines)
    )
    sense = {answer.key: answer for round_ in reversed(rounds) for answer in round_.sense}
    return RawRun(
        tuple(sessions),
        tuple(requests),
        tuple(blocks),
        unusable_lines,
        rounds[0].repeats,
        tuple(sense.values()),
    )


def exists(folder: Path) -> bool:
    """Whether `folder` holds a journal with at least one whole line."""
    path = folder / FILE_NAME
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.readline(MAX_LINE_BYTES).endswith(b"\n")


class Journal:
    """Appends records. One writer at a time: the file is locked. A context manager."""

    def __init__(self, folder: Path, name: str = FILE_NAME) -> None:
        self.path, self._new_folder = folder / name, not folder.exists()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror}; --out needs a writable folder") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise ResultsError(f"{self.path}: another run writes it; choose another --out") from error
        self._size: int | None = None
        """The size after the last line; None until a partial line of another process was removed."""

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self._size:
                self._check()
            if not self._size and not self._fault() and not os.fstat(self._fd).st_size:  # after a full disk
                with suppress(OSError):
                    self.path.unlink()
                    if self._new_folder:
                        self.path.parent.rmdir()
        finally:
            os.close(self._fd)

    def append(self, record: Any) -> None:
        """Write one record as one line. Raises StorageError; earlier lines are kept."""
        if self._size is None:
            self._size = self._cut_partial_line()
        rest = line = json_text(to_json(record)).encode() + b"\n"
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            with suppress(OSError):
                self._cut_partial_line()
            raise StorageError(
                f"{self.path}: {error.strerror}; what is there is kept, repeat the command to continue"
            ) from error
        self._size += len(line)
        self._check()

    def _check(self) -> None:
        """Raises StorageError if another program took the file away or emptied it."""
        if fault := self._fault():
            raise StorageError(f"{self.path}: {fault}")

    def _fault(self) -> str:
        """What happened to the file since it was opened, with the remedy; empty if it is there and whole."""
        ours = os.fstat(self._fd)
        try:
            there = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            if ours.st_nlink:
                return "was moved during the run; move it back, then repeat the command to continue"
            return "was removed during the run, and its answers are lost; repeat the command to measure again"
        except OSError as error:
            return (
                f"cannot be reached ({error.strerror}); what is there is kept, repeat the command to continue"
            )
        again = "repeat the command to continue with what is there"
        if not os.path.samestat(ours, there):
            return (
                f"was replaced by another file during the run, and the answers since then are lost; {again}"
            )
        if ours.st_size < (self._size or 0):
            return f"was shortened during the run, and the answers that it held are lost; {again}"
        return ""

    def _cut_partial_line(self) -> int:
        """Remove a partial line at the end of the file; returns its size."""
        if size := os.fstat(self._fd).st_size:
            with mmap.mmap(self._fd, size, access=mmap.ACCESS_READ) as whole:
                end = whole.rfind(b"\n") + 1
            if end < size:
                os.ftruncate(self._fd, end)
            return end
        return 0


def write_whole(path: Path, text: str) -> Path:
    """Write another file of a results folder, and the folder if needed. An earlier file is replaced only when the new one is complete.

    Half a surrogate pair, which the JSON of a server can have, becomes a question mark. Raises StorageError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, text)
    except OSError as error:
        remedy = "the raw file is kept, `report` makes the rest again from it"
        raise StorageError(f"{path}: {error.strerror}; {remedy}") from error
    return path


def extent(raw: RawRun) -> tuple[int, bool]:
    """The minimum number of measured requests that were planned, and whether the run is complete."""
    plan = raw.plan
    if raw.held:
        wanted = [*measured_blocks(plan), *measured_blocks(plan, REPEATED)]
        planned = sum(block.counted for block in wanted)
        return planned, all(block.key in raw.ended for block in wanted)
    planned = len(plan.arms) * len(plan.loads) * plan.requests * len(plan.classes)
    return planned, len(raw.asked) == planned
