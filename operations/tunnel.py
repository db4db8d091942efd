"""A way to a private endpoint: port forwarding by Systems Manager through the instance that the
cluster stack keeps for it.

https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-working-with-sessions-start.html, document
AWS-StartPortForwardingSessionToRemoteHost. Not run on AWS.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from experiment.finding import Outside, Refusal
from experiment.naming import cluster_name
from infra.naming import way_in_name

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.aws import Aws

PLUGIN = "session-manager-plugin"
DOCUMENT = "AWS-StartPortForwardingSessionToRemoteHost"
LEAST = "1.2.498.0"
OPENS_S = 60
_ENDS_S = 5
_READY = "Waiting for connections"
_RESPONSE = "AWS_SSM_START_SESSION_RESPONSE"
"""The plugin is given the name of this variable where versions up to 1.2.497.0 were given its content
(https://github.com/aws/aws-cli/blob/v2/awscli/customizations/sessionmanager.py)."""


@contextmanager
def into(experiment: Experiment, aws: Aws, *, host: str) -> Iterator[int]:
    """A local port behind which the private endpoint answers.

    Raises `Outside` when the plugin is missing, no node takes sessions, or the session does not open.
    """
    plugin = shutil.which(PLUGIN)
    if plugin is None:
        raise Outside(
            f"cluster {cluster_name(experiment)}: its endpoint is private and {PLUGIN} is not installed; install it "
            "(docs.aws.amazon.com/systems-manager, Session Manager plugin), or put your network into cluster.admin_cidrs"
        )
    port = _free_port()
    request = {
        "Target": _node(experiment, aws),
        "DocumentName": DOCUMENT,
        "Parameters": {"host": [host], "portNumber": ["443"], "localPortNumber": [str(port)]},
    }
    ssm = aws.client("ssm")
    session = ssm.start_session(**request)
    opened = {key: session[key] for key in ("SessionId", "StreamUrl", "TokenValue")}
    try:
        with _forwarding(plugin, opened, request, region=aws.region):
            yield port
    finally:
        # What was done through the tunnel counts; a session that nobody ends times out by itself.
        with suppress(Refusal):
            ssm.terminate_session(SessionId=session["SessionId"])


@contextmanager
def _forwarding(
    plugin: str, session: dict[str, Any], request: dict[str, Any], *, region: str
) -> Iterator[None]:
    endpoint = f"https://ssm.{region}.amazonaws.com"
    # The token opens the session, and everybody on this machine may read command lines.
    arguments = [plugin, _RESPONSE, region, "StartSession", "", json.dumps(request), endpoint]
    try:
        process = subprocess.Popen(
            arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, _RESPONSE: json.dumps(session)},
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise Outside(f"{plugin}: cannot be run ({error.strerror}); install it again") from None
    said, opened = deque[str](maxlen=20), Event()
    listener = Thread(target=_listen, args=(process, said, opened), daemon=True)
    listener.start()
    try:
        if not opened.wait(OPENS_S) or _READY not in " ".join(said):
            last = next((line for line in reversed(said) if line), "it said nothing")
            raise Outside(
                f"{PLUGIN}: the session to {request['Target']} did not open ({last[:200]}); install version {LEAST} or later, "
                "then run this again"
            )
        yield
    finally:
        _end(process, listener)


def _end(process: subprocess.Popen[str], listener: Thread) -> None:
    process.terminate()
    try:
        process.wait(timeout=_ENDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    listener.join(_ENDS_S)
    if process.stdout is not None and not listener.is_alive():
        process.stdout.close()


def _listen(process: subprocess.Popen[str], said: deque[str], opened: Event) -> None:
    """Read all that the plugin says: it writes a line for each connection, and stops when nobody reads them."""
    for line in process.stdout or ():
        if not opened.is_set():
            said.append("".join(character if character.isprintable() else "?" for character in line.strip()))
        if _READY in line:
            opened.set()
    opened.set()  # it has ended, opened or not


def _node(experiment: Experiment, aws: Aws) -> str:
    """The instance that the cluster stack keeps for sessions, when Systems Manager can reach it."""
    filters = [
        {"Name": "tag:Name", "Values": [way_in_name(experiment)]},
        {"Name": "instance-state-name", "Values": ["running"]},
    ]
    instances = {
        instance["InstanceId"]
        for reservation in aws.client("ec2").every("describe_instances", "Reservations", Filters=filters)
        for instance in reservation["Instances"]
    }
    online = [
        str(entry["InstanceId"])
        for entry in aws.client("ssm").every("describe_instance_information", "InstanceInformationList")
        if entry["InstanceId"] in instances and entry["PingStatus"] == "Online"
    ]
    if not online:
        raise Outside(
            f"cluster {cluster_name(experiment)}: its endpoint is private and {way_in_name(experiment)} "
            f"({len(instances)} running) does not answer to Systems Manager; wait some minutes after a deployment, or put "
            "your network into cluster.admin_cidrs and deploy"
        )
    return min(online)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
