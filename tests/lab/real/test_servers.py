"""Servers are watched until they are healthy and are gone afterwards, whatever happened.

What is started here differs from what the pod runs in paths, host and port alone.

The rendered servers, started on this machine: other folders, host and port, and nothing else.
"""

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
from dataclasses import replace
from pathlib import Path

import pytest

from cdk8s_charts.manifests import read
from experiment import Experiment, load
from experiment.catalogue.models import MODELS
from experiment.finding import Refusal
from lab.models.shipped import CHECKPOINTS
from lab.real.lab_results import TINY, label_of
from lab.real.servers import Command, commands, local_argv, local_probe, mounted_folders, running
from lab.rendered import Container, containers

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
        from lab.real.servers import running
        from tests.lab.real.test_servers import _server
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


SPECULATIVE = json.dumps(
    {"model": "/checkpoints/draft", "num_speculative_tokens": 7, "method": "draft_model"}
)
POD = ["vllm", "serve", "/checkpoints/target", "--host", "0.0.0.0", "--port", "8000", "--max-num-seqs", "4"]
FOLDERS = {"/checkpoints/target": "/here/target", "/checkpoints/draft": "/here/draft"}


def test_the_pods_options_stay_and_its_surroundings_are_replaced() -> None:
    argv = local_argv(POD, engine=["/lab/vllm"], folders=FOLDERS, port=4711)
    assert argv == [
        "/lab/vllm",
        "serve",
        "/here/target",
        "--host",
        "127.0.0.1",
        "--port",
        "4711",
        "--max-num-seqs",
        "4",
    ]


def test_the_draft_of_a_speculating_arm_is_found_too() -> None:
    argv = local_argv([*POD, "--speculative-config", SPECULATIVE], engine=["vllm"], folders=FOLDERS, port=1)
    config = json.loads(argv[argv.index("--speculative-config") + 1])
    assert config == {"model": "/here/draft", "num_speculative_tokens": 7, "method": "draft_model"}


def test_an_engine_may_be_several_words() -> None:
    argv = local_argv(POD, engine=["docker", "exec", "box", "vllm"], folders=FOLDERS, port=1)
    assert argv[:5] == ["docker", "exec", "box", "vllm", "serve"]


def test_another_program_is_refused() -> None:
    with pytest.raises(Refusal, match="is not `vllm serve`"):
        local_argv(["torchrun", "x.py"], engine=["vllm"], folders=FOLDERS, port=1)


def test_weights_without_a_folder_are_refused() -> None:
    with pytest.raises(Refusal, match=r"/checkpoints/target: no folder .* known are /checkpoints/draft"):
        local_argv(POD, engine=["vllm"], folders={"/checkpoints/draft": "/here/draft"}, port=1)


def test_a_probe_asks_the_same_server_on_its_port_here() -> None:
    probe = ["python3", "-c", "urlopen('http://127.0.0.1:8000/health')", "model:8000"]
    assert local_probe(probe, rendered_port=8000, port=4711) == [
        *(sys.executable, "-c", "urlopen('http://127.0.0.1:4711/health')", "model:8000")
    ]


@pytest.mark.parametrize(
    "probe", [["curl", "http://127.0.0.1:8000/health"], ["python3", "-c", "urlopen('http://127.0.0.1:9000')"]]
)
def test_a_probe_that_cannot_be_pointed_at_a_server_is_refused(probe: list[str]) -> None:
    with pytest.raises(Refusal, match=r"is no Python that asks 127\.0\.0\.1:8000"):
        local_probe(probe, rendered_port=8000, port=4711)


PORT = 4711


@pytest.fixture(scope="module")
def tiny() -> Experiment:
    return load(ROOT / "experiments" / "lab-tiny.yaml")


@pytest.fixture(scope="module")
def servers(tiny: Experiment) -> dict[str, Container]:
    return containers(read(tiny, ROOT / "manifests"))


@pytest.fixture(scope="module")
def started(tiny: Experiment, servers: dict[str, Container]) -> dict[str, Command]:
    found = commands(list(servers.values()), folders=mounted_folders(tiny, {}), engine=["/lab/vllm"])
    return {command.name: command for command in found}


