"""The way into a cluster: its endpoint and certificate from EKS, tokens from this project, a tunnel where it is private."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from experiment.finding import Refusal
from experiment.naming import cluster_name, namespace
from operations import bundled_kubectl, tunnel
from operations.deploying import deploy_command
from operations.kubernetes import Kubernetes

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.aws import Aws

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def cluster_of(experiment: Experiment, aws: Aws) -> Iterator[Kubernetes]:
    """kubectl on the experiment's cluster; everything that it needs lies in a folder that goes away again."""
    described = describe(experiment, aws)
    host = urlsplit(described["endpoint"]).hostname or ""
    public = described.get("resourcesVpcConfig", {}).get("endpointPublicAccess", True)
    beside = os.environ.get("CLUSTER_ENDPOINT") == "direct"  # a build inside the VPC needs no tunnel
    with (
        tempfile.TemporaryDirectory(prefix="operations-") as folder,
        _address(experiment, aws, described["endpoint"], host, public=public or beside) as server,
    ):
        config = Path(folder) / "kubeconfig"
        with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
            json.dump(kubeconfig(described, region=aws.region, server=server, host=host), file)
        yield Kubernetes(
            kubectl=bundled_kubectl.kubectl(), kubeconfig=config, namespace=namespace(experiment)
        )


def describe(experiment: Experiment, aws: Aws) -> dict[str, Any]:
    """The cluster as EKS describes it.

    Raises `Refusal` when there is none, or it is not ready.
    """
    name = cluster_name(experiment)
    found = aws.client("eks").find("describe_cluster", "ResourceNotFoundException", name=name)
    if found is None:
        raise Refusal(
            f"cluster {name}: none in account {aws.account}, {aws.region}; deploy it ({deploy_command(experiment.name)}), or check "
            "AWS_PROFILE and cluster.region"
        )
    described: dict[str, Any] = found["cluster"]
    if described["status"] not in ("ACTIVE", "UPDATING"):
        raise Refusal(
            f"cluster {name}: is {described['status']}; wait for CloudFormation to end, then run this again"
        )
    return described


def kubeconfig(described: dict[str, Any], *, region: str, server: str, host: str) -> dict[str, Any]:
    """A kubeconfig (JSON is YAML) whose tokens are made by this project when kubectl asks for them."""
    cluster: dict[str, Any] = {"server": server}
    authority = described.get("certificateAuthority", {}).get("data")
    if authority:
        cluster["certificate-authority-data"] = authority
    if server != described["endpoint"]:
        cluster["tls-server-name"] = host  # the certificate names the endpoint, not the tunnel's end
    name = described["name"]
    command = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-m", "operations.eks_token", name, region],
        "env": [{"name": "PYTHONPATH", "value": str(ROOT)}],
        "interactiveMode": "Never",
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"exec": command}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


@contextmanager
def _address(experiment: Experiment, aws: Aws, endpoint: str, host: str, *, public: bool) -> Iterator[str]:
    if public:
        yield endpoint
        return
    with tunnel.into(experiment, aws, host=host) as port:
        yield f"https://127.0.0.1:{port}"
