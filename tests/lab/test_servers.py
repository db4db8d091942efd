"""Servers are started on this machine, watched until they are healthy, and gone afterwards, whatever happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import ROOT
from trnspec.core.findings import Refusal
from trnspec.lab.programs import Container
from trnspec.lab.servers import running

PATIENCE_S = 300
"""Of tests and of a server's start: generous, for a machine that does much else."""
SERVER = """
    import os, subprocess, sys
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("child", child.pid, flush=True)
    HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Healthy).serve_forever()
"""
ARM = Container(arm="arm", command=("vllm", "serve"), health="/health", startup_s=PATIENCE_S)


def _with_port(*command: str) -> Callable[[Container, int], list[str]]:
    """How a command that stands for vLLM is started."""
    return lambda _, port: [*command, "--port", str(port)]


def _running(folder: Path, arms: Sequence[Container] = (ARM,)) -> AbstractContextManager[dict[str, str]]:
    """Servers of a script that stands for vLLM, with a child of their own, as vLLM has."""
    return running(arms, _with_port(sys.executable, "-c", textwrap.dedent(SERVER)), logs=folder)


def _child(log: Path) -> int:
    return int(log.read_text(encoding="utf-8").split()[1])


def _gone(pid: int) -> bool:
    """Whether the process has ended, also as a zombie."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_servers_are_up_when_they_are_healthy_and_are_gone_after_an_error(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), _running(tmp_path, [replace(ARM, arm=name) for name in "ab"]) as urls:
        children = [_child(tmp_path / f"{name}.log") for name in "ab"]
        for url in urls.values():
            with urllib.request.urlopen(f"{url}/models") as answer:
                assert answer.status == 200
        raise KeyboardInterrupt
    assert all(_gone(pid) for pid in children)


@pytest.mark.slow
def test_a_server_that_is_never_healthy_is_reported_and_gone(tmp_path: Path) -> None:
    script = "import os, time; print('child', os.getpid(), flush=True); time.sleep(600)"
    with (
        pytest.raises(Refusal, match=r"arm arm: not up after 4 s, it was never healthy"),
        running([replace(ARM, startup_s=4)], _with_port(sys.executable, "-c", script), logs=tmp_path),
    ):
        pass
    assert _gone(_child(tmp_path / "arm.log"))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([sys.executable, "-c", "raise ValueError('no such model')"], r"exit 1: ValueError: no such model"),
        (["/no/such/vllm"], "/no/such/vllm"),
    ],
)
def test_a_server_that_ends_is_reported_with_its_last_error(
    command: list[str], said: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(Refusal, match=f"arm arm: .*{said}"),
        running([ARM], _with_port(*command), logs=tmp_path),
    ):
        pass


def test_servers_end_even_where_the_lab_is_killed(tmp_path: Path) -> None:
    script = f"""
        from pathlib import Path
        from tests.lab.test_servers import _running
        import time
        with _running(Path({str(tmp_path)!r})):
            print("up", flush=True)
            time.sleep(600)
    """
    lab = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert lab.stdout
    assert lab.stdout.readline() == "up\n"
    child = _child(tmp_path / "arm.log")
    lab.send_signal(signal.SIGKILL)
    lab.wait()
    lab.stdout.close()
    assert _gone(child)
