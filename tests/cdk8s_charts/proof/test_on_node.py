"""The proof itself, run against a root that looks like a node: it passes there, and fails for each of its causes."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.proof import on_node

RUNTIME = """
#include <stdint.h>
#include <stdlib.h>
static int said(const char *name) { const char *text = getenv(name); return text ? atoi(text) : 0; }
int nrt_get_visible_vnc_count(uint32_t *count) { *count = said("CORES"); return said("COUNT_STATUS"); }
int nrt_init(int framework, const char *version, const char *fal) { return said("INIT_STATUS"); }
void nrt_close(void) {}
"""
EXPECTED: dict[str, Any] = {
    "devices": 8,
    "logical_cores": 32,
    "scratch_gib": 0.001,
    "mounts": ["/checkpoints", "/artifacts"],
    "driver_at_least": "2.24",
}


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library with the three functions that the proof calls; what they answer stands in the environment."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for a stand-in of libnrt.so")
    folder = tmp_path_factory.mktemp("nrt")
    source, library = folder / "nrt.c", folder / "libnrt.so.1"
    source.write_text(RUNTIME, encoding="utf-8")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


@pytest.fixture(scope="session")
def agent() -> Iterator[str]:
    """A Pod Identity agent that wants its token."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers["Authorization"] == "a-token"
            body = {"AccessKeyId": "AKIA", "Expiration": "2026-01-01T00:00:00Z"} if known else {}
            self.send_response(200 if known else 403)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/credentials"
        server.shutdown()


@pytest.fixture
def node(tmp_path: Path, runtime: Path, agent: str) -> Node:
    """A root on which every check passes."""
    return Node(tmp_path, runtime, agent)


class Node:
    """Files and environment of a node, to be spoilt one at a time."""

    def __init__(self, root: Path, runtime: Path, agent: str) -> None:
        self.root, self.runtime = root, runtime
        self.expected = dict(EXPECTED)
        for number in range(8):
            self.file(f"dev/neuron{number}")
        self.file("dev/neuron_monitor_lock")
        self.file("sys/module/neuron/version", "2.24.7.0\n")
        self.file("checkpoints/Qwen/Qwen3-32B/config.json", "{}")
        for folder in ("scratch", "artifacts"):
            (root / folder).mkdir()
        token = self.file("token", "a-token\n")
        self.environment = {
            "CORES": "32",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": agent,
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
            "PATH": os.environ["PATH"],
        }

    def file(self, name: str, text: str = "") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def prove(self) -> tuple[int, dict[str, dict[str, Any]]]:
        """The program as the pod runs it, in a Python of its own without this project on its path."""
        words = [json.dumps(self.expected), "--root", str(self.root), "--runtime-library", str(self.runtime)]
        done = subprocess.run(
            [sys.executable, "-I", str(Path(on_node.__file__)), *words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.stderr, done.stderr
        return done.returncode, {line["check"]: line for line in map(json.loads, done.stdout.splitlines())}


def test_a_node_as_assumed_passes_every_check(node: Node) -> None:
    code, results = node.prove()
    assert [name for name, result in results.items() if not result["passed"]] == []
    assert code == 0
    assert list(results) == list(on_node.CHECKS)
    assert results["logical-cores"]["found"] == "32 logical NeuronCores"
    assert results["mounts-readable"]["found"] == "/checkpoints: 1 files, /artifacts: empty"
    assert not list((node.root / "scratch").iterdir()), "the proof leaves nothing behind"


def _less_devices(node: Node) -> None:
    (node.root / "dev/neuron7").unlink()


def _closed_device(node: Node) -> None:
    (node.root / "dev/neuron3").unlink()
    (node.root / "dev/neuron3").symlink_to("nowhere")  # root may open anything that exists


def _other_lnc(node: Node) -> None:
    node.environment["CORES"] = "64"


def _count_refused(node: Node) -> None:
    node.environment["COUNT_STATUS"] = "1"


def _runtime_refused(node: Node) -> None:
    node.environment["INIT_STATUS"] = "2"


def _no_runtime(node: Node) -> None:
    node.runtime = node.root / "absent.so"


def _no_driver(node: Node) -> None:
    shutil.rmtree(node.root / "sys")


def _old_driver(node: Node) -> None:
    node.file("sys/module/neuron/version", "2.9.1.0\n")


def _small_scratch(node: Node) -> None:
    node.expected["scratch_gib"] = 1e9


def _no_scratch(node: Node) -> None:
    (node.root / "scratch").rmdir()


def _no_mount(node: Node) -> None:
    shutil.rmtree(node.root / "artifacts")


def _no_identity(node: Node) -> None:
    del node.environment["AWS_CONTAINER_CREDENTIALS_FULL_URI"]


def _refused_identity(node: Node) -> None:
    node.file("token", "another")


CAUSES: list[tuple[Callable[[Node], None], str, str]] = [
    (_less_devices, "device-files", "7 devices in /dev, the claim asks for 8"),
    (_closed_device, "device-files", "may not open neuron3"),
    (_other_lnc, "logical-cores", "64 logical NeuronCores, the arm shards over 32"),
    (_count_refused, "logical-cores", "ended with status 1"),
    (_runtime_refused, "runtime-starts", "nrt_init ended with status 2"),
    (_no_runtime, "runtime-starts", "in this image"),
    (_no_driver, "driver-version", "no Neuron driver is loaded"),
    (_old_driver, "driver-version", "driver 2.9.1.0, the image's runtime wants 2.24 or later"),
    (_small_scratch, "scratch-space", "are needed"),
    (_no_scratch, "scratch-space", "No such file"),
    (_no_mount, "mounts-readable", "/artifacts is no folder"),
    (_no_identity, "pod-identity", "no Pod Identity variables"),
    (_refused_identity, "pod-identity", "gives no credentials"),
]


@pytest.mark.parametrize(("spoil", "check", "found"), CAUSES, ids=[c[0].__name__[1:] for c in CAUSES])
def test_each_cause_fails_its_check_with_a_remedy(
    spoil: Callable[[Node], None], check: str, found: str, node: Node
) -> None:
    spoil(node)
    code, results = node.prove()
    assert code == 1
    assert not results[check]["passed"]
    assert found in results[check]["found"]
    assert results[check]["remedy"]
    assert len(results) == len(on_node.CHECKS), "the other checks still ran"


def test_what_no_check_foresaw_is_a_failure_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_machine: on_node.Machine, _expected: on_node.Expected) -> str:
        raise RuntimeError("a surprise")

    monkeypatch.setattr(on_node, "CHECKS", {"first": broken, "second": lambda *_: "fine"})
    machine = on_node.Machine(Path("/"), {}, "libnrt.so.1")
    first, second = on_node.prove(machine, on_node.Expected.read(json.dumps(EXPECTED)))
    assert first == {
        "check": "first",
        "passed": False,
        "found": "RuntimeError: a surprise",
        "remedy": "unforeseen; please report it",
    }
    assert second["passed"]
