"""The benchmark runs as long as the lab does, and no longer."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmark.plan import from_dict
from experiment.finding import Refusal
from lab.real import loading

ROOT = Path(__file__).parents[3]
PATIENCE_S = 300
PLAN = {
    "schema": 1,
    "experiment": "lab-tiny",
    "model": "m",
    "baseline": "tiny",
    "arms": [
        {"name": "tiny", "url": "http://127.0.0.1:1/v1", "speculative_tokens": 0, "max_tokens_per_step": 1}
    ],
    "concurrency": [1],
    "requests": 1,
    "warmup": 0,
    "seed": 1,
    "max_tokens": 8,
    "temperature": 0,
    "prompts": [{"id": "one", "class": "c", "prompt": "x"}],
}


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Takes a connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    assert from_dict(PLAN).baseline == "tiny"
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN), encoding="utf-8")
    return path


def test_a_failed_benchmark_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="python -m benchmark run ended with exit 2; its message is above"):
        loading.measure(tmp_path / "absent.json", {"tiny": "http://127.0.0.1:1/v1"}, out=tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_it_ends_with_the_lab_however_that_ends(
    plan: Path, silent_server: str, tmp_path: Path, number: signal.Signals
) -> None:
    script = f"""
        from pathlib import Path
        from lab.real.loading import measure
        measure(Path({str(plan)!r}), {{"tiny": {silent_server!r}}}, out=Path({str(tmp_path)!r}))
    """
    lab = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    _until(lambda: len(_processes(tmp_path)) == 2)  # the guard and what it guards
    lab.send_signal(number)
    lab.wait()
    _until(lambda: not _processes(tmp_path))


def _processes(folder: Path) -> list[str]:
    """Running processes of the benchmark whose command names the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = path.joinpath("cmdline").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if f"\0--out\0{folder}\0" in command:
            found.append(command)
    return found


def _until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
