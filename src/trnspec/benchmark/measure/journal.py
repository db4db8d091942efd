"""The journal of a run, `requests.jsonl`: records are appended as whole lines, and none twice.

Each line is written with one call, so a killed process loses at most the line that it was writing. A partial line is removed
before the next line is written.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from operator import le
from pathlib import Path
from reprlib import repr as shown
from typing import Any

from trnspec.benchmark.errors import ResultsError, StorageError
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import (
    MAX_S,
    MIN_S,
    REPEATED,
    BlockRecord,
    QuestionRecord,
    Record,
    RepeatRecord,
    RequestRecord,
    RunRecord,
    from_json,
    to_json,
)
from trnspec.benchmark.plan import PlannedArm
from trnspec.core import files
from trnspec.core.files import MAX_LINE_BYTES, json_of, lines_in, regular
from trnspec.core.json_text import json_text

FILE_NAME = "requests.jsonl"


def read(folder: Path) -> RawRun:
    """Read the journal in `folder`, or the journals of all rounds in it as one run. A partial last line is ignored.

    Raises ResultsError if there is no journal, or one without a run.
    """
    path = folder / FILE_NAME
    if not path.exists():
        names = (path.name.removeprefix("round-") for path in folder.glob("round-*"))
        if numbers := sorted(int(name) for name in names if name.isdecimal()):
            return _together(folder, [read(folder / f"round-{number}") for number in numbers])
    reader, remedy = JournalReader(path), "give the folder of a run (`measure --out`)"
    try:
        raw = reader.read()
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}; {remedy}") from error
    first, number = reader.first_unusable, reader.unusable
    if raw is None:
        raise ResultsError(f"{path}: holds no run{f' ({first})' if first else ''}; {remedy}")
    several = f"{number} lines cannot be used and are left out: first {first}"
    lines = several if number > 1 else f"1 line cannot be used and is left out: {first}"
    return replace(raw, unusable_lines=f"{FILE_NAME}: {lines}") if number else raw


class JournalReader:
    """Reads a journal, also one that grows: each time only its new lines. They are checked against its first valid run record, which
    is usually its first line."""

    def __init__(self, path: Path) -> None:
        self._path, self._bytes, self._lines = path, 0, 0
        self._records: dict[type[Record], list[Any]] = {}
        self._validator: JournalValidator | None = None
        self.unusable, self.first_unusable = 0, ""

    def read(self, report: Callable[[str], None] = lambda line: None) -> RawRun | None:
        """The run so far, None without one; `report` gets a sentence for each line that cannot be used. Raises OSError."""
        with regular(self._path) as file:
            file.seek(self._bytes)
            for line in lines_in(file):
                self._bytes, self._lines = file.tell(), self._lines + 1
                try:
                    self._take(line)
                except ValueError as error:
                    self.unusable += 1
                    self.first_unusable = self.first_unusable or f"line {self._lines} ({error})"
                    report(f"{FILE_NAME}: line {self._lines} cannot be used and is left out ({error})")
        return self._run() if self._validator else None

    def _run(self) -> RawRun:
        kinds = (RunRecord, RequestRecord, BlockRecord, RepeatRecord, QuestionRecord)
        sessions, requests, blocks, repeats, sense = (tuple(self._records.get(kind, ())) for kind in kinds)
        return RawRun(sessions, requests, blocks, repeats=repeats, sense=sense)

    def _take(self, line: bytes | None) -> None:
        """Add the record of a line. Raises ValueError."""
        if line is None:
            raise ValueError(f"longer than {MAX_LINE_BYTES >> 20} MiB")
        record = from_json(json_of(line))
        if self._validator is None:
            if not isinstance(record, RunRecord):
                raise ValueError("no line before it begins a run")
            self._validator = JournalValidator(record)
        self._validator.check(record)
        self._records.setdefault(type(record), []).append(record)


class JournalValidator:
    """Checks that the records of a journal belong to the run that it begins with."""

    def __init__(self, opening: RunRecord) -> None:
        plan = opening.plan
        self._opening, self._identity = opening, plan.sha256()
        self._known = {"arm": {arm.name for arm in plan.arms}, "class_": {*plan.classes, *plan.loaded_with}}
        self._limits = {prompt.id: plan.answer_limit(prompt) for prompt in plan.prompts}
        self._max_tokens = max(self._limits.values())
        self._seen: set[int] = set()

    def check(self, record: Record) -> None:
        """Raises ValueError if a record does not belong to the run, or repeats another record."""
        if record.run != self._opening.run:
            raise ValueError(f"run is {shown(record.run)}, the journal is of {self._opening.run}")
        if isinstance(record, RunRecord):
            if record.plan.sha256() != self._identity or record.provenance != self._opening.provenance:
                raise ValueError("a session with another plan or provenance")
            return
        for name, known in self._known.items():
            if hasattr(record, name) and (value := getattr(record, name)) not in known:
                raise ValueError(f"{name.rstrip('_')} is {shown(value)}, which the plan does not have")
        if isinstance(record, RequestRecord):
            max_tokens = self._limits.get(record.prompt_id, self._max_tokens)
            if record.error is None and (wrong := contradiction(record, max_tokens)):
                raise ValueError(wrong)
            if record.phase == "warmup":
                return
        if isinstance(record, RequestRecord | BlockRecord):
            if record.load not in self._opening.plan.loads:
                raise ValueError(f"the load is {record.load}, which the plan does not have")
            if record.round not in (1, REPEATED):
                raise ValueError(f"round is {record.round}, of 1")
        self._refuse_twice(record)

    def _refuse_twice(self, record: Record) -> None:
        name = "question" if isinstance(record, QuestionRecord) else "pair_id"
        if (asked := getattr(record, name, None)) is None:
            return
        if (identity := hash((type(record), getattr(record, "arm", ""), asked))) in self._seen:
            raise ValueError(f"{name} is {shown(asked)}, which was asked already")
        self._seen.add(identity)


def contradiction(record: RequestRecord, max_tokens: int) -> str:
    """The reason why the numbers of an answer of at most `max_tokens` are contradictory; empty if they are not."""
    first_s, last_s, chunk_s = record.ttft_s, record.e2e_s, record.chunk_s
    tokens, chunks = record.completion_tokens, record.chunk_tokens
    if first_s is None or last_s is None:
        return "neither an error nor the times of an answer"
    rising = all(map(le, chain((0.0,), chunk_s), chain(chunk_s, (MAX_S,))))  # comparisons with NaN are false
    if not rising or first_s > last_s:
        return "chunk_s, ttft_s and e2e_s are not times of one answer"
    span_s = chunk_s[-1] - chunk_s[0] if len(chunk_s) else 0.0
    if any(0 < time_s < MIN_S for time_s in (first_s, last_s, span_s)):
        return "a time is shorter than a microsecond"
    if tokens is not None and not bool(len(chunk_s)) <= tokens <= max_tokens:
        return f"completion_tokens is {tokens}, of {max_tokens} at most"
    if record.chunk_chars is not None and len(record.chunk_chars) != len(chunk_s):
        return f"chunk_chars has {len(record.chunk_chars)} chunks, chunk_s {len(chunk_s)}"
    if chunks is not None and (len(chunks) != len(chunk_s) or sum(chunks) != tokens):
        return f"chunk_tokens do not add up to completion_tokens = {tokens}"
    return ""


def _together(folder: Path, rounds: Sequence[RawRun]) -> RawRun:
    """The rounds of a run, each with some of its arms, as one run. If an arm was in several rounds, the first one counts."""
    plan, arms, sessions = rounds[0].plan, list[PlannedArm](), list[RunRecord]()
    requests, blocks = list[RequestRecord](), list[BlockRecord]()
    for round_ in rounds:
        whole = round_.plan.model_copy(update={"arms": plan.arms, "baseline": plan.baseline})
        if whole != plan:
            raise ResultsError(
                f"{folder}: its rounds differ in more than their arms; give one of its folders round-1, round-2, ..."
            )
        before = len(sessions)  # sessions are numbered over all rounds
        new = {arm.name for arm in round_.plan.arms} - {arm.name for arm in arms}
        arms += (arm for arm in round_.plan.arms if arm.name in new)
        requests += (replace(r, session=r.session + before) for r in round_.requests if r.arm in new)
        blocks += (replace(b, session=b.session + before) for b in round_.blocks if b.arm in new)
        sessions += (replace(s, session=s.session + before) for s in round_.sessions)
    plan = plan.model_copy(update={"arms": tuple(arms)})
    unusable_lines = dict.fromkeys(round_.unusable_lines for round_ in rounds if round_.unusable_lines)
    sense = {(one.arm, one.question): one for round_ in reversed(rounds) for one in round_.sense}
    return RawRun(
        tuple(replace(one, plan=plan, plan_sha256=plan.sha256()) for one in sessions),
        tuple(requests),
        tuple(blocks),
        "; ".join(unusable_lines),
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

    def __init__(self, folder: Path) -> None:
        self.path, self._new_folder = folder / FILE_NAME, not folder.exists()
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

    def append(self, record: Record) -> None:
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
