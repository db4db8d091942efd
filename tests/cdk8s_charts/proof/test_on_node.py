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

from cdk8s_charts import on_node
from tests.cdk8s_charts.committed import RENDERED, objects_of

RUNTIME = """
#include <stdint.h>
#include <stdlib.h>
static int said(const char *name) { const char *text = getenv(name); return text ? atoi(text) : 0; }
/* As on Trainium2: the variable of the container first, then what the node was told, then 2. */
static int lnc(void) {
  return said("NEURON_LOGICAL_NC_CONFIG") ? said("NEURON_LOGICAL_NC_CONFIG") : said("NODE_LNC") ? said("NODE_LNC") : 2;
}
int nrt_get_visible_vnc_count(uint32_t *count) { *count = 8 * 8 / lnc(); return said("COUNT_STATUS"); }
int nrt_init(int framework, const char *version, const char *fal) {
  if (said("INIT_STATUS") < 0) abort();
  return said("INIT_STATUS");
}
void nrt_close(void) {}
"""
EXPECTED: dict[str, Any] = {
    "devices": 8,
    "logical_cores": 32,
    "scratch_gib": 0.001,
    "mounts": ["/checkpoints", "/artifacts"],
    "driver_at_least": "2.22",
    "driver_at_most": "2.28",
    "pod_security": "baseline",
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
        self.file("sys/module/neuron/version", "2.28.0.0\n")
        self.file("checkpoints/Qwen/Qwen3-32B/config.json", "{}")
        for folder in ("scratch", "artifacts"):
            (root / folder).mkdir()
        self.mounts("/checkpoints", "/artifacts")
        token = self.file("token", "a-token\n")
        self.environment = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": agent,
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
            "PATH": os.environ["PATH"],
        }

    def file(self, name: str, text: str = "") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def mounts(self, *folders: str, kind: str = "fuse") -> None:
        """The kernel's list of mounts, these of Mountpoint among them."""
        lines = ["21 1 0:19 / / rw,relatime - overlay overlay rw", "22 21 0:20 / /proc rw - proc proc rw"]
        for number, folder in enumerate(folders):
            lines.append(f"{30 + number} 21 0:{40 + number} / {folder} ro shared:9 - {kind} mountpoint-s3 ro")
        self.file("proc/self/mountinfo", "\n".join(lines) + "\n")

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
    assert results["logical-cores"]["found"] == (
        "32 logical NeuronCores by the node, or the runtime's default: no variable and no file tells"
    )
    assert results["mounts-readable"]["found"] == (
        "/checkpoints: 1 files, /artifacts: mounted, empty, so nothing was read"
    )
    assert not list((node.root / "scratch").iterdir()), "the proof leaves nothing behind"


def _less_devices(node: Node) -> None:
    (node.root / "dev/neuron7").unlink()


def _closed_device(node: Node) -> None:
    (node.root / "dev/neuron3").unlink()
    (node.root / "dev/neuron3").symlink_to("nowhere")  # root may open anything that exists


def _claim_of_another_lnc(node: Node) -> None:
    node.environment["NEURON_LOGICAL_NC_CONFIG"] = "1"


def _node_of_another_lnc(node: Node) -> None:
    node.environment["NODE_LNC"] = "1"
    node.file("opt/aws/neuron/logical_nc_config", "NEURON_LOGICAL_NC_CONFIG=1\n")


def _claim_that_does_not_arrive(node: Node) -> None:
    """The arm shards over physical cores one by one, and nobody told the runtime."""
    node.expected["logical_cores"] = 64


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


def _new_driver(node: Node) -> None:
    node.file("sys/module/neuron/version", "2.29.0.0\n")


def _small_scratch(node: Node) -> None:
    node.expected["scratch_gib"] = 1e9


def _no_scratch(node: Node) -> None:
    (node.root / "scratch").rmdir()


def _no_mount(node: Node) -> None:
    """The folder is there and reads well: it is the image's."""
    node.mounts("/checkpoints")


def _mount_of_another_kind(node: Node) -> None:
    node.mounts("/checkpoints", "/artifacts", kind="ext4")


