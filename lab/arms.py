"""One emulated endpoint per arm, started from the arm's rendered Deployment.

What is started is what would be deployed: the container's command, read out of the manifest, decides model, window and
limits. The port is the lab's own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from experiment.finding import Refusal
from lab.rendered import Container

START_TIMEOUT_S = 60
_POLL_S = 0.05


@contextmanager
def endpoints(
    containers: Mapping[str, Container], *, plan: Path, folder: Path, cautions: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    """Run one emulated server per arm; yields arm name to base URL, stops all of them whatever happens.

    A server tells its arm's `cautions` to whoever asks for its models, so that they reach the results.

    Raises `Refusal` when one does not start.
    """
    with ExitStack() as stack:
        started = {}
        for arm, container in containers.items():
            log = folder / f"{arm}.log"
            announcement = folder / f"{arm}.port"
            announcement.unlink(missing_ok=True)
            command = [
                sys.executable,
                "-m",
                "lab.emulator",
                "--listen",
                "127.0.0.1:0",
                "--announce",
                str(announcement),
                *(("--caution", cautions[arm]) if arm in cautions else ()),
            ]
            output = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(
                [*command, "--plan", str(plan), "--", *container.command], stdout=output, stderr=output
            )
            stack.callback(_stop, process)
            started[arm] = (process, announcement, log)
        yield {arm: _address(arm, *parts) for arm, parts in started.items()}


def _address(arm: str, process: subprocess.Popen[bytes], announcement: Path, log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not announcement.exists():
        if process.poll() is not None:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"]
            raise Refusal(f"arm {arm}: the emulated server ended with exit {process.returncode}: {lines[-1]}")
        if time.monotonic() > deadline:
            raise Refusal(f"arm {arm}: no server after {START_TIMEOUT_S} s; see {log} and run this again")
        time.sleep(_POLL_S)
    port = json.loads(announcement.read_text(encoding="utf-8"))["port"]
    return f"http://127.0.0.1:{port}/v1"


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
