"""What a command and its children use: CPU seconds of all, and the most memory they hold at once."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_EVERY_S = 0.1


@dataclass(frozen=True)
class Used:
    """One run of a command."""

    cpu_s: float
    wall_s: float
    held: tuple[tuple[float, float], ...]
    """Wall time and PSS in MB, ten times a second."""

    @property
    def peak_mb(self) -> float:
        """The most that was held at once."""
        return self.peak_until(float("inf"))

    def peak_until(self, unix_s: float) -> float:
        """The most that was held up to then."""
        return max((mb for at_s, mb in self.held if at_s <= unix_s), default=0.0)


def run(
    command: Sequence[str],
    *,
    output: Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Used:
    """Run to the end, standard output into a file, messages into one beside it. Raises CalledProcessError."""
    began = time.perf_counter()
    with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment, cwd=folder)
        watch = _Watch(process.pid)
        watch.start()
        _, status, usage = os.wait4(process.pid, 0)
        watch.ended.set()
        watch.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Used(usage.ru_utime + usage.ru_stime, time.perf_counter() - began, tuple(watch.held))


class _Watch(threading.Thread):
    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.held: list[tuple[float, float]] = []
        self._pid = pid

    def run(self) -> None:
        while not self.ended.wait(_EVERY_S):
            self.held.append((time.time(), sum(map(_pss, _tree(self._pid))) / 1e6))


def _tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for one in found:
        for thread in Path(f"/proc/{one}/task").glob("*"):
            try:
                found += map(int, (thread / "children").read_text().split())
            except OSError:
                continue
    return found


def _pss(pid: int) -> int:
    """Bytes; 0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
