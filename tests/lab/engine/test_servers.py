"""Servers are watched until they are healthy and are gone afterwards, whatever happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from experiment.finding import Refusal
from lab.engine.servers import Command, running

ROOT = Path(__file__).parents[3]
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
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Healthy).serve_forever()
"""


def _server(name: str = "arm") -> Command:
    """A server with a child of its own, as vLLM has."""
    return _command(lambda port: [sys.executable, "-c", textwrap.dedent(SERVER), str(port)], name)


def _command(argv: Callable[[int], Sequence[str]], name: str = "arm") -> Command:
    return Command(name=name, argv=argv, startup_s=PATIENCE_S)


def _child(log: Path) -> int:
    """The pid of the child of the server that writes `log`."""
    return int(log.read_text(encoding="utf-8").split()[1])


def _gone(pid: int) -> bool:
    """Whether the process has ended, be it as a zombie that nobody has waited for."""
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


def test_servers_are_healthy_within_and_gone_after(tmp_path: Path) -> None:
    said: list[str] = []
    with running([_server("a"), _server("b")], logs=tmp_path, at_once=1, say=said.append) as urls:
        assert list(urls) == ["a", "b"]
        with urllib.request.urlopen(f"{urls['b']}/models") as answer:
            assert answer.status == 200
        children = [_child(tmp_path / f"{name}.log") for name in urls]
    assert [line.split()[0] for line in said] == ["a", "b"]
    assert all(_gone(pid) for pid in children)


def test_an_error_inside_stops_them_too(tmp_path: Path) -> None:
    def interrupted() -> None:
        with running([_server()], logs=tmp_path, at_once=1, say=lambda _: None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert _gone(_child(tmp_path / "arm.log"))


def test_a_server_is_up_when_its_startup_probe_succeeded(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    script = f"open({str(asked)!r}, 'a').write(__import__('sys').argv[1])"
    probed = replace(_server(), startup=lambda port: [sys.executable, "-c", script, f"{port} "])
    with running([probed], logs=tmp_path, at_once=1, say=lambda _: None) as urls:
        assert asked.read_text(encoding="utf-8") == f"{urls['arm'].split(':')[2].removesuffix('/v1')} "


def test_a_server_that_never_passes_its_startup_probe_is_reported_and_gone(tmp_path: Path) -> None:
    refusing = replace(
        _server(),
        startup=lambda _: [sys.executable, "-c", "raise SystemExit('the completion is empty')"],
        startup_s=1.0,
    )
    with (
        pytest.raises(Refusal, match=r"arm arm: not up after 1 s, .* says 'the completion is empty'"),
        running([refusing], logs=tmp_path, at_once=1, say=lambda _: None),
    ):
        pass
    assert _gone(_child(tmp_path / "arm.log"))


def test_a_server_that_ends_is_reported_with_its_last_error(tmp_path: Path) -> None:
    broken = _command(lambda _: [sys.executable, "-c", "raise ValueError('no such model')"])
    with (
        pytest.raises(Refusal, match=r"arm arm: .* exit 1: ValueError: no such model"),
        running([broken], logs=tmp_path, at_once=1, say=lambda _: None),
    ):
        pass


def test_a_command_that_is_not_there_is_reported(tmp_path: Path) -> None:
    absent = _command(lambda _: ["/no/such/vllm"])
    with (
        pytest.raises(Refusal, match=r"arm arm: .*/no/such/vllm"),
        running([absent], logs=tmp_path, at_once=1, say=lambda _: None),
    ):
        pass


def test_servers_end_even_where_the_lab_is_killed(tmp_path: Path) -> None:
    script = f"""
        from pathlib import Path
        from lab.engine.servers import running
        from tests.lab.engine.test_servers import _server
        import time
        with running([_server()], logs=Path({str(tmp_path)!r}), at_once=1, say=lambda _: None):
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
