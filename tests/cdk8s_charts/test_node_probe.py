"""The proof itself, run against a root that looks like a node: it passes there, and fails for each of its causes."""

from __future__ import annotations

import http.server
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts import node_probe
from cdk8s_charts.image_probe import VISIBLE_CORES
from tests.cdk8s_charts.objects import Case, pods_of

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
    "tested_driver": "2.28",
    "without": ["NEURON_RT_VISIBLE_CORES"],
    "pod_security": "baseline",
}


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library with the functions that the proof calls; what they answer stands in the environment."""
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

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/credentials"
        server.shutdown()


class Node:
    """Files and environment of a node on which every check passes, to be spoilt one at a time."""

    def __init__(self, root: Path, runtime: Path, agent: str, setenv: Callable[[str, str], None]) -> None:
        self.root, self.runtime, self.setenv = root, runtime, setenv
        self.expected = dict(EXPECTED)
        for number in range(8):
            self.file(f"dev/neuron{number}")
        self.file("dev/neuron_monitor_lock")
        self.driver("2.28.0.0")
        self.file("checkpoints/Qwen/Qwen3-32B/config.json", "{}")
        for folder in ("scratch", "artifacts"):
            (root / folder).mkdir()
        self.mounts("/checkpoints", "/artifacts")
        setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent)
        setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(self.file("token", "a-token\n")))

    def file(self, name: str, text: str = "") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def without(self, name: str) -> None:
        (self.root / name).rename(self.root / "elsewhere")

    def driver(self, version: str) -> None:
        self.file("sys/module/neuron/version", f"{version}\n")

    def mounts(self, *folders: str, kind: str = "fuse") -> None:
        """The kernel's list of mounts, these of Mountpoint among them."""
        lines = ["21 1 0:19 / / rw,relatime - overlay overlay rw", "22 21 0:20 / /proc rw - proc proc rw"]
        for number, folder in enumerate(folders):
            lines.append(f"{30 + number} 21 0:{40 + number} / {folder} ro shared:9 - {kind} mountpoint-s3 ro")
        self.file("proc/self/mountinfo", "\n".join(lines) + "\n")

    def prove(self) -> tuple[int, dict[str, dict[str, Any]]]:
        told = StringIO()
        with redirect_stdout(told):
            code = node_probe.main(self.words)
        return code, _by_check(told.getvalue())

    @property
    def words(self) -> list[str]:
        return [json.dumps(self.expected), "--root", str(self.root), "--runtime-library", str(self.runtime)]


def _by_check(text: str) -> dict[str, dict[str, Any]]:
    return {line["check"]: line for line in map(json.loads, text.splitlines())}


