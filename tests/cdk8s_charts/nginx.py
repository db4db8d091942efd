"""The rendered gateway, run by this machine's nginx in front of emulated arms on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from socket import socket
from typing import Any
from urllib.request import urlopen

import aiohttp
import pytest
from aiohttp import web

from cdk8s_charts.workloads.gateway import NginxConfiguration, RoutedArm
from lab.emulator.__main__ import EmulatedEndpoint
from lab.emulator.payloads import PromptClasses, parse_argv
from tests.lab.emulator.arms import BASELINE, REPETITION, SPECULATIVE

needs_nginx = pytest.mark.skipif(not shutil.which("nginx"), reason="no nginx: apt-get install nginx-light")
PLAIN, DRAFTED = "qwen-vllm", "qwen-sd-vllm"
ROUTES = {"json": DRAFTED, "code": DRAFTED, "*": PLAIN}
CLASSES = PromptClasses(entries=((REPETITION, "repetition"),), seed=1)
SEQUENCES = "64"


def free_port() -> int:
    with socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
        return port


@dataclass
class EmulatedArm:
    """An emulated arm, and what reached it."""

    name: str
    port: int
    seen: list[dict[str, Any]] = field(default_factory=list)
    """Of each request its path, and its headers by lower-case name."""
    open: int = 0
    most_open: int = 0
    runner: web.AppRunner | None = None

    async def start(self, time_scale: float) -> None:
        argv = list(SPECULATIVE if self.name == DRAFTED else BASELINE)
        argv[argv.index("--max-num-seqs") + 1] = SEQUENCES
        endpoint = EmulatedEndpoint(parse_argv(argv), CLASSES, time_scale=time_scale)
        application = endpoint.application()
        application.middlewares.append(self._watch)
        self.runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
        await self.runner.setup()
        # On every address of loopback: the gateway asks a second choice on another one.
        await web.TCPSite(self.runner, "0.0.0.0", self.port, reuse_address=True).start()

    async def stop(self) -> None:
        if self.runner:
            await self.runner.cleanup()
            self.runner = None

    @web.middleware
    async def _watch(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.seen.append(
            {"path": request.path} | {name.lower(): value for name, value in request.headers.items()}
        )
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            answer: web.StreamResponse = await handler(request)
            return answer
        finally:
            self.open -= 1


@dataclass(kw_only=True)
class Running:
    """nginx, and the arms behind it."""

    url: str
    folder: Path
    configuration: NginxConfiguration
    arms: Mapping[str, EmulatedArm]
    process: asyncio.subprocess.Process

    def log(self) -> list[dict[str, Any]]:
        """The lines of its access log."""
        return [json.loads(line) for line in (self.folder / "access.log").read_text().splitlines()]

    def reload(self, **changes: Any) -> None:
        """What a signal does to a running nginx: new workers with the new file, while the old ones finish."""
        _write(replace(self.configuration, **changes), self.folder)
        subprocess.run(
            ["nginx", "-c", self.folder / "nginx.conf", "-s", "reload"], check=True, capture_output=True
        )


def _write(configuration: NginxConfiguration, folder: Path) -> None:
    text = configuration.text().replace("/dev/stdout", str(folder / "access.log"))
    (folder / "nginx.conf").write_text(text, encoding="utf-8")


@asynccontextmanager
async def gateway(
    folder: Path, *, most_at_once: int = 0, time_scale: float = 0.01, **changes: Any
) -> AsyncIterator[tuple[Running, aiohttp.ClientSession]]:
    """The gateway in front of the plain and the drafted arm, and a client of it."""
    ports = {name: free_port() for name in (PLAIN, DRAFTED)}
    arms = {name: EmulatedArm(name, port) for name, port in ports.items()}
    port, health = free_port(), free_port()
    configuration = NginxConfiguration(
        **{
            "name": "qwen3-32b",
            "routes": ROUTES,
            "classes": ("json", "code", "open-ended"),
            "arms": (
                RoutedArm(PLAIN, f"127.0.0.1:{ports[PLAIN]}", 0, f"127.0.0.2:{ports[DRAFTED]}"),
                RoutedArm(DRAFTED, f"127.0.0.1:{ports[DRAFTED]}", most_at_once, f"127.0.0.2:{ports[PLAIN]}"),
            ),
            "second_pattern": r"127\.0\.0\.2:[0-9]+",
            "body_bytes": 4096,
            "needs_key": False,
            "folder": str(folder),
            "port": port,
            "health_port": health,
            **changes,
        }
    )
    _write(configuration, folder)
    for arm in arms.values():
        await arm.start(time_scale)
    # Root's workers would otherwise be of a user who may not write into the folder of a test.
    how = "daemon off;" + (" user root;" if os.geteuid() == 0 else "")
    command = ("nginx", "-e", "stderr", "-c", str(folder / "nginx.conf"), "-g", how)
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    url = f"http://127.0.0.1:{port}"
    running = Running(url=url, folder=folder, configuration=configuration, arms=arms, process=process)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.to_thread(wait_for, f"http://127.0.0.1:{health}/ready")
            yield running, session
    finally:
        process.terminate()
        await process.wait()
        for arm in arms.values():
            await arm.stop()


def wait_for(url: str) -> None:
    """Until a server answers there."""
    for _ in range(500):
        try:
            urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.02)
    raise AssertionError(f"{url} does not answer")