def _no_list_of_mounts(node: Node) -> None:
    (node.root / "proc/self/mountinfo").unlink()


def _no_identity(node: Node) -> None:
    del node.environment["AWS_CONTAINER_CREDENTIALS_FULL_URI"]


def _refused_identity(node: Node) -> None:
    node.file("token", "another")


CAUSES: list[tuple[Callable[[Node], None], str, str]] = [
    (_less_devices, "device-files", "7 devices in /dev, the claim asks for 8"),
    (_closed_device, "device-files", "may not open neuron3"),
    (_claim_of_another_lnc, "logical-cores", "64 logical NeuronCores by NEURON_LOGICAL_NC_CONFIG=1, which"),
    (
        _node_of_another_lnc,
        "logical-cores",
        "=1 in /opt/aws/neuron/logical_nc_config, the arm shards over 32",
    ),
    (_claim_that_does_not_arrive, "logical-cores", "the arm shards over 64"),
    (_count_refused, "logical-cores", "ended with status 1"),
    (_runtime_refused, "runtime-starts", "nrt_init ended with status 2"),
    (_no_runtime, "runtime-starts", "in this image"),
    (_no_driver, "driver-version", "no Neuron driver is loaded"),
    (_old_driver, "driver-version", "driver 2.9.1.0, the image's runtime wants 2.22 or later"),
    (_new_driver, "driver-version", "driver 2.29.0.0, the image's runtime wants 2.28 or earlier"),
    (_small_scratch, "scratch-space", "are needed"),
    (_no_scratch, "scratch-space", "No such file"),
    (_no_mount, "mounts-readable", "/artifacts is not mounted by Mountpoint (no mount there)"),
    (_mount_of_another_kind, "mounts-readable", "/checkpoints is not mounted by Mountpoint (ext4)"),
    (_no_list_of_mounts, "mounts-readable", "mountinfo"),
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


def test_every_check_of_a_node_has_a_cause_that_fails_it() -> None:
    assert {check for _, check, _ in CAUSES} == on_node.CHECKS.keys()


@pytest.mark.parametrize("level", ["restricted", "baseline", "image-defaults"])
@pytest.mark.parametrize("spoil", [_closed_device, _runtime_refused])
def test_what_the_security_context_keeps_away_is_given_by_the_next_level(
    level: str, spoil: Callable[[Node], None], node: Node
) -> None:
    further = {"restricted": "pod_security: baseline", "baseline": "pod_security: image-defaults"}
    node.expected["pod_security"] = level
    spoil(node)
    (failed,) = (result for result in node.prove()[1].values() if not result["passed"])
    assert further.get(level, "nothing but privilege is refused at this level") in failed["remedy"]


def test_a_runtime_that_ends_the_process_leaves_the_checks_before_it(node: Node) -> None:
    """`operations/verification.py` counts what is missing as failed."""
    node.environment["INIT_STATUS"] = "-1"
    code, results = node.prove()
    assert code < 0
    assert "runtime-starts" not in results
    assert "driver-version" in results


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_no_proof_is_told_what_it_must_find_out(path: Path) -> None:
    for item in objects_of(path):
        if item["kind"] == "CronJob" and item["metadata"]["name"].startswith("verify-"):
            (container,) = item["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
            assert "env" not in container


@pytest.mark.parametrize(
    ("spoil", "way"),
    [
        (_old_driver, "a newer image, with driver 2.22 or later"),
        (_new_driver, "an older image, with driver 2.28 or ear"),
    ],
    ids=["too old", "too new"],
)
def test_a_wrong_driver_is_fixed_in_the_right_direction(
    spoil: Callable[[Node], None], way: str, node: Node
) -> None:
    spoil(node)
    assert way in node.prove()[1]["driver-version"]["remedy"]


def test_a_driver_without_a_known_end_is_taken_however_new(node: Node) -> None:
    node.expected["driver_at_most"] = ""
    _new_driver(node)
    assert node.prove()[1]["driver-version"]["passed"]


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
