"""`requests.jsonl` on disk: appended line by line, each line whole, nothing written twice.

A line goes to the operating system in one piece, so a killed process loses at most the line it was
writing; what such a line left behind is cut off before anything follows it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmark.errors import ResultsError, StorageError
from benchmark.measure.plausible import believed, token_limits
from benchmark.measure.records import BlockRecord, Record, RequestRecord, RunRecord, from_json, to_json

FILE_NAME = "requests.jsonl"
_PIECE = 1 << 16


@dataclass(frozen=True)
class RawRun:
    """What a journal holds, in the order in which it was written."""

    sittings: tuple[RunRecord, ...]
    requests: tuple[RequestRecord, ...]
    blocks: tuple[BlockRecord, ...] = ()

    @property
    def plan(self) -> Mapping[str, Any]:
        """The last sitting's: between sittings addresses and prices may change, and nothing else."""
        return self.sittings[-1].plan

    @property
    def made_up(self) -> dict[str, tuple[str, ...]]:
        """By arm, the classes whose acceptance an emulated endpoint made up in any sitting."""
        found: dict[str, tuple[str, ...]] = {}
        for sitting in self.sittings:
            said = sitting.made_up if isinstance(sitting.made_up, dict) else {}
            for arm, classes in said.items():
                found[arm] = tuple(dict.fromkeys((*found.get(arm, ()), *_texts(classes))))
        return found

    @property
    def cautions(self) -> tuple[str, ...]:
        """What emulated endpoints said against their own timings, each once."""
        return tuple(dict.fromkeys(text for sitting in self.sittings for text in _texts(sitting.cautions)))


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def read(folder: Path) -> RawRun:
    """The journal in `folder`. Raises ResultsError where there is none or it is damaged."""
    sittings: list[RunRecord] = []
    requests: list[RequestRecord] = []
    blocks: list[BlockRecord] = []
    limits: dict[str, int] = {}
    for record in records(folder):
        if isinstance(record, RunRecord):
            sittings.append(record)
            limits |= token_limits(record.plan)
        elif isinstance(record, RequestRecord):
            requests.append(believed(record, limits))
        else:
            blocks.append(record)
    if not sittings:
        raise ResultsError(
            f"{folder / FILE_NAME}: holds no run; give the folder that `run --out` or `import --out` wrote"
        )
    return RawRun(tuple(sittings), tuple(requests), tuple(blocks))


def records(folder: Path) -> Iterator[Record]:
    """The records in `folder`, one at a time; a last line that was cut short is none. Raises ResultsError."""
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield _record(line, f"{path}:{number}")
    except OSError as error:
        raise ResultsError(
            f"{path}: {error.strerror}; give the folder that `run --out` or `import --out` wrote"
        ) from error


def _record(line: bytes, where: str) -> Record:
    try:
        return from_json(json.loads(line))
    except (ValueError, AttributeError, TypeError) as error:
        raise ResultsError(f"{where}: no record ({error}); remove the line to go on") from error


def exists(folder: Path) -> bool:
    """Whether `folder` holds a journal with at least one whole line."""
    path = folder / FILE_NAME
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.readline().endswith(b"\n")


class Journal:
    """Appends records. One writer at a time: the file is locked. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
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
        self._cut_partial_line()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def append(self, record: Record) -> None:
        """Write one record as one line. Raises StorageError; earlier lines are kept."""
        rest = json.dumps(to_json(record), separators=(",", ":")).encode() + b"\n"
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            raise StorageError(
                f"{self.path}: {error.strerror}; what is there is kept, the same command goes on from it"
            ) from error

    def _cut_partial_line(self) -> None:
        """Cut off what follows the last line break, looking for it from the end."""
        end = size = os.fstat(self._fd).st_size
        while end > 0:
            start = max(0, end - _PIECE)
            found = os.pread(self._fd, end - start, start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._fd, end)
