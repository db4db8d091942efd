"""A server's life: started when it answers, alive while it works, drained before it goes; its scripts are run here."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from cdk8s_charts.vllm_command import serve_environment
from cdk8s_charts.workloads.serving import deployment
from tests.cdk8s_charts.objects import Object, Pod, pods_of, the
from tests.cdk8s_charts.variations import rendered, with_serving
from tests.conftest import ROOT
from trnspec.experiment import Experiment, load
from trnspec.experiment.naming import COMPILED_AT_SERVING, SERVICE_PORT
from trnspec.store import FILES


class StandIn:
    """A server on loopback that says what it is told to say."""

    def __init__(self) -> None:
        self.status, self.text, self.key = 200, "4", ""
        self.running = [0]
        """Requests in flight, a value for each look; the last one stays."""
        self.asked: list[dict[str, Any]] = []
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

            def do_GET(self) -> None:
                value = stand_in.running.pop(0) if len(stand_in.running) > 1 else stand_in.running[0]
                self._answer(
                    stand_in.status,
                    f'# HELP x\nvllm:num_requests_running{{model="m"}} {float(value)}\n'.encode(),
                )

            def do_POST(self) -> None:
                stand_in.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                wanted = f"Bearer {stand_in.key}" if stand_in.key else None
                status = 200 if self.headers.get("Authorization") == wanted else 401
                self._answer(status, json.dumps({"choices": [{"text": stand_in.text}]}).encode())

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    made = StandIn()
    yield made
    made.close()


Run = Callable[[list[str]], object]


@pytest.fixture
def run(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Run:
    def exit_code(command: list[str]) -> object:
        """Of a container's program: 0, or why it ends."""
        python, flag, program, *arguments = command
        assert (python, flag) == ("python3", "-c")
        program = program.replace(f":{SERVICE_PORT}", f":{stand_in.server.server_address[1]}")
        monkeypatch.setattr(sys, "argv", [flag, *arguments])
        monkeypatch.setattr(time, "sleep", lambda _: None)
        try:
            exec(program, {})
        except SystemExit as end:
            return end.code
        return 0

    return exit_code


def _server(experiment: Experiment) -> Object:
    return Pod(deployment(experiment, experiment.arms[1])).container("vllm")


def test_startup_ends_with_one_real_completion_asked_with_the_servers_key(
    reference: Experiment, run: Run, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = _server(reference)["startupProbe"]["exec"]["command"]
    assert run(command) == 0
    (asked,) = stand_in.asked
    assert asked["model"] == "Qwen/Qwen3-32B"
    assert asked["max_tokens"] <= 8
    stand_in.text = ""
    assert run(command) == "the completion is empty"
    stand_in.status = 503
    stand_in.asked.clear()
    assert "503" in str(run(command))
    assert stand_in.asked == [], "an unhealthy server is not loaded as well"

    keyed = _server(with_serving(reference, api_key_secret="serving-key"))
    secret = {"secretKeyRef": {"name": "serving-key", "key": "api-key"}}
    assert keyed["env"][-1] == {"name": "VLLM_API_KEY", "valueFrom": secret}
    stand_in.text, stand_in.status, stand_in.key = "4", 200, "secret"
    command = keyed["startupProbe"]["exec"]["command"]
    assert "401" in str(run(command))
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    assert run(command) == 0


def test_a_server_that_answers_writes_into_its_log_how_many_compiled_graphs_the_artifact_lacks(
    reference: Experiment, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log, root = tmp_path / "log", tmp_path / "artifact"
    command = [
        part.replace("/proc/1/fd/1", str(log))
        for part in _server(reference)["startupProbe"]["exec"]["command"]
    ]
    assert (run(command), log.exists()) == (0, False), "NxD Inference keeps no cache"
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(root))
    (root / "home/.cache").mkdir(parents=True)
    for name in ("stored.neff", "home/.cache/made.neff", "trace.json"):
        (root / name).touch()
    assert (run(command), log.exists()) == (0, False), "without the list a server starts nevertheless"
    (root / FILES).write_text(json.dumps({"files": [{"path": "stored.neff"}]}))
    assert run(command) == 0
    assert json.loads(log.read_text()) == {COMPILED_AT_SERVING: 1}


def test_a_drain_waits_for_requests_in_flight_and_ends_with_its_budget_or_with_the_server(
    reference: Experiment, run: Run, stand_in: StandIn
) -> None:
    pod = Pod(deployment(reference, reference.arms[0]))
    *command, budget = pod.container("vllm")["lifecycle"]["preStop"]["exec"]["command"]
    assert pod.spec["terminationGracePeriodSeconds"] >= float(budget) + 30
    assert float(budget) >= reference.benchmark.max_tokens * 0.1
    stand_in.running = [2, 1, 1, 0]
    assert run([*command, budget]) == 0
    assert stand_in.running == [0]
    stand_in.running = [1]
    assert run([*command, "0.2"]) == 0
    stand_in.close()
    assert run([*command, "60"]) == 0


@pytest.mark.parametrize(
    ("level", "added", "enforced"),
    [("image-defaults", None, "baseline"), ("ipc-lock", ["IPC_LOCK"], "privileged")],
)
def test_only_containers_that_hold_devices_keep_capabilities_and_the_namespace_lets_them_in(
    level: str, added: list[str] | None, enforced: str, reference: Experiment
) -> None:
    experiment = with_serving(reference, pod_security=level)
    objects = rendered(experiment)
    kept = set()
    for pod in pods_of(objects):
        for container in pod.containers:
            context = container["securityContext"]
            assert context["privileged"] is False
            if context.get("capabilities", {}).get("drop") != ["ALL"]:
                assert context.get("capabilities", {}).get("add") == added
                assert "allowPrivilegeEscalation" not in context
                kept.add((pod.kind, container["name"]))
    assert kept == {("Deployment", "vllm"), ("Job", "compile"), ("Job", "proof")}
    labels = the(objects, "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == enforced


@pytest.mark.parametrize(
    ("name", "variable"),
    [("qwen3-32b", "NEURON_COMPILED_ARTIFACTS"), ("llama-3.3-70b-native", "VLLM_CACHE_ROOT")],
)
def test_a_server_finds_its_artifact_where_its_environment_says(name: str, variable: str) -> None:
    experiment = load(ROOT / "experiments" / f"{name}.yaml")
    for arm in experiment.arms:
        pod = Pod(deployment(experiment, arm))
        path = serve_environment(arm)[variable]
        mounts = [mount["mountPath"] for mount in pod.container("vllm")["volumeMounts"]]
        assert any(path.startswith(f"{mount}/") for mount in mounts)
        check, *copies = pod.spec["initContainers"]
        assert check["name"] == "check-artifact"
        told = [copy["args"][copy["args"].index("--to") + 1] for copy in copies]
        assert told == [path] * (variable == "VLLM_CACHE_ROOT"), "the native cache locks its files"
