"""Read servers and plan from the rendered objects, and run the repository's own programs in processes of their own, as users and pods do.

The demonstration uses this module, so that it runs what was reviewed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from cdk8s_charts.manifests import ManifestFile, read
from trnspec.benchmark.measure import journal
from trnspec.benchmark.plan import Plan, from_dict
from trnspec.core.checkout import ROOT
from trnspec.core.files import write_whole
from trnspec.core.findings import Misuse, Refusal
from trnspec.experiment import Experiment
from trnspec.experiment.naming import PLAN_FILE

LOG = "benchmark.log"
"""Messages of the benchmark, in the folder of the results."""
_LOOK_S = 1.0


def run_quietly(words: Sequence[str], *, what: str, settings: Mapping[str, str] | None = None) -> None:
    """Run Python with these arguments in a new process, because jsii must not run in this one. Raises `Refusal` with its last message."""
    environment = {**os.environ, **(settings or {})}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refusal(f"{what} failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")


def guarded(
    command: Sequence[str], *, stdout: IO[Any], stderr: IO[Any], env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in its own process group, which ends when this process ends in any way."""
    return subprocess.Popen(
        [sys.executable, "-m", "trnspec.lab.guard", *command],
        cwd=ROOT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def benchmark(
    words: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> str:
    """Run `python -m trnspec.benchmark` and return its output; its messages are appended to `log`. Raises `Refusal` with the last message.

    It is started like the servers, so that it also ends with the lab.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryFile("w+") as result, log.open("a", encoding="utf-8") as messages:
        command = [sys.executable, "-m", "trnspec.benchmark", *words]
        process = guarded(command, stdout=result, stderr=messages, env=environment)
        try:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=_LOOK_S)
                meanwhile()
        finally:
            if process.stdin:
                process.stdin.close()
            process.wait()
        result.seek(0)
        output = result.read()
    if process.returncode:
        last = (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no message"])[-1]
        raise Refusal(f"benchmark {words[0]} ended with exit {process.returncode}: {last}; see {log}")
    return output


def load_arms(
    plan: Path,
    urls: Mapping[str, str],
    *,
    out: Path,
    max_tokens: int,
    reach: Callable[[int], None] = lambda _: None,
) -> None:
    """Run `benchmark run` on the arms at `urls`; answers end after `max_tokens`. `reach` gets the number of requests
    that have ended. The sanity questions are left out, because no model answers. Raises `Refusal`."""
    words = ["run", "--plan", str(plan), "--out", str(out), "--questions", "none", "--exit-zero"]
    words += [word for arm, url in urls.items() for word in ("--arm", f"{arm}={url}")]
    words += ["--max-tokens", str(max_tokens)]
    benchmark(words, log=out / LOG, meanwhile=lambda: reach(ended(out)))


def ended(out: Path) -> int:
    """Return the number of requests of a run that have ended."""
    try:
        with (out / journal.FILE_NAME).open("rb") as lines:
            return sum(line.startswith(b'{"kind":"request"') for line in lines)
    except OSError:
        return 0


@dataclass(frozen=True, kw_only=True)
class Container:
    """The server of an arm, as its Deployment describes it."""

    arm: str
    command: tuple[str, ...]
    health: str
    """Path that answers 200 when the server is ready."""
    startup_s: int
    """Maximum time of the startup."""


def rendered(path: Path, experiment: Experiment, parent: Path) -> tuple[ManifestFile, ...]:
    """Render the experiment at `path` into `parent`, in a process of its own, so that no jsii runs in this one.

    Raises Refusal.
    """
    run_quietly(["-m", "cdk8s_charts", str(path.resolve()), "--out", str(parent.resolve())], what="rendering")
    try:
        return read(experiment, parent)
    except Misuse as error:
        raise Refusal(str(error)) from None


def containers(files: Sequence[ManifestFile]) -> dict[str, Container]:
    """Return the servers of the rendered Deployments, by arm."""
    return {item["metadata"]["name"]: _container(item) for item in _of_kind(files, "Deployment")}


def mounted_plan(files: Sequence[ManifestFile]) -> Plan:
    """Return the plan that the benchmark pod mounts, from the rendered ConfigMap."""
    maps = _of_kind(files, "ConfigMap")
    (text,) = (item["data"][PLAN_FILE] for item in maps if PLAN_FILE in item.get("data", {}))
    return from_dict(json.loads(text))


def write_plan(plan: Plan, folder: Path) -> Path:
    """Write the plan for `benchmark run`, and return its path."""
    path = folder / PLAN_FILE
    write_whole(path, json.dumps(plan.to_dict(exclude_unset=True), indent=1))
    return path


def _of_kind(files: Sequence[ManifestFile], kind: str) -> Iterator[dict[str, Any]]:
    return (item for file in files for item in file.objects if item["kind"] == kind)


def _container(deployment: Mapping[str, Any]) -> Container:
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    startup = server["startupProbe"]
    return Container(
        arm=deployment["metadata"]["name"],
        command=tuple(server["command"]),
        health=server["readinessProbe"]["httpGet"]["path"],
        startup_s=startup["failureThreshold"] * startup["periodSeconds"],
    )
