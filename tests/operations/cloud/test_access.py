"""The real kubectl on a small API server, and what it complains about in one line; the way to a private endpoint, with a program in
the place of the plugin; an endpoint that says nothing."""

from __future__ import annotations

import base64
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.stub import ANY

from tests.conftest import ROOT
from tests.operations.api_server import ApiServer
from tests.operations.clients import stubbed
from tests.operations.clock import START
from tests.operations.conftest import Say
from trnspec.core.findings import Outside, Refusal
from trnspec.experiment import Experiment
from trnspec.operations import nodes_command
from trnspec.operations.cloud import access, clock, eks_token
from trnspec.operations.cloud.access import kubeconfig
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.cloud.kubernetes import ConflictError, Kubernetes, NotFoundError, explain

HOST = "abc.gr7.us-east-2.eks.amazonaws.com"
NODE = "i-0123456789abcdef0"
SESSION = {"SessionId": "session-1", "StreamUrl": "wss://x", "TokenValue": "t"}
ARM = {"name": "arm", "namespace": "qwen3-32b"}
DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": ARM, "spec": {"replicas": 0}}


def test_objects_are_made_read_changed_and_removed(api: ApiServer, cluster: Kubernetes) -> None:
    assert cluster.get("deployment", "arm") is None
    cluster.create(DEPLOYMENT)
    with pytest.raises(ConflictError):
        cluster.create(DEPLOYMENT)
    cluster.scale("arm", 1)
    found = cluster.get("deployment", "arm")
    assert (found or {})["spec"]["replicas"] == 1
    assert len(cluster.list("deployments")) == 1
    for _ in range(2):
        cluster.delete("deployment", "arm")
    assert cluster.list("deployments") == []
    api.put("pods", "p", {"spec": {"containers": [{"name": "c"}]}}, namespace="qwen3-32b")
    api.logs["p"] = "one\ntwo\n"
    assert cluster.logs("p", container="c") == "one\ntwo\n"
    with pytest.raises(NotFoundError, match="deploy the workloads"):
        cluster.list("scaledobjects")


UNREACHED = "endpoint cannot be reached"
ENTRY = "allow this identity: write its ARN into admins of deployment.yaml"
ADMIN = "use an identity that administers the cluster: one that admins of"
TOKEN = "no AWS credentials\nUnable to connect: getting credentials: exec: executable python failed"
COMPLAINTS = [
    ("Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout", UNREACHED),
    ("Unable to connect: dial tcp: lookup abc.eks.amazonaws.com: no such host", UNREACHED),
    ('Get "https://x/api": net/http: TLS handshake timeout', UNREACHED),
    (TOKEN, "no AWS credentials; correct the AWS credentials"),
    ("error: You must be logged in to the server (Unauthorized)", ENTRY),
    ('Error from server (Forbidden): pods is forbidden: User "me" cannot list resource', ADMIN),
]


def test_what_kubectl_complains_about_is_one_line(tmp_path: Path, experiment: Experiment) -> None:
    for said, says in COMPLAINTS:
        error = explain(said, doing="kubectl get", experiment=experiment)
        assert (type(error), says in str(error), "\n" in str(error)) == (Outside, True, False), error
    mistake = explain("error: unknown flag", doing="kubectl get", experiment=experiment)
    assert (type(mistake), str(mistake)[:32]) == (Refusal, "kubectl get: error: unknown flag")
    config = tmp_path / "kubeconfig"
    described = {"name": "c", "endpoint": "http://127.0.0.1:1"}
    whole = kubeconfig(described, region="us-east-2", server="http://127.0.0.1:1", host="127.0.0.1")
    config.write_text(json.dumps({**whole, "users": []}), encoding="utf-8")
    gone = Kubernetes(kubectl=access.kubectl(), kubeconfig=config, experiment=experiment)
    with pytest.raises(Outside, match=r"the cluster's endpoint cannot be reached .*./trnspec preflight"):
        gone.list("pods")


