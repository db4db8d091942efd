"""What is rendered is started on this machine with other folders, host and port alone; it is watched until it is healthy
and gone afterwards, whatever happened."""

from __future__ import annotations

import json
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

from cdk8s_charts.manifests import read
from core.findings import Refusal
from experiment import Experiment, load
from experiment.catalogue.models import MODELS
from lab.programs import Container, containers
from lab.real.servers import CHECKPOINTS, Fleet, LocalEngine, mounted_folders, running
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
FOLDERS = {"/checkpoints/target": "/here/target"}
Reach = Callable[[int], None]


def _running(
    folder: Path, arms: Sequence[Container] = (ARM,), *, reach: Reach = lambda _: None
) -> AbstractContextManager[Fleet]:
    """Servers of a script that stands for vLLM, with a child of their own, as vLLM has."""
    command = (sys.executable, "-c", textwrap.dedent(SERVER))
    launch = LocalEngine(command=command, folders=FOLDERS).launch
    return running(arms, launch, logs=folder, at_once=1, reach=reach)


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


def test_servers_are_up_when_their_probes_succeeded_start_again_at_their_addresses_and_are_gone_after_an_error(
    tmp_path: Path,
) -> None:
    counts: list[int] = []
    asked = tmp_path / "asked"
    script = f"open({str(asked)!r}, 'a').write(__import__('sys').argv[1] + ' ')"
    probed = replace(ARM, startup=("python3", "-c", script, "127.0.0.1:8000"))

    def children() -> list[int]:
        return [_child(tmp_path / f"{name}.log") for name in "ab"]

    with (
        suppress(KeyboardInterrupt),
        _running(tmp_path, [replace(probed, arm=name) for name in "ab"], reach=counts.append) as fleet,
    ):
        first = children()
        fleet.start_again()
        assert all(_gone(pid) for pid in first)
        second = children()
        assert not {*first} & {*second}
        urls = [f"http://{one}/v1" for one in asked.read_text(encoding="utf-8").split()]
        assert urls == [*fleet.urls.values()] * 2
        for url in fleet.urls.values():
            with urllib.request.urlopen(f"{url}/models") as answer:
                assert answer.status == 200
        raise KeyboardInterrupt
    assert counts == [1, 2] * 2
    assert all(_gone(pid) for pid in second)


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
    launch = LocalEngine(command=command, folders=FOLDERS).launch
    with pytest.raises(Refusal, match=f"arm arm: .*{said}"), running([ARM], launch, logs=tmp_path, at_once=1):
        pass


def test_servers_end_even_where_the_lab_is_killed(tmp_path: Path) -> None:
    script = f"""
        from pathlib import Path
        from tests.lab.real.test_servers import _running
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


@pytest.fixture(scope="module")
def tiny() -> Experiment:
    return load(ROOT / "experiments" / "lab-tiny.yaml")


@pytest.fixture(scope="module")
def servers(tiny: Experiment) -> dict[str, Container]:
    return containers(read(tiny, ROOT / "manifests"))


def test_only_folders_host_and_port_differ_from_what_is_rendered_and_threads_are_pinned(
    tiny: Experiment, servers: dict[str, Container]
) -> None:
    engine = LocalEngine(command=["docker", "exec", "box", "vllm"], folders=mounted_folders(tiny, {}))
    for name, server in servers.items():
        argv = [*engine.launch(server, 4711).argv]
        assert argv[:5] == ["docker", "exec", "box", "vllm", "serve"]
        pairs = [(old, new) for old, new in zip(server.command[2:], argv[5:], strict=True) if old != new]
        drafts = [(json.loads(old), json.loads(new)) for old, new in pairs if old.startswith("{")]
        assert {new for old, new in pairs if not old.startswith("{")} == {
            *(str(CHECKPOINTS / "target"), "127.0.0.1", "4711")
        }
        draft = str(CHECKPOINTS / ("weak-draft" if name == "tiny-weak" else "draft"))
        assert [new for _, new in drafts] == [{**old, "model": draft} for old, _ in drafts]
        assert len(drafts) == (name != "tiny")
    environment = engine.launch(servers["tiny"], 4711).environment
    assert environment.items() >= servers["tiny"].environment.items()
    pinned = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    assert environment.items() >= pinned.items()
    words = [*engine.launch(servers["tiny"], 4711).probe]
    assert (words[0], words[-1]) == (sys.executable, "lab/target")
    assert "127.0.0.1:4711" in words[2]
    assert ":8000" not in words[2]


def test_models_come_from_the_lab_from_their_hub_or_from_a_given_place_and_further_options_come_last(
    tiny: Experiment, servers: dict[str, Container]
) -> None:
    with pytest.raises(
        Refusal, match=r"--weights: 'lab/big' is not a model of lab-tiny; its models are lab/target, "
    ):
        mounted_folders(tiny, {"lab/big": "Qwen/Qwen3-32B"})
    target = replace(tiny.baseline.target, model=MODELS["Qwen/Qwen3-32B"])
    real = replace(tiny, arms=(replace(tiny.baseline, target=target),))
    assert set(mounted_folders(real, {}).values()) == {"Qwen/Qwen3-32B"}
    folders = mounted_folders(tiny, {"lab/target": "Qwen/Qwen3-32B", "lab/draft": "Qwen/Qwen3-1.7B"})
    engine = LocalEngine(command=["vllm"], folders=folders, options=["--dtype", "bfloat16"])
    launch = engine.launch(servers["tiny-sd-k15"], 1)
    argv = [*launch.argv]
    assert argv[2] == "Qwen/Qwen3-32B"
    assert '"model": "Qwen/Qwen3-1.7B"' in argv[argv.index("--speculative-config") + 1]
    assert argv[-2:] == ["--dtype", "bfloat16"]
    assert "HF_HUB_OFFLINE" not in launch.environment


def test_a_server_that_wants_a_secret_is_refused(tmp_path: Path) -> None:
    locked = replace(ARM, secrets=("VLLM_API_KEY",))
    with (
        pytest.raises(Refusal, match=r"arm arm: VLLM_API_KEY comes from a Secret, .*api_key_secret out"),
        _running(tmp_path, [ARM, locked]),
    ):
        pass
    assert not list(tmp_path.iterdir()), "before any server is started"
