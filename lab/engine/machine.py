"""Whether this machine can run the engine; refused before anything is fetched."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from experiment.finding import Outside

DISK_GIB = 4.5
"""2.5 GiB installed, and the packages while they are unpacked."""
MEMORY_GIB_PER_SERVER = 1.5
"""Resident memory of one server's processes, measured, pages that they share counted once."""
MEMORY_GIB_BESIDES = 1.5
"""The benchmark and what the system needs."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What was found."""

    system: str
    architecture: str
    cpu_flags: frozenset[str]
    disk_gib: float
    """Free where the engine is to be installed."""
    memory_gib: float
    """Available now."""
    cores: int


def look(home: Path) -> Machine:
    """This machine, seen from the folder that the engine goes to."""
    existing = next(folder for folder in (home, *home.absolute().parents) if folder.exists())
    return Machine(
        system=platform.system(),
        architecture=platform.machine(),
        cpu_flags=_flags(),
        disk_gib=shutil.disk_usage(existing).free / 2**30,
        memory_gib=_memory_gib(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )


def refuse_install(machine: Machine) -> None:
    """Raises Outside with the first reason why the engine's wheels cannot be installed here."""
    for reason in _against_install(machine):
        raise Outside(reason)


def refuse_run(machine: Machine, *, servers: int) -> None:
    """Raises Outside where so many servers do not fit into memory."""
    needed = servers * MEMORY_GIB_PER_SERVER + MEMORY_GIB_BESIDES
    if machine.memory_gib < needed:
        raise Outside(
            f"memory: {machine.memory_gib:.1f} GiB are available, {servers} servers need {needed:.1f}; "
            "close something, or name fewer arms with --arms"
        )


def _against_install(machine: Machine) -> Iterator[str]:
    other = "give your own vLLM with --engine-command"
    if (machine.system, machine.architecture) != ("Linux", "x86_64"):
        yield f"platform: the engine's wheels are for Linux x86_64, this is {machine.system} {machine.architecture}; {other}"
    if "avx2" not in machine.cpu_flags:
        yield f"CPU: the engine needs AVX2 and this one does not name it in /proc/cpuinfo; {other}"
    if machine.disk_gib < DISK_GIB:
        yield f"disk: {machine.disk_gib:.1f} GiB are free, the engine needs {DISK_GIB}; free some, or choose another --home"


def _flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


def _memory_gib() -> float:
    """What Linux says a new process could have; infinite where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return float("inf")
    found = next((line.split()[1] for line in lines if line.startswith("MemAvailable")), None)
    return int(found) / 2**20 if found else float("inf")
