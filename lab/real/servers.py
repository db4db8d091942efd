"""What is started here instead of what the pod would start: the same options, with this machine's paths and port.

The arms' servers: started, watched until they are healthy, and stopped whatever happens.

Each has a process group of its own, because vLLM starts further processes; a group is ended as a whole. A guard in
it ends it even where the lab itself is killed.

How the arms are started here: what their rendered Deployments say, with folders of this machine for the mounts.
"""

from __future__ import annotations

import json
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

from cdk8s_charts.engine.command import weights_path
from experiment import Experiment
from experiment.catalogue.models import Model
from experiment.finding import Refusal
from lab.models.shipped import CHECKPOINTS
from lab.rendered import Container

LOOPBACK = "127.0.0.1"
THREADS = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TOKENIZERS_PARALLELISM": "false"}
"""One thread a server: two threads that wait for each other are slower as soon as anything else runs."""
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def local_argv(
    argv: Sequence[str], *, engine: Sequence[str], folders: Mapping[str, str], port: int
) -> list[str]:
    """The rendered `vllm serve ...`, started by `engine` on `port`, each mounted folder replaced by `folders`.

    Raises Refusal where the command is none of vLLM's, or names a folder that nothing is given for.
    """
    if list(argv[:2]) != ["vllm", "serve"]:
        raise Refusal(
            f"command {' '.join(argv[:2])!r}: is not `vllm serve`; the lab starts vLLM's servers only"
        )
    rest = [*argv[2:]]
    rest[0] = _folder(rest[0], folders)
    for option, value in (("--host", LOOPBACK), ("--port", str(port))):
        rest = _with(rest, option, value)
    if "--speculative-config" in rest:
        at = rest.index("--speculative-config") + 1
        config = json.loads(rest[at])
        config["model"] = _folder(config["model"], folders)
        rest[at] = json.dumps(config)
    return [*engine, "serve", *rest]


def local_probe(probe: Sequence[str], *, rendered_port: int, port: int) -> list[str]:
    """The rendered startup probe, run by this Python and pointed at `port`.

    Raises Refusal where it asks anything but the server beside it on `rendered_port`.
    """
    here, there = f"{LOOPBACK}:{rendered_port}", f"{LOOPBACK}:{port}"
    if probe[0] != "python3" or not any(here in word for word in probe):
        raise Refusal(
            f"startup probe {probe[0]!r}: is no Python that asks {here}; the lab has no other way to point it at a server"
        )
    return [sys.executable, *(word.replace(here, there) for word in probe[1:])]


def _with(argv: Sequence[str], option: str, value: str) -> list[str]:
    """The same options with one of them set to `value`."""
    if option not in argv:
        return [*argv, option, value]
    at = argv.index(option) + 1
    return [*argv[:at], value, *argv[at + 1 :]]


def _folder(mounted: str, folders: Mapping[str, str]) -> str:
    if mounted not in folders:
        raise Refusal(
            f"weights {mounted}: no folder of this machine stands for it; known are {', '.join(folders) or 'none'}"
        )
    return folders[mounted]


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
            [sys.executable, "-m", "lab.real.guard", *command.argv(port)],
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


def commands(
    containers: Sequence[Container],
    *,
    folders: Mapping[str, str],
    engine: Sequence[str],
    options: Sequence[str] = (),
) -> list[Command]:
    """How these containers are started by `engine`, with further `options` of it.

    `folders` says what stands for each mounted one: a folder, or a model of a hub, which is then asked for it. Raises
    Refusal for a container that needs a Secret.
    """
    online = any(not Path(place).is_dir() for place in folders.values())
    return [_command(container, folders, engine, options, online=online) for container in containers]


def mounted_folders(experiment: Experiment, given: Mapping[str, str]) -> dict[str, str]:
    """Where each model is that a pod would find mounted: the lab's own here, any other on its hub; `given` names other
    places by model name. Raises Refusal for a name that is no model of the experiment.
    """
    models = {weights_path(weights): weights.model for weights in experiment.weights}
    known = [model.name for model in models.values()]
    if unknown := [name for name in given if name not in known]:
        raise Refusal(
            f"--weights: {unknown[0]!r} is no model of {experiment.name}; those are {', '.join(known)}"
        )
    return {path: given.get(model.name) or _place(model) for path, model in models.items()}


def _place(model: Model) -> str:
    return str(CHECKPOINTS / model.name.rpartition("/")[2]) if model.lab_only else model.name


def _command(
    container: Container,
    folders: Mapping[str, str],
    engine: Sequence[str],
    options: Sequence[str],
    *,
    online: bool,
) -> Command:
    if container.secrets:
        raise Refusal(
            f"arm {container.arm}: {container.secrets[0]} comes from a Secret, and there is no cluster here; "
            "leave serving.api_key_secret out"
        )
    environment = {**container.environment, **OFFLINE, **THREADS}
    if online:
        del environment["HF_HUB_OFFLINE"]
    argv, probe, rendered_port = container.command, container.startup, container.port
    return Command(
        name=container.arm,
        argv=lambda port: [*local_argv(argv, engine=engine, folders=folders, port=port), *options],
        environment=environment,
        health=container.health,
        startup=lambda port: local_probe(probe, rendered_port=rendered_port, port=port),
        startup_s=container.startup_s,
    )