@pytest.fixture
def node(tmp_path: Path, runtime: Path, agent: str, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(node_probe, "GIB", 2**20)  # of what is written and read back
    for name in (LNC, VISIBLE_CORES, "NODE_LNC", "COUNT_STATUS", "INIT_STATUS"):
        monkeypatch.delenv(name, raising=False)
    return Node(tmp_path, runtime, agent, monkeypatch.setenv)


def test_a_node_as_assumed_passes_every_check(node: Node) -> None:
    code, results = node.prove()
    assert [name for name, result in results.items() if not result["passed"]] == []
    assert code == 0
    assert list(results) == list(node_probe.CHECKS)
    assert results["logical-cores"]["found"] == "32 logical NeuronCores"
    assert results["mounts-readable"]["found"] == (
        "/checkpoints: 1 files, /artifacts: mounted, empty, so nothing was read"
    )
    assert not list((node.root / "scratch").iterdir()), "the proof leaves nothing behind"
    found = "driver 2.28.0.0; AWS tested the image's runtime with driver 2.28"
    assert (results["driver-version"]["found"], results["driver-version"]["remedy"]) == (found, "")
    node.driver("2.29.0.0")
    node.expected["driver_at_most"] = ""
    code, results = node.prove()
    assert code == 0, "no end is known"
    assert results["driver-version"]["remedy"].startswith("other pairs can work, by AWS")
    node.expected |= {"tested_driver": "", "without": []}
    node.setenv(VISIBLE_CORES, "0-3")
    code, results = node.prove()
    assert (code, "was not read" in results["driver-version"]["found"]) == (0, True)


def _closed_device(node: Node) -> None:
    (node.root / "dev/neuron3").unlink()
    (node.root / "dev/neuron3").symlink_to("nowhere")  # root may open anything that exists


LNC, ADDRESS = "NEURON_LOGICAL_NC_CONFIG", "AWS_CONTAINER_CREDENTIALS_FULL_URI"
CAUSES: list[tuple[Callable[[Node], object], str, str, str]] = [
    # what spoils the node, the check that fails, what it finds, a part of its remedy
    (lambda n: n.without("dev/neuron7"), "device-files", "7 devices in /dev, the claim asks for 8", "claim"),
    (_closed_device, "device-files", "may not open neuron3", "pod_security: image-defaults"),
    (lambda n: n.setenv(LNC, "1"), "logical-cores", "64 logical NeuronCores, the arm", "claim"),
    (lambda n: n.setenv("NODE_LNC", "1"), "logical-cores", "64 logical NeuronCores, the arm", "user data"),
    (lambda n: n.expected.update(logical_cores=64), "logical-cores", "the arm shards over 64", "claim"),
    (lambda n: n.setenv("COUNT_STATUS", "1"), "logical-cores", "ended with status 1", "do not fit"),
    (lambda n: n.setenv("INIT_STATUS", "2"), "runtime-starts", "nrt_init ended with status 2", "do not fit"),
    (lambda n: setattr(n, "runtime", "absent.so"), "runtime-starts", "in this image", "not a Neuron image"),
    (lambda n: n.without("sys"), "driver-version", "no Neuron driver is loaded", "Neuron AMI"),
    (
        lambda n: n.driver("2.9.1.0"),
        "driver-version",
        "wants 2.22 or later",
        "a newer image, with driver 2.22",
    ),
    (
        lambda n: n.driver("2.29.0.0"),
        "driver-version",
        "wants 2.28 or earlier",
        "an older image, with driver",
    ),
    (lambda n: n.setenv(VISIBLE_CORES, "0-3"), "variables", f"the pod has {VISIBLE_CORES}=0-3", "claim"),
    (lambda n: n.expected.update(scratch_gib=1e9), "scratch-space", "are needed", "localStorage RAID0"),
    (lambda n: n.without("scratch"), "scratch-space", "No such file", "render the manifests again"),
    (lambda n: n.mounts("/checkpoints"), "mounts-readable", "/artifacts is not mounted by", "mount-s3"),
    (lambda n: n.mounts("/checkpoints", kind="ext4"), "mounts-readable", "Mountpoint (ext4)", "mount-s3"),
    (lambda n: n.without("proc/self/mountinfo"), "mounts-readable", "mountinfo", "please report it"),
    (lambda n: n.setenv(ADDRESS, ""), "pod-identity", "no Pod Identity variables", "delete the pod"),
    (lambda n: n.file("token", "x"), "pod-identity", "gives no credentials", "eks-pod-identity-agent"),
]


@pytest.mark.parametrize(("spoil", "check", "found", "remedy"), CAUSES)
def test_each_cause_fails_its_check_with_a_remedy(
    spoil: Callable[[Node], object], check: str, found: str, remedy: str, node: Node
) -> None:
    spoil(node)
    code, results = node.prove()
    assert code == 1
    assert not results[check]["passed"]
    assert found in results[check]["found"]
    assert remedy in results[check]["remedy"]
    assert results.keys() == node_probe.CHECKS.keys(), "the other checks still ran"


def test_every_check_of_a_node_has_a_cause_that_fails_it() -> None:
    assert {check for _, check, *_ in CAUSES} == node_probe.CHECKS.keys()


@pytest.mark.parametrize(
    ("level", "of_devices", "of_runtime"),
    [
        ("restricted", "pod_security: baseline", "pod_security: baseline"),
        ("baseline", "pod_security: image-defaults", "pod_security: ipc-lock"),
        ("image-defaults", "nothing but privilege is refused", "pod_security: ipc-lock"),
        ("ipc-lock", "nothing but privilege is refused", "nothing but privilege is refused at this level"),
    ],
)
def test_what_the_security_context_keeps_away_is_given_by_a_level_that_keeps_more(
    level: str, of_devices: str, of_runtime: str, node: Node
) -> None:
    node.expected["pod_security"] = level
    _closed_device(node)
    node.setenv("INIT_STATUS", "2")
    failed = {check: result for check, result in node.prove()[1].items() if not result["passed"]}
    assert [*failed] == ["device-files", "runtime-starts"]
    assert of_devices in failed["device-files"]["remedy"]
    assert of_runtime in failed["runtime-starts"]["remedy"]


def test_a_runtime_that_ends_the_process_leaves_the_checks_before_it(node: Node) -> None:
    """`src/trnspec/operations/verify.py` counts what is missing as failed. The program is run as in its pod, without this project."""
    node.setenv("INIT_STATUS", "-1")
    program = [sys.executable, "-I", str(Path(node_probe.__file__)), *node.words]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert not done.stderr
    assert done.returncode < 0
    results = _by_check(done.stdout)
    assert "runtime-starts" not in results
    assert "driver-version" in results


def test_no_proof_is_told_what_it_must_find_out(case: Case) -> None:
    for pod in pods_of(case[1]):
        assert not pod.name.startswith("verify-") or "env" not in pod.container("proof")
