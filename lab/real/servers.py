"""The arms' servers: started on this machine as rendered, watched until they are healthy, and always stopped.

Each has its own process group, because vLLM starts further processes; a group is ended as a whole. A guard in the group
ends it even when the lab itself is killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cdk8s_charts.vllm_command import weights_path
from core.findings import Refusal
from experiment import Experiment
from lab.programs import ROOT, Container, guarded
from lab.real.installation import WITH_BYTECODE

LOOPBACK = "127.0.0.1"
CHECKPOINTS = ROOT / "lab" / "models" / "checkpoints"
THREADS = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TOKENIZERS_PARALLELISM": "false"}
"""One thread per server: two threads that wait for each other are slower as soon as anything else runs."""
OFFLINE = "HF_HUB_OFFLINE"
"""Set if no model comes from a hub."""
QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
PROBE_TIMEOUT_S = 120
PROBE_PERIOD_S = 2.0
STOP_TIMEOUT_S = 20
_POLL_S = 0.25


def check_models(folder: Path = CHECKPOINTS) -> None:
    """Compare every file of the models that ship with its hash. Raises Refusal."""
    hashes = folder / "sha256.json"
    try:
        wanted: dict[str, str] = json.loads(hashes.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refusal(f"{hashes}: cannot be read ({error}); restore it from the repository") from None
    for path, digest in ((folder / name, digest) for name, digest in wanted.items()):
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "absent"
        if found != digest:
            is_not = f"sha256 is {found[:12]}, not {digest[:12]}"
            raise Refusal(f"{path}: {is_not}; restore it from the repository")


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
class LocalEngine:
    """The engine that replaces the pod's image on this machine."""

    command: Sequence[str]
    folders: Mapping[str, str]
    """What replaces each mounted folder: a folder of this machine, or a model of a hub, which is then asked for it."""
    options: Sequence[str] = ()
    """Further ones of the command; the last one given counts."""

    def launch(self, container: Container, port: int) -> Launch:
        """The rendered `vllm serve ...` and its startup probe on `port`, with this machine's folders and Python.

        Raises `Refusal` for what this machine cannot start.
        """
        if container.secrets:
            raise Refusal(
                f"arm {container.arm}: {container.secrets[0]} comes from a Secret, and there is no cluster here; "
                "leave serving.api_key_secret out"
            )
        words = [*container.command[2:]]
        words[0] = self.folders[words[0]]
        for option, value in (("--host", LOOPBACK), ("--port", str(port))):
            words[words.index(option) + 1] = value
        if "--speculative-config" in words:
            at = words.index("--speculative-config") + 1
            config = json.loads(words[at])
            words[at] = json.dumps({**config, "model": self.folders[config["model"]]})
        environment = {**container.environment, OFFLINE: "1", **QUIET, **THREADS, **WITH_BYTECODE}
        if not all(Path(place).is_dir() for place in self.folders.values()):
            del environment[OFFLINE]
        here, there = f"{LOOPBACK}:{container.port}", f"{LOOPBACK}:{port}"
        return Launch(
            argv=[*self.command, "serve", *words, *self.options],
            environment=environment,
            probe=[sys.executable, *(word.replace(here, there) for word in container.startup[1:])],
        )


def mounted_folders(experiment: Experiment, given: Mapping[str, str]) -> dict[str, str]:
    """Where each model is that a pod would find mounted: the lab's own here, any other on its hub; `given` names other
    places by model name. Raises `Refusal` for a model that the experiment does not use.
    """
    models = {weights_path(weights): weights.model for weights in experiment.weights}
    places = {
        model.name: str(CHECKPOINTS / model.name.rpartition("/")[2]) if model.lab_only else model.name
        for model in models.values()
    }
    if unknown := [name for name in given if name not in places]:
        raise Refusal(
            f"--weights: {unknown[0]!r} is not a model of {experiment.name}; its models are {', '.join(places)}"
        )
    return {path: given.get(model.name) or places[model.name] for path, model in models.items()}


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


@dataclass(frozen=True, kw_only=True)
class Fleet:
    urls: Mapping[str, str]
    """Base URL by arm."""
    start_again: Callable[[], None]
    """Stops all of them and starts each again at the same address. Raises `Refusal`."""


@contextmanager
def running(
    containers: Sequence[Container],
    launch: Callable[[Container, int], Launch],
    *,
    logs: Path,
    at_once: int,
    reach: Callable[[int], None] = lambda _: None,
) -> Iterator[Fleet]:
    """Start the servers, `at_once` of them at a time, and always stop all of them.

    `reach` gets the number of healthy ones. Raises `Refusal`.
    """
    for container in containers:
        launch(container, 0)  # what cannot be started is refused before anything is
    with ExitStack() as held:  # free a moment ago; a server that finds its port taken ends, and says so
        sockets = [held.enter_context(socket.create_server((LOOPBACK, 0))) for _ in containers]
        ports = [int(one.getsockname()[1]) for one in sockets]
    started: list[Server] = []
    logs.mkdir(parents=True, exist_ok=True)

    def start() -> None:
        _stop(started)
        started.clear()
        waiting: list[Server] = []
        for container, port in zip(containers, ports, strict=True):
            if len(waiting) >= at_once:
                _wait(waiting.pop(0))
                reach(len(started) - len(waiting))
            started.append(_start(container, launch(container, port), port, logs))
            waiting.append(started[-1])
        while waiting:
            _wait(waiting.pop(0))
            reach(len(started) - len(waiting))

    try:
        start()
        yield Fleet(urls={one.container.arm: f"{one.url}/v1" for one in started}, start_again=start)
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
