"""One run of llmperf's program, followed while it is on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.errors import HarnessError

_LOOK_S = 0.5
_LET_GO_S = 60.0
"""Ray, busy with many actors, may never end by itself. What was asked for is there by then."""
_STOP_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Program:
    """What is run, and where it writes."""

    command: Sequence[str]
    environment: dict[str, str]
    folder: Path
    """Working directory: llmperf's sources, with its tokenizer below."""
    records: Path
    results: Path
    log: Path


def run(
    program: Program, take: Callable[[dict[str, Any]], None], *, wanted: int, patience_s: float, what: str
) -> None:
    """Give each request to `take` as it ends, until llmperf has stored its results.

    Raises HarnessError where it ends otherwise, and ends it in every case.
    """
    program.records.touch()
    with program.log.open("wb") as log, program.records.open(encoding="utf-8") as records:
        child = subprocess.Popen(
            program.command,
            cwd=program.folder,
            env=program.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            taken = _followed(child, _Lines(records, take), program.results, patience_s)
        finally:
            _end(child)
    if taken < wanted or not _stored(program.results):
        raise HarnessError(
            f"{what}: llmperf ended with code {child.returncode} after {taken} of {wanted} requests: "
            f"{_last_line(program.log)}; its log is {program.log}; the same command goes on"
        )


class _Lines:
    """Whole lines of a file that grows."""

    def __init__(self, file: Any, take: Callable[[dict[str, Any]], None]) -> None:
        self._file, self._take, self._rest, self.count = file, take, "", 0

    def read(self) -> None:
        *whole, self._rest = (self._rest + self._file.read()).split("\n")
        for line in whole:
            self._take(json.loads(line))
            self.count += 1


def _followed(child: subprocess.Popen[bytes], lines: _Lines, results: Path, patience_s: float) -> int:
    until = time.monotonic() + patience_s + _LET_GO_S
    stored_at: float | None = None
    while child.poll() is None and time.monotonic() < until:
        time.sleep(_LOOK_S)
        lines.read()
        if stored_at is None and _stored(results):
            stored_at = time.monotonic()
            until = min(until, stored_at + _LET_GO_S)
    lines.read()
    return lines.count


def _stored(results: Path) -> bool:
    """Whether llmperf has written its last file, whole."""
    for path in results.glob("*_individual_responses.json"):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            return False
        return True
    return False


def _end(child: subprocess.Popen[bytes]) -> None:
    """The process and those that Ray started for it, which are in its session or end when it does."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            continue
    child.wait()


def _last_line(log: Path) -> str:
    said = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    return next((line[:200] for line in reversed(said) if line), "it said nothing")
