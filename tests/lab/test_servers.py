"""What is rendered is started on this machine with other folders, host and port alone; it is watched until it is healthy
and gone afterwards, whatever happened."""

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

from core.findings import Refusal
from lab.programs import Container
from lab.servers import Launch, running
from tests.conftest import ROOT

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
ARM = Container(
    arm="arm",
    command=("vllm", "serve", "/checkpoints/target", "--host", "0.0.0.0", "--port", "8000"),
    environment={},
    secrets=(),
    port=8000,
    health="/health",
    startup=("python3", "-c", "pass", "127.0.0.1:8000"),
    startup_s=PATIENCE_S,
)


def _launch(*command: str) -> Callable[[Container, int], Launch]:
    """How a command that stands for vLLM is started: with its port, and the probe of its container."""

    def launch(container: Container, port: int) -> Launch:
        probe = [sys.executable, *container.startup[1:-1], f"127.0.0.1:{port}"]
        return Launch(argv=[*command, "--port", str(port)], probe=probe)

    return launch


def _running(folder: Path, arms: Sequence[Container] = (ARM,)) -> AbstractContextManager[dict[str, str]]:
    """Servers of a script that stands for vLLM, with a child of their own, as vLLM has."""
    launch = _launch(sys.executable, "-c", textwrap.dedent(SERVER))
    return running(arms, launch, logs=folder, at_once=1)


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


def test_servers_are_up_when_their_probes_succeeded_and_are_gone_after_an_error(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    script = f"open({str(asked)!r}, 'a').write(__import__('sys').argv[1] + ' ')"
    probed = replace(ARM, startup=("python3", "-c", script, "127.0.0.1:8000"))
    with (
        suppress(KeyboardInterrupt),
        _running(tmp_path, [replace(probed, arm=name) for name in "ab"]) as urls,
    ):
        children = [_child(tmp_path / f"{name}.log") for name in "ab"]
        assert [f"http://{one}/v1" for one in asked.read_text(encoding="utf-8").split()] == [*urls.values()]
        for url in urls.values():
            with urllib.request.urlopen(f"{url}/models") as answer:
                assert answer.status == 200
        raise KeyboardInterrupt
    assert all(_gone(pid) for pid in children)


@pytest.mark.slow
def test_a_server_that_never_passes_its_startup_probe_is_reported_and_gone(tmp_path: Path) -> None:
    script = "raise SystemExit('the completion is empty')"
    refusing = replace(ARM, startup=("python3", "-c", script, "127.0.0.1:8000"), startup_s=4)
    with (
        pytest.raises(Refusal, match=r"arm arm: not up after 4 s, .* says 'the completion is empty'"),
        _running(tmp_path, [refusing]),
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
        running([ARM], _launch(*command), logs=tmp_path, at_once=1),
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