def test_the_bundled_kubectl_is_of_the_clusters_version_and_elsewhere_it_comes_from_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [str(access.kubectl()), "version", "--client", "--output=json"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(said.stdout)["clientVersion"]["minor"] == "35"
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Outside, match=r"install kubectl 1\.34 to 1\.36"):
        access.kubectl()
    (tmp_path / "kubectl").write_text("#!/bin/sh\n")
    (tmp_path / "kubectl").chmod(0o755)
    assert access.kubectl() == tmp_path / "kubectl"


def test_a_token_is_a_presigned_question_who_we_are_with_the_clusters_name_signed(credentials: None) -> None:
    found = eks_token.credential("mine", "us-east-2", now=START)
    assert found["status"]["expirationTimestamp"] == "2026-04-01T12:14:00Z"
    token = found["status"]["token"].removeprefix("k8s-aws-v1.")
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    asked = {key: value for key, (value,) in parse_qs(url.query).items()}
    assert (url.hostname, asked["Action"]) == ("sts.us-east-2.amazonaws.com", "GetCallerIdentity")
    assert (asked["X-Amz-SignedHeaders"], asked["X-Amz-Expires"]) == ("host;x-k8s-aws-id", "60")
    assert eks_token.token("other", "us-east-2") != eks_token.token("mine", "us-east-2")


def test_the_token_program_ends_in_one_line_without_credentials() -> None:
    environment = {"PATH": "/usr/bin", "AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nonexistent"}
    command = [sys.executable, "-m", "trnspec.operations.cloud.eks_token", "mine", "us-east-2"]
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert "no AWS credentials on this machine" in result.stderr
    assert len(result.stderr.splitlines()) == 1


OPENS = '#!/bin/sh\nprintf "%s\\n" "$@" "$AWS_SSM_START_SESSION_RESPONSE" > "{log}"\necho\necho "Port 1 opened for sessionId me."\necho "Waiting for connections..."\nexec sleep 600\n'
HANGS = "#!/bin/sh\nexec sleep 600\n"
REFUSES = '#!/bin/sh\necho "TargetNotConnected: i-1 is not connected"\nexit 255\n'


class Account:
    """EC2 and SSM as they answer about one node; the Stubber checks the shape of every question."""

    def __init__(self, *, online: bool) -> None:
        made = {name: stubbed(name) for name in ("ec2", "ssm")}
        self.clients = {name: client for name, (client, _) in made.items()}
        stubs = {name: stub for name, (_, stub) in made.items()}
        named = {"Name": "tag:Name", "Values": ["qwen3-32b-way-in"]}
        running = {"Name": "instance-state-name", "Values": ["running"]}
        reserved = {"Reservations": [{"Instances": [{"InstanceId": NODE}]}]}
        stubs["ec2"].add_response("describe_instances", reserved, {"Filters": [named, running]})
        state = "Online" if online else "ConnectionLost"
        known = {"InstanceId": NODE, "PingStatus": state, "LastPingDateTime": START}
        stubs["ssm"].add_response("describe_instance_information", {"InstanceInformationList": [known]})
        if online:
            parameters = {"host": [HOST], "portNumber": ["443"], "localPortNumber": ANY}
            asked = {"Target": NODE, "DocumentName": access.DOCUMENT, "Parameters": parameters}
            stubs["ssm"].add_response("start_session", SESSION, asked)
            ended = {"SessionId": "session-1"}
            stubs["ssm"].add_response("terminate_session", ended, ended)
        self.stubs = stubs

    def aws(self) -> Aws:
        return Aws("us-east-2", make_client=self.clients.__getitem__)


