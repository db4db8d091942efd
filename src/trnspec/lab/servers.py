"""The arms' servers: started on this machine as rendered, watched until they are healthy, and always stopped.

Each has its own process group, because a server may start further processes; a group is ended as a whole. A guard in the group
ends it even when the lab itself is killed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trnspec.core.findings import Refusal
from trnspec.lab.programs import Container, guarded

LOOPBACK = "127.0.0.1"
STOP_TIMEOUT_S = 20
_POLL_S = 0.25


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that was started for an arm."""

    container: Container
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        """The base URL, without a path."""
        return f"http://{LOOPBACK}:{self.port}"


@contextmanager
def running(
    containers: Sequence[Container],
    command: Callable[[Container, int], Sequence[str]],
    *,
    logs: Path,
) -> Iterator[dict[str, str]]:
    """Start each server by its `command` on a port of this machine, yield the base URLs by arm, and always stop all of them.
    Raises `Refusal`."""
    with ExitStack() as held:  # free a moment ago; a server that finds its port taken ends, and says so
        sockets = [held.enter_context(socket.create_server((LOOPBACK, 0))) for _ in containers]
        ports = [int(one.getsockname()[1]) for one in sockets]
    started: list[Server] = []
    logs.mkdir(parents=True, exist_ok=True)
    try:
        for container, port in zip(containers, ports, strict=True):
            started.append(_start(container, command(container, port), port, logs))
        for server in started:
            _wait(server)
        yield {one.container.arm: f"{one.url}/v1" for one in started}
    finally:
        _stop(started)


def _start(container: Container, command: Sequence[str], port: int, logs: Path) -> Server:
    log = logs / f"{container.arm}.log"
    with log.open("wb") as output:
        process = guarded(command, stdout=output, stderr=output)
    return Server(container=container, port=port, process=process, log=log)


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
    """Wait until its rendered readiness probe succeeds. Raises `Refusal`."""
    container = server.container
    deadline = time.monotonic() + container.startup_s
    while not _healthy(f"{server.url}{container.health}"):
        if server.process.poll() is not None:
            lines = server.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = ([line for line in lines if "Error" in line] or lines or ["no output"])[-1][:200]
            ended = f"the emulated server ended with exit {server.process.returncode}"
            raise Refusal(f"arm {container.arm}: {ended}: {last}; see {server.log}")
        if time.monotonic() > deadline:
            late = f"not up after {container.startup_s:.0f} s, it was never healthy"
            raise Refusal(f"arm {container.arm}: {late}; see {server.log}, then run this again")
        time.sleep(_POLL_S)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
