"""The function that builds images for CloudFormation: AWS by botocore's stubs, CloudFormation as a real HTTP server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from infra.handlers import build_image

WANTED = {"Project": "images", "Repository": "tools", "Tag": "abc", "Uri": "registry/tools:abc"}
SOUGHT = {"repositoryName": "tools", "imageIds": [{"imageTag": "abc"}]}
ASKED = {"StackId": "stack", "RequestId": "request", "LogicalResourceId": "Image"}


@pytest.fixture
def cloudformation() -> Iterator[SimpleNamespace]:
    """Takes answers at an address."""
    answers: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            answers.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.01]).start()
        yield SimpleNamespace(address=f"http://127.0.0.1:{server.server_port}/answer", answers=answers)
        server.shutdown()


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The two clients that the function asks for, each with the calls that it must get."""
    keys = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}
    clients = {name: boto3.client(name, region_name="us-east-2", **keys) for name in ("ecr", "codebuild")}
    stubs = {name: Stubber(client) for name, client in clients.items()}
    monkeypatch.setattr("boto3.client", clients.__getitem__)
    with stubs["ecr"], stubs["codebuild"]:
        yield SimpleNamespace(**stubs, clients=clients)
    for stub in stubs.values():
        stub.assert_no_pending_responses()


def _requested(cloudformation: SimpleNamespace, kind: str = "Create") -> None:
    event = {"RequestType": kind, **ASKED, "ResponseURL": cloudformation.address}
    build_image.handle({**event, "ResourceProperties": WANTED}, None)


def _ended(aws: SimpleNamespace, status: str, variables: list[dict[str, str]]) -> None:
    environment = {
        "type": "LINUX_CONTAINER",
        "image": "standard",
        "computeType": "BUILD_GENERAL1_MEDIUM",
        "environmentVariables": variables,
    }
    build = {"environment": environment, "logs": {"deepLink": "https://console/logs"}}
    aws.codebuild.add_response("batch_get_builds", {"builds": [build]}, {"ids": ["images:1"]})
    arn = "arn:aws:codebuild:us-east-2:111122223333:build/images:1"
    build_image.handle({"detail": {"build-id": arn, "build-status": status}}, None)


@pytest.mark.parametrize(
    ("status", "answered", "reason"),
    [("SUCCEEDED", "SUCCESS", ""), ("FAILED", "FAILED", "build images:1 FAILED: see https://console/logs")],
)
def test_a_missing_image_is_built_and_the_answer_comes_when_this_build_has_ended(
    aws: SimpleNamespace,
    cloudformation: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    answered: str,
    reason: str,
) -> None:
    """What the answer needs travels with the build."""
    aws.ecr.add_client_error("describe_images", "ImageNotFoundException", expected_params=SOUGHT)
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(aws.clients["codebuild"], "start_build", lambda **said: started.append(said))
    _requested(cloudformation)
    ((said),) = started
    assert said["projectName"] == "images"
    _ended(aws, status, [])
    assert cloudformation.answers == [], "a build of somebody else"
    _ended(aws, status, said["environmentVariablesOverride"])
    (answer,) = cloudformation.answers
    assert answer == {
        **ASKED,
        "Status": answered,
        "Reason": reason,
        "PhysicalResourceId": "abc",
        "Data": {"Uri": "registry/tools:abc"},
    }


def test_what_is_there_or_is_deleted_or_cannot_be_built_is_answered_at_once(
    aws: SimpleNamespace, cloudformation: SimpleNamespace
) -> None:
    aws.ecr.add_response("describe_images", {"imageDetails": []}, SOUGHT)
    _requested(cloudformation, "Update")
    _requested(cloudformation, "Delete")
    aws.ecr.add_client_error("describe_images", "ImageNotFoundException", expected_params=SOUGHT)
    aws.codebuild.add_client_error("start_build", "AccountLimitExceededException", "too many builds")
    _requested(cloudformation)
    assert [one["Status"] for one in cloudformation.answers] == ["SUCCESS", "SUCCESS", "FAILED"]
    assert "too many builds" in cloudformation.answers[-1]["Reason"]
