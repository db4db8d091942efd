"""etcd and kube-apiserver on loopback, for one session, from the folder that `setup-envtest use` fills."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.apiserver.kubectl import Kubectl, wait_until
from trnspec.operations.cloud import access

_TOKEN = "test-only"


@dataclass(frozen=True)
class ControlPlane:
    kubectl: Kubectl
    controllers: bool
    """Whether controllers run, which end a namespace."""


class DiedEarly(Exception):
    """A process of the control plane ended before it was ready; the message is the end of its log."""


@contextmanager
def started(assets: Path, folder: Path) -> Iterator[ControlPlane]:
    etcd_port, peer_port, api_port = _free_ports(3)
    etcd = f"http://127.0.0.1:{etcd_port}"
    key = _key(folder)
    (folder / "tokens.csv").write_text(f"{_TOKEN},tester,1,system:masters\n")
    with ExitStack() as stack:
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
        )
        config = _kubeconfig(folder, f"https://127.0.0.1:{api_port}")
        kubectl = Kubectl(str(access.kubectl()), str(config))
        wait_until(lambda: server.ready(kubectl), "kube-apiserver answers /readyz")
        yield ControlPlane(kubectl, controllers=False)


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