def test_only_folders_host_and_port_differ_from_the_rendered_command(
    started: dict[str, Command], servers: dict[str, Container]
) -> None:
    for name, server in servers.items():
        pairs = list(zip(server.command[1:], started[name].argv(PORT)[1:], strict=True))
        changed = {ours for theirs, ours in pairs if theirs != ours and not theirs.startswith("{")}
        assert changed == {str(CHECKPOINTS / "target"), "127.0.0.1", str(PORT)}


def test_drafts_and_windows_are_those_of_the_arms(started: dict[str, Command]) -> None:
    def config(name: str) -> dict[str, object]:
        argv = list(started[name].argv(PORT))
        found: dict[str, object] = json.loads(argv[argv.index("--speculative-config") + 1])
        return found

    assert "--speculative-config" not in started["tiny"].argv(PORT)
    assert config("tiny-weak")["model"] == str(CHECKPOINTS / "weak-draft")
    for k in (1, 3, 5, 7, 10, 15):
        assert config(f"tiny-sd-k{k}")["num_speculative_tokens"] == k
        assert config(f"tiny-sd-k{k}")["model"] == str(CHECKPOINTS / "draft")


def test_the_rendered_probes_ask_the_server_on_its_own_port(started: dict[str, Command]) -> None:
    probe = started["tiny"].startup
    assert probe is not None
    words = probe(PORT)
    assert (words[0], words[-1]) == (sys.executable, "lab/target")
    assert f"127.0.0.1:{PORT}" in words[2]
    assert ":8000" not in words[2]
    assert started["tiny"].health == "/health"
    assert started["tiny"].startup_s == 1800


def test_the_rendered_environment_stays_and_threads_are_pinned(started: dict[str, Command]) -> None:
    environment = started["tiny"].environment
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["HF_HUB_OFFLINE"] == "1"


def test_only_models_of_the_experiment_can_be_replaced(tiny: Experiment) -> None:
    with pytest.raises(
        Refusal, match=r"--weights: 'lab/big' is no model of lab-tiny; those are lab/target, "
    ):
        mounted_folders(tiny, {"lab/big": "Qwen/Qwen3-32B"})


def test_models_that_are_not_the_labs_come_from_their_hub(tiny: Experiment) -> None:
    model = next(model for model in MODELS.values() if model.name == "Qwen/Qwen3-32B")
    target = replace(tiny.baseline.target, model=model)
    real = replace(tiny, arms=(replace(tiny.baseline, target=target),))
    assert set(mounted_folders(real, {}).values()) == {"Qwen/Qwen3-32B"}
    assert label_of(real, {}) == "measured on this machine, Qwen/Qwen3-32B"
    assert label_of(tiny, {}) == TINY
    assert label_of(tiny, {"lab/target": "Qwen/Qwen3-32B"}).startswith(
        "measured on this machine, Qwen/Qwen3-32B"
    )


def test_models_of_a_hub_may_be_fetched(tiny: Experiment, servers: dict[str, Container]) -> None:
    folders = mounted_folders(tiny, {"lab/target": "Qwen/Qwen3-32B", "lab/draft": "Qwen/Qwen3-1.7B"})
    (one,) = commands([servers["tiny-sd-k15"]], folders=folders, engine=["vllm"])
    argv = list(one.argv(PORT))
    assert argv[2] == "Qwen/Qwen3-32B"
    assert '"model": "Qwen/Qwen3-1.7B"' in argv[argv.index("--speculative-config") + 1]
    assert "HF_HUB_OFFLINE" not in one.environment


def test_further_options_come_last_where_they_count(tiny: Experiment, servers: dict[str, Container]) -> None:
    folders = mounted_folders(tiny, {})
    (one,) = commands([servers["tiny"]], folders=folders, engine=["vllm"], options=["--dtype", "bfloat16"])
    assert one.argv(PORT)[-2:] == ["--dtype", "bfloat16"]


def test_a_server_that_wants_a_secret_is_refused(tiny: Experiment, servers: dict[str, Container]) -> None:
    locked = replace(servers["tiny"], secrets=("VLLM_API_KEY",))
    with pytest.raises(Refusal, match=r"arm tiny: VLLM_API_KEY comes from a Secret, .*api_key_secret out"):
        commands([locked], folders=mounted_folders(tiny, {}), engine=["vllm"])
