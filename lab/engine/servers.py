"""The arms' servers: started, watched until they are healthy, and stopped whatever happens.

Each has a process group of its own, because vLLM starts further processes; a group is ended as a whole. A guard in
it ends it even where the lab itself is killed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from experiment.finding import Refusal
from lab.engine.argv import LOOPBACK

ROOT = Path(__file__).resolve().parent.parent.parent
PROBE_TIMEOUT_S = 120
PROBE_PERIOD_S = 2.0
STOP_TIMEOUT_S = 20
_POLL_S = 0.25

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Command:
    """One server to start, and how it is known to be up; what names the port is made when that is known."""

    name: str
    argv: Callable[[int], Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    health: str = "/health"
    """Path that answers 200 when the server is ready."""
    startup: Callable[[int], Sequence[str]] | None = None
    """Command that must succeed once thereafter; None: being ready is enough."""
    startup_s: float
    """How long both may take."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """One that was started."""

    command: Command
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def name(self) -> str:
        return self.command.name

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"


@contextmanager
def running(commands: Sequence[Command], *, logs: Path, at_once: int, say: Say) -> Iterator[dict[str, str]]:
    """Start the servers, `at_once` of them at a time; yields name to base URL. Raises Refusal."""
    started: list[Server] = []
    begun = time.monotonic()
    try:
        waiting: list[Server] = []
        for command in commands:
            if len(waiting) >= at_once:
                _wait(waiting.pop(0), begun, say)
            server = _start(command, logs, started)
            waiting.append(server)
        for server in waiting:
            _wait(server, begun, say)
        yield {server.name: f"{server.url}/v1" for server in started}
    finally:
        stop(started)


def stop(servers: Sequence[Server]) -> None:
    """End every group: first asked, then forced."""
    for server in servers:
        _signal(server, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for server in servers:
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(timeout=max(0.1, deadline - time.monotonic()))
    for server in servers:
        _signal(server, signal.SIGKILL)
        server.process.wait()
        if server.process.stdin:
            server.process.stdin.close()


def _start(command: Command, logs: Path, started: list[Server]) -> Server:
    port = _free_port()
    log = logs / f"{command.name}.log"
    logs.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "lab.engine.guard", *command.argv(port)],
            stdin=subprocess.PIPE,
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **command.environment},
            start_new_session=True,
        )
    server = Server(command=command, port=port, process=process, log=log)
    started.append(server)
    return server


def _wait(server: Server, begun: float, say: Say) -> None:
    deadline = time.monotonic() + server.command.startup_s
    refusal = "its health was never good"
    while not _healthy(f"{server.url}{server.command.health}") or (refusal := _startup(server)):
        if server.process.poll() is not None:
            raise Refusal(
                f"arm {server.name}: the server ended with exit {server.process.returncode}: {_last(server.log)}; "
                f"see {server.log}"
            )
        if time.monotonic() > deadline:
            raise Refusal(
                f"arm {server.name}: not up after {server.command.startup_s:.0f} s, {refusal}; see {server.log}, "
                "then run this again"
            )
        time.sleep(_POLL_S)
    say(f"  {server.name} is healthy ({time.monotonic() - begun:.0f} s)")


def _startup(server: Server) -> str:
    """What the startup probe says against the server; nothing where it has started."""
    if server.command.startup is None:
        return ""
    probe = server.command.startup(server.port)
    try:
        done = subprocess.run(
            probe, cwd=ROOT, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"its startup probe took longer than {PROBE_TIMEOUT_S} s"
    if done.returncode == 0:
        return ""
    time.sleep(PROBE_PERIOD_S)
    return f"its startup probe says {(done.stderr.strip().splitlines() or ['nothing'])[-1]!r}"


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _last(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["no output"])[-1][:200]


def _signal(server: Server, number: signal.Signals) -> None:
    """To the whole group, whose leader may be gone while others of it still run."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(server.process.pid, number)


def _free_port() -> int:
    """One that was free a moment ago; a server that finds it taken ends, and says so."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
