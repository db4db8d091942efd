"""The arms' servers: started on this machine as rendered, watched until they are healthy, and always stopped.

Each has its own process group, because vLLM starts further processes; a group is ended as a whole. A guard in the group
ends it even when the lab itself is killed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from core.findings import Refusal
from lab.programs import ROOT, Container, guarded

LOOPBACK = "127.0.0.1"
PROBE_TIMEOUT_S = 120
PROBE_PERIOD_S = 2.0
STOP_TIMEOUT_S = 20
_POLL_S = 0.25


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a container's server is started on a port of this machine."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to those of this process."""
    probe: Sequence[str] = ()
    """Command that must succeed once the server is healthy; empty where being healthy is enough."""
    kind: str = "server"
    """Its name in messages."""


@dataclass(frozen=True, kw_only=True)
class Server:
    container: Container
    port: int
    launch: Launch
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"


@contextmanager
def running(
    containers: Sequence[Container],
    launch: Callable[[Container, int], Launch],
    *,
    logs: Path,
    at_once: int,
) -> Iterator[dict[str, str]]:
    """Start the servers, `at_once` of them at a time, yield their base URLs by arm, and always stop all of them.

    Raises `Refusal`.
    """
    for container in containers:
        launch(container, 0)  # what cannot be started is refused before anything is
    with ExitStack() as held:  # free a moment ago; a server that finds its port taken ends, and says so
        sockets = [held.enter_context(socket.create_server((LOOPBACK, 0))) for _ in containers]
        ports = [int(one.getsockname()[1]) for one in sockets]
    started: list[Server] = []
    logs.mkdir(parents=True, exist_ok=True)

    try:
        waiting: list[Server] = []
        for container, port in zip(containers, ports, strict=True):
            if len(waiting) >= at_once:
                _wait(waiting.pop(0))
            started.append(_start(container, launch(container, port), port, logs))
            waiting.append(started[-1])
        for server in waiting:
            _wait(server)
        yield {one.container.arm: f"{one.url}/v1" for one in started}
    finally:
        _stop(started)


def _start(container: Container, launched: Launch, port: int, logs: Path) -> Server:
    log = logs / f"{container.arm}.log"
    with log.open("wb") as output:
        environment = {**os.environ, **launched.environment}
        process = guarded(launched.argv, stdout=output, stderr=output, env=environment)
    return Server(container=container, port=port, launch=launched, process=process, log=log)


def _stop(servers: Sequence[Server]) -> None:
    """End every group: with SIGTERM, then with SIGKILL; its leader may have ended while others still run."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for server in servers:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(server.process.pid, number)
        for server in servers:
            with suppress(subprocess.TimeoutExpired):
                server.process.wait(timeout=max(0.1, deadline - time.monotonic()))
    for server in servers:
        if server.process.stdin:
            server.process.stdin.close()


def _wait(server: Server) -> None:
    """Until its rendered probes succeed."""
    container = server.container
    deadline = time.monotonic() + container.startup_s
    refusal = "it was never healthy"
    while not _healthy(f"{server.url}{container.health}") or (refusal := _startup(server)):
        if server.process.poll() is not None:
            lines = server.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = ([line for line in lines if "Error" in line] or lines or ["no output"])[-1][:200]
            ended = f"the {server.launch.kind} ended with exit {server.process.returncode}"
            raise Refusal(f"arm {container.arm}: {ended}: {last}; see {server.log}")
        if time.monotonic() > deadline:
            late = f"not up after {container.startup_s:.0f} s, {refusal}"
            raise Refusal(f"arm {container.arm}: {late}; see {server.log}, then run this again")
        time.sleep(_POLL_S)


def _startup(server: Server) -> str:
    """What the startup probe says against the server; nothing where it has started."""
    probe, limit_s = server.launch.probe, PROBE_TIMEOUT_S
    if not probe:
        return ""
    try:
        done = subprocess.run(probe, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"its startup probe took longer than {limit_s} s"
    if done.returncode == 0:
        return ""
    time.sleep(PROBE_PERIOD_S)
    return f"its startup probe says {(done.stderr.strip().splitlines() or ['nothing'])[-1]!r}"


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
