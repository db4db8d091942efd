"""The known-schedule server in a process of its own, so that it does not share the client's event loop."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.errors import EndpointError


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    address: str
    pid: int

    def url(self, arm: str) -> str:
        """Base URL of an arm."""
        return f"{self.address}/{arm}/v1"

    def truth(self) -> list[dict[str, Any]]:
        """What it has sent since it was last asked: key, arm, sent_s and tokens of each answer."""
        with urllib.request.urlopen(f"{self.address}/truth", timeout=30) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found


@contextlib.contextmanager
def served(*, first_ms: float, step_ms: float) -> Iterator[Served]:
    """Start it, stop it. It also ends when this process does. Raises EndpointError."""
    times = ["--first-ms", str(first_ms), "--step-ms", str(step_ms)]
    command = [sys.executable, "-m", "benchmark.selftest", *times, "--until-stdin-ends"]
    package = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    ) as server:
        try:
            address = server.stdout.readline().strip() if server.stdout else ""
            if not address:
                raise EndpointError(f"{' '.join(command)}: did not start; its own message is above")
            yield Served(address, server.pid)
        finally:
            server.terminate()
