"""etcd, kube-apiserver and, where they are, kube-scheduler and kube-controller-manager on loopback, for one session.

The folder is what `setup-envtest use` fills; kube-scheduler and kube-controller-manager of the same version beside what
it holds turn scheduling on. No kubelet: pods are bound and never started.
"""

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

from cdk8s_charts.pods import SCHEDULER
from operations.cloud import access
from tests.apiserver.kubectl import Kubectl, wait_until

SCHEDULERS = ("default-scheduler", SCHEDULER)
_TOKEN = "test-only"


@dataclass(frozen=True)
class ControlPlane:
    """A server to talk to, and what it can do."""

    kubectl: Kubectl
    schedulers: frozenset[str]
    """Schedulers that bind pods; without any, no controllers run either, and no pods are made from Deployments."""


class DiedEarly(Exception):
    """A process of the control plane ended before it was ready; the message is the end of its log."""


@contextmanager
def started(assets: Path, folder: Path) -> Iterator[ControlPlane]:
    """A control plane for as long as the context lasts."""
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
        yield ControlPlane(kubectl, _start_controllers(stack, assets, folder, config, key))


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
