"""The way to a private endpoint, with a program in the plugin's place."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from botocore.stub import ANY

from experiment import Experiment
from experiment.finding import Outside
from operations import tunnel
from operations.aws import Aws
from tests.operations.clients import stubbed

HOST = "abc.gr7.us-east-2.eks.amazonaws.com"
OPENS = '#!/bin/sh\nprintf "%s\\n" "$@" "$AWS_SSM_START_SESSION_RESPONSE" > "{log}"\necho\necho "Port 1 opened for sessionId me."\necho "Waiting for connections..."\nexec sleep 600\n'
REFUSES = '#!/bin/sh\necho "TargetNotConnected: i-1 is not connected"\nexit 255\n'


class Account:
    """EC2 and SSM as they answer about one node; the Stubber checks the shape of every question."""

    def __init__(self, *, online: bool) -> None:
        made = {name: stubbed(name) for name in ("ec2", "ssm")}
        self.clients = {name: client for name, (client, _) in made.items()}
        stubs = {name: stub for name, (_, stub) in made.items()}
        stubs["ec2"].add_response(
            "describe_instances",
            {"Reservations": [{"Instances": [{"InstanceId": "i-0123456789abcdef0"}]}]},
            {
                "Filters": [
                    {"Name": "tag:Name", "Values": ["qwen3-32b-way-in"]},
                    {"Name": "instance-state-name", "Values": ["running"]},
                ]
            },
        )
        status = "Online" if online else "ConnectionLost"
        known = [
            {
                "InstanceId": "i-0123456789abcdef0",
                "PingStatus": status,
                "LastPingDateTime": datetime(2026, 4, 1, tzinfo=UTC),
            }
        ]
        stubs["ssm"].add_response("describe_instance_information", {"InstanceInformationList": known})
        if online:
            parameters = {"host": [HOST], "portNumber": ["443"], "localPortNumber": ANY}
            stubs["ssm"].add_response(
                "start_session",
                {"SessionId": "session-1", "StreamUrl": "wss://x", "TokenValue": "t"},
                {"Target": "i-0123456789abcdef0", "DocumentName": tunnel.DOCUMENT, "Parameters": parameters},
            )
            stubs["ssm"].add_response(
                "terminate_session", {"SessionId": "session-1"}, {"SessionId": "session-1"}
            )
        self.stubs = stubs

    def aws(self) -> Aws:
        return Aws("us-east-2", make_client=self.clients.__getitem__)


def _plugin(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    log = folder / "arguments"
    program = folder / tunnel.PLUGIN
    program.write_text(text.format(log=log))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return log


def test_a_session_is_opened_through_the_way_in_and_ended(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, credentials: None
) -> None:
    log = _plugin(tmp_path, OPENS, monkeypatch)
    account = Account(online=True)
    with tunnel.into(experiment, account.aws(), host=HOST) as port:
        name, region, action, _profile, request, endpoint, session = log.read_text().splitlines()
    assert name == "AWS_SSM_START_SESSION_RESPONSE", "and no token, since everybody may read command lines"
    assert json.loads(session) == {"SessionId": "session-1", "StreamUrl": "wss://x", "TokenValue": "t"}
    assert (region, action, endpoint) == ("us-east-2", "StartSession", "https://ssm.us-east-2.amazonaws.com")
    assert json.loads(request)["Parameters"]["localPortNumber"] == [str(port)]
    account.stubs["ssm"].assert_no_pending_responses()


def test_a_session_that_does_not_open_is_one_line_and_ended(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, credentials: None
) -> None:
    _plugin(tmp_path, REFUSES, monkeypatch)
    account = Account(online=True)
    with (
        pytest.raises(Outside, match=r"did not open .TargetNotConnected: i-1 is not connected"),
        tunnel.into(experiment, account.aws(), host=HOST),
    ):
        pass
    account.stubs["ssm"].assert_no_pending_responses()


def test_without_an_instance_that_answers_there_is_no_way_in(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, credentials: None
) -> None:
    _plugin(tmp_path, OPENS, monkeypatch)
    with (
        pytest.raises(Outside, match=r"qwen3-32b-way-in .* does not answer to Systems Manager"),
        tunnel.into(experiment, Account(online=False).aws(), host=HOST),
    ):
        pass


def test_without_the_plugin_the_line_says_what_to_install(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, credentials: None
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(Outside, match="session-manager-plugin is not installed; install it"),
        tunnel.into(experiment, Aws("us-east-2"), host=HOST),
    ):
        pass
