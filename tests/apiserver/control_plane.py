"""The part of EKS that the API server asks about tokens: a webhook that knows those of `operations.cloud.eks_token`.

It judges their form, not their signature, which only AWS can.
https://kubernetes.io/docs/reference/access-authn-authz/authentication/#webhook-token-authentication

etcd, kube-apiserver and, where they are, kube-scheduler and kube-controller-manager on loopback, for one session.

The folder is what `setup-envtest use` fills; kube-scheduler and kube-controller-manager of the same version beside what
it holds turn scheduling on. No kubelet: pods are bound and never started.
"""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from cdk8s_charts.pods.devices import SCHEDULER
from operations.cloud import access
from operations.cloud.eks_token import PREFIX
from tests.apiserver.kubectl import Kubectl, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


ADMINISTRATOR = "AKIAIOSFODNN7EXAMPLE"
"""Access key of the only identity that the cluster lets in."""


def is_administrators(token: str) -> bool:
    """Whether it is a presigned sts:GetCallerIdentity of that key with the cluster's name among the signed headers."""
    if not token.startswith(PREFIX):
        return False
    text = token.removeprefix(PREFIX)
    url = urlsplit(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode())
    query = parse_qs(url.query)
    signed = query.get("X-Amz-SignedHeaders", [""])[0].split(";")
    return (
        url.scheme == "https"
        and (url.hostname or "").startswith("sts.")
        and query.get("Action") == ["GetCallerIdentity"]
        and {"host", "x-k8s-aws-id"} <= set(signed)
        and query.get("X-Amz-Credential", [""])[0].startswith(f"{ADMINISTRATOR}/")
    )


@contextmanager
def webhook(folder: Path) -> Iterator[Path]:
    """Answers the API server; the path is that of the configuration which leads there."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Review)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    path = folder / "webhook.json"
    url = f"http://127.0.0.1:{server.server_address[1]}"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tokens", "cluster": {"server": url}}],
        "users": [{"name": "server", "user": {}}],
        "contexts": [{"name": "tokens", "context": {"cluster": "tokens", "user": "server"}}],
        "current-context": "tokens",
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    try:
        yield path
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Review(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status: dict[str, Any] = {"authenticated": False}
        if is_administrators(review["spec"]["token"]):
            status = {"authenticated": True, "user": {"username": "admin", "groups": ["system:masters"]}}
        answer = json.dumps({**review, "status": status}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


SCHEDULERS = ("default-scheduler", SCHEDULER)
_TOKEN = "test-only"
_ATTEMPTS = 3
"""A free port may be gone by the time it is used."""


@dataclass(frozen=True)
class ControlPlane:
    """A server to talk to, and what it can do."""

    kubectl: Kubectl
    schedulers: frozenset[str]
    """Schedulers that bind pods; without any, no controllers run either, and no pods are made from Deployments."""
    endpoint: str = ""
    """Address of a server that takes the tokens of EKS; empty for one that does not."""
    authority: str = ""
    """Its certificate, as EKS describes it: base64."""


class DiedEarly(Exception):
    """A process of the control plane ended before it was ready; the message is the end of its log."""


@contextmanager
def started(assets: Path, folder: Path) -> Iterator[ControlPlane]:
    """A control plane for as long as the context lasts."""
    for attempt in range(_ATTEMPTS):
        with ExitStack() as stack:
            try:
                plane = _start(stack, assets, folder / str(attempt))
            except DiedEarly:
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            yield plane
            return


def _start(stack: ExitStack, assets: Path, folder: Path) -> ControlPlane:
    folder.mkdir(parents=True)
    etcd_port, peer_port, api_port = _free_ports(3)
    etcd = f"http://127.0.0.1:{etcd_port}"
    _run(
        stack,
        folder,
        str(assets / "etcd"),
        f"--data-dir={folder / 'etcd-data'}",
        f"--listen-client-urls={etcd}",
        f"--advertise-client-urls={etcd}",
        f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
        "--unsafe-no-fsync",
    )
    key = _key(folder)
    (folder / "tokens.csv").write_text(f"{_TOKEN},tester,1,system:masters\n")
    server = _run(
        stack,
        folder,
        str(assets / "kube-apiserver"),
        f"--etcd-servers={etcd}",
        "--bind-address=127.0.0.1",
        f"--secure-port={api_port}",
        f"--cert-dir={folder / 'certificates'}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--authorization-mode=Node,RBAC",
        "--service-cluster-ip-range=10.96.0.0/16",
        f"--authentication-token-webhook-config-file={stack.enter_context(webhook(folder))}",
        "--authentication-token-webhook-version=v1",
    )
    endpoint = f"https://127.0.0.1:{api_port}"
    config = _kubeconfig(folder, endpoint)
    kubectl = Kubectl(str(access.kubectl()), str(config))
    wait_until(lambda: server.ready(kubectl), "kube-apiserver answers /readyz")
    schedulers = _start_controllers(stack, assets, folder, config, key)
    authority = base64.b64encode((folder / "certificates" / "apiserver.crt").read_bytes()).decode()
    return ControlPlane(kubectl, schedulers, endpoint, authority)


def _start_controllers(
    stack: ExitStack, assets: Path, folder: Path, config: Path, key: Path
) -> frozenset[str]:
    programs = [assets / "kube-scheduler", assets / "kube-controller-manager"]
    if not all(program.exists() for program in programs):
        return frozenset()
    _run(stack, folder, str(programs[0]), f"--config={_scheduler_config(folder, config)}", "--secure-port=0")
    _run(
        stack,
        folder,
        str(programs[1]),
        f"--kubeconfig={config}",
        "--leader-elect=false",
        "--secure-port=0",
        f"--service-account-private-key-file={key}",
        # Nodes here have no kubelet that would go on reporting; they must not be taken for dead.
        "--node-monitor-grace-period=24h",
    )
    return frozenset(SCHEDULERS)


def _scheduler_config(folder: Path, config: Path) -> Path:
    """One scheduler under both names. The Neuron extension, which the second one asks on EKS, is not here."""
    path = folder / "scheduler.yaml"
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(config), "qps": 500, "burst": 500},
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": name} for name in SCHEDULERS],
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@dataclass(frozen=True)
class _Process:
    child: subprocess.Popen[bytes]
    log: Path

    def ready(self, kubectl: Kubectl) -> bool:
        if self.child.poll() is not None:
            raise DiedEarly(self.log.read_text(encoding="utf-8", errors="replace")[-2000:])
        return kubectl.run("get", "--raw", "/readyz").returncode == 0


def _run(stack: ExitStack, folder: Path, program: str, *arguments: str) -> _Process:
    log = folder / f"{program.rpartition('/')[2]}.log"
    with log.open("wb") as output:
        child = subprocess.Popen([program, *arguments], stdout=output, stderr=subprocess.STDOUT, cwd=folder)
    stack.callback(_end, child)
    return _Process(child, log)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(timeout=30)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _key(folder: Path) -> Path:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    path = folder / "service-accounts.pem"
    path.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return path


def _kubeconfig(folder: Path, endpoint: str) -> Path:
    path = folder / "kubeconfig"
    cluster = {"server": endpoint, "insecure-skip-tls-verify": True}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "tester", "user": {"token": _TOKEN}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "tester"}}],
        "current-context": "test",
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