def plugin(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands on PATH; returns where it writes what it is called with."""
    log = folder / "arguments"
    program = folder / access.PLUGIN
    program.write_text(text.format(log=log))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return log


def test_a_session_is_opened_through_the_way_in_and_ended(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, credentials: None
) -> None:
    log = plugin(tmp_path, OPENS, monkeypatch)
    account = Account(online=True)
    with access.into(experiment, account.aws(), host=HOST) as server:
        described = {"name": "c", "endpoint": f"https://{HOST}", "certificateAuthority": {"data": "Q0E="}}
        config = kubeconfig(described, region="us-east-2", server=server, host=HOST)
        cluster = {"server": server, "certificate-authority-data": "Q0E=", "tls-server-name": HOST}
        assert config["clusters"][0]["cluster"] == cluster, "it keeps the name that the certificate has"
        name, region, action, _profile, request, endpoint, session = log.read_text().splitlines()
    assert name == "AWS_SSM_START_SESSION_RESPONSE", "and no token, since everybody may read command lines"
    assert json.loads(session) == SESSION
    assert (region, action, endpoint) == ("us-east-2", "StartSession", "https://ssm.us-east-2.amazonaws.com")
    assert json.loads(request)["Parameters"]["localPortNumber"] == [server.rpartition(":")[2]]
    account.stubs["ssm"].assert_no_pending_responses()


@pytest.mark.parametrize(
    ("program", "online", "says"),
    [
        (REFUSES, True, r"did not open .TargetNotConnected: i-1 is not connected"),
        (OPENS, False, r"qwen3-32b-way-in does not answer to Systems Manager"),
        (None, True, "session-manager-plugin is not installed; install it"),
        (HANGS, True, r"did not open .it said nothing.; install version 1\.2\.498\.0"),
    ],
)
def test_a_way_in_that_is_closed_is_one_line(
    program: str | None,
    online: bool,
    says: str,
    experiment: Experiment,
    tmp_path: Path,
    credentials: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account = Account(online=online)
    monkeypatch.setattr(access, "OPENS_S", 0.5)
    monkeypatch.setenv("PATH", str(tmp_path))
    if program is not None:
        plugin(tmp_path, program, monkeypatch)
    with pytest.raises(Outside, match=says), access.into(experiment, account.aws(), host=HOST):
        pass
    if program is REFUSES:
        account.stubs["ssm"].assert_no_pending_responses()  # the session is ended


TALKS = '#!/bin/sh\necho "Waiting for connections..."\nyes "Connection accepted" | head -n 20000\ntouch "$0.done"\nexec sleep 600\n'


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch, credentials: None) -> Iterator[list[float]]:
    """How many seconds were left when a request came; from then on none are."""
    left_s: list[float] = []

    def listen() -> None:
        with suppress(OSError), listening.accept()[0] as connection:
            connection.recv(1)
            left_s.append(signal.getitimer(signal.ITIMER_REAL)[0])
            if left_s[0]:
                signal.setitimer(signal.ITIMER_REAL, 0.01, 1.0)
            listening.accept()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        Thread(target=listen, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{listening.getsockname()[1]}")
        yield left_s
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_the_emergency_stop_says_what_it_waits_for_and_ends_when_the_time_is_over(
    more: tuple[str, ...], silence: list[float], say: Say
) -> None:
    code, out, err = say("nodes", "0", *more)
    assert 0 < silence[0] <= nodes_command.LIMIT_S == 45
    assert (code, out.startswith('{\n  "problems"')) == (3, "--json" in more)
    first, last = err.splitlines()
    assert first == "trnspec nodes: asks EKS in us-east-2 for 0 nodes of qwen3-32b, 45 s at most"
    assert "EKS in us-east-2 did not answer within 45 s, so nodes may still bill" in last


def test_a_limit_that_was_dropped_in_a_destructor_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def dropped_once() -> None:
        with suppress(clock.TooLateError):  # as Python does there
            time.sleep(30)
        time.sleep(30)

    monkeypatch.setattr(clock, "AGAIN_S", 0.2)
    with pytest.raises(clock.TooLateError), clock.within(0.05):
        dropped_once()


def test_a_plugin_that_talks_for_hours_is_listened_to(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, credentials: None
) -> None:
    """A line for each connection fills the pipe of one that nobody reads, and the tunnel stands still."""
    plugin(tmp_path, TALKS, monkeypatch)
    with access.into(experiment, Account(online=True).aws(), host=HOST):
        end = time.monotonic() + 30
        while not (tmp_path / f"{access.PLUGIN}.done").exists():
            assert time.monotonic() < end
            time.sleep(0.05)
