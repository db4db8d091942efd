"""`requests.jsonl` on disk: appended line by line, each line whole, nothing written twice.

A line goes to the operating system in one piece, so a killed process loses at most the line it was
writing; what such a line left behind is cut off before anything follows it.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from benchmark.errors import ResultsError, StorageError
from benchmark.measure.records import RequestRecord, RunRecord, from_json, to_json

FILE_NAME = "requests.jsonl"


@dataclass(frozen=True)
class RawRun:
    """What a journal holds, in the order in which it was written."""

    sittings: tuple[RunRecord, ...]
    requests: tuple[RequestRecord, ...]


def read(folder: Path) -> RawRun:
    """The journal in `folder`. Raises ResultsError where there is none or it is damaged."""
    path = folder / FILE_NAME
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}; give the folder that `run --out` wrote") from error
    sittings: list[RunRecord] = []
    requests: list[RequestRecord] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = from_json(json.loads(line))
        except (ValueError, AttributeError, TypeError) as error:
            raise ResultsError(f"{path}:{number}: no record ({error}); remove the line to go on") from error
        if isinstance(record, RunRecord):
            sittings.append(record)
        else:
            requests.append(record)
    if not sittings:
        raise ResultsError(f"{path}: holds no run; give the folder that `run --out` wrote")
    return RawRun(tuple(sittings), tuple(requests))


def exists(folder: Path) -> bool:
    """Whether `folder` holds a journal with at least one whole line."""
    path = folder / FILE_NAME
    return path.is_file() and b"\n" in path.read_bytes()


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

    def append(self, record: RunRecord | RequestRecord) -> None:
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
        content = self.path.read_bytes()
        if content and not content.endswith(b"\n"):
            os.ftruncate(self._fd, content.rfind(b"\n") + 1)
