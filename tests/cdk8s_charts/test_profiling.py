"""Profiles: the server of an arm as it serves, the documented way to capture it, and the program around it."""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cdk8s_charts import profile_arm
from cdk8s_charts.workloads.proofs import profile_objects
from experiment import load
from experiment.catalogue.runtimes import RUNTIMES
from tests.cdk8s_charts.objects import Pod
from tests.conftest import ROOT


def test_inference_is_captured_as_a_session_where_the_sdk_documents_it() -> None:
    experiment = load(ROOT / "experiments" / "qwen3-32b.yaml")
    newer = replace(experiment.baseline, runtime=RUNTIMES["nxdi-vllm-0.16"])
    (made,) = profile_objects(experiment, newer)
    server = Pod(made).spec["initContainers"][-1]
    found = {one["name"]: one.get("value") for one in server["env"]}
    assert found["NEURON_RT_INSPECT_DEVICE_PROFILE"] == "session"


def test_what_was_written_can_be_read_by_the_group_of_the_volume(tmp_path: Path) -> None:
    folder = tmp_path / "i-1"
    folder.mkdir()
    (folder / "a.ntff").touch(0o600)
    folder.chmod(0o700)
    profile_arm.readable(tmp_path)
    assert (folder.stat().st_mode & 0o777, (folder / "a.ntff").stat().st_mode & 0o777) == (0o750, 0o640)


SERVER = """
import http.server, os, pathlib, sys
out, traces = pathlib.Path(sys.argv[1]), sys.argv[2:] != ["none"]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(b"{}")
    def do_POST(self):
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with (out / "asked.txt").open("a") as file:
            file.write(self.path + " " + asked + " " + str(self.headers["Authorization"]) + chr(10))
        self.answer(b'{"choices": [{"text": "4"}]}')
    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler)
try:
    server.serve_forever()
except KeyboardInterrupt:
    if traces:  # as the runtime writes them while its process ends
        (out / "session").mkdir()
        (out / "session" / "profile_nc_0.ntff").write_bytes(b"x" * 2000)
"""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine with `neuron-ls` and a server."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        free_port = one.getsockname()[1]
    tool = tmp_path / "bin" / "neuron-ls"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "neuron-ls $1"\n', encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PORT", str(free_port))
    monkeypatch.setattr(profile_arm, "PORT", free_port)
    pause = time.sleep
    monkeypatch.setattr(time, "sleep", lambda _: pause(0.02))  # between two looks at a server that loads
    server = tmp_path / "server.py"
    server.write_text(SERVER, encoding="utf-8")
    return [sys.executable, str(server), str(tmp_path / "out")]


@pytest.mark.parametrize("endpoints", [True, False])
def test_the_program_captures_asked_steps_and_leaves_traces_and_topology(
    endpoints: bool,
    served: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "made-up")
    out = tmp_path / "out"
    command = [*served, *(["--profiler-config"] if endpoints else [])]
    assert profile_arm.main([str(out), "Qwen/Qwen3-32B", *command]) == 0
    assert capsys.readouterr().out == "1 traces, 0.0 MB\n"
    assert (out / "neuron-ls.txt").read_text() == "neuron-ls --topology\n"
    assert (out / "neuron-ls.json").read_text() == "neuron-ls --json-output\n"
    asked = (out / "asked.txt").read_text().splitlines()
    paths = [line.partition(" ")[0] for line in asked]
    around = ["/start_profile", "/v1/completions", "/stop_profile"]
    assert paths == ["/v1/completions", *(around if endpoints else ["/v1/completions"])]
    assert all(line.endswith("Bearer made-up") for line in asked)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ([sys.executable, "-c", "raise SystemExit(3)"], "no profile: the server ended with exit 3"),
        (None, "no profile: the runtime wrote no trace into"),
    ],
)
def test_a_capture_that_failed_says_why(
    command: list[str] | None,
    why: str,
    served: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert profile_arm.main([str(tmp_path / "out"), "m", *(command or [*served, "none"])]) == 1
    assert why in capsys.readouterr().err
