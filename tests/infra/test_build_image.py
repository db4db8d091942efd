"""The function that builds images for CloudFormation: AWS by botocore's stubs, CloudFormation as a real HTTP server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber

from infra.handlers import build_image

WANTED = {"Project": "images", "Repository": "tools", "Tag": "abc", "Uri": "registry/tools:abc"}


class CloudFormation:
    """Takes answers at an address."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []
        taken = self.answers

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                taken.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/answer"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def cloudformation() -> Iterator[CloudFormation]:
    server = CloudFormation()
    yield server
    server.close()


class Aws:
    """The two clients that the function asks for."""

    def __init__(self) -> None:
        keys = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}
        self.clients = {
            name: boto3.client(name, region_name="us-east-2", **keys) for name in ("ecr", "codebuild")
        }
        self.ecr, self.codebuild = (Stubber(self.clients[name]) for name in ("ecr", "codebuild"))


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    clients = Aws()
    monkeypatch.setattr("boto3.client", clients.clients.__getitem__)
    with clients.ecr, clients.codebuild:
        yield clients
    clients.ecr.assert_no_pending_responses()
    clients.codebuild.assert_no_pending_responses()


def _request(cloudformation: CloudFormation, kind: str = "Create") -> dict[str, Any]:
    return {
        "RequestType": kind,
        "StackId": "stack",
        "RequestId": "request",
        "LogicalResourceId": "Image",
        "ResponseURL": cloudformation.address,
        "ResourceProperties": WANTED,
    }


def _asked_for_image(aws: Aws, *, exists: bool) -> None:
    said = {"repositoryName": "tools", "imageIds": [{"imageTag": "abc"}]}
    if exists:
        aws.ecr.add_response("describe_images", {"imageDetails": []}, said)
    else:
        aws.ecr.add_client_error("describe_images", "ImageNotFoundException", expected_params=said)


def test_a_missing_image_is_built_and_the_answer_comes_when_the_build_has_ended(
    aws: Aws, cloudformation: CloudFormation
) -> None:
    _asked_for_image(aws, exists=False)
    aws.codebuild.add_response(
        "start_build", {}, {"projectName": "images", "environmentVariablesOverride": ANY}
    )
    build_image.handle(_request(cloudformation), None)
    assert cloudformation.answers == []

    _ended(aws, cloudformation, "SUCCEEDED")
    (answer,) = cloudformation.answers
    assert answer == {
        "Status": "SUCCESS",
        "Reason": "",
        "PhysicalResourceId": "abc",
        "StackId": "stack",
        "RequestId": "request",
        "LogicalResourceId": "Image",
        "Data": {"Uri": "registry/tools:abc"},
    }


def _ended(aws: Aws, cloudformation: CloudFormation, status: str) -> None:
    answer = {
        "StackId": "stack",
        "RequestId": "request",
        "LogicalResourceId": "Image",
        "PhysicalResourceId": "abc",
        "Uri": "registry/tools:abc",
        "Url": cloudformation.address,
    }
    variables = [{"name": build_image.ANSWER_TO, "value": json.dumps(answer), "type": "PLAINTEXT"}]
    build = {
        "environment": {
            "type": "LINUX_CONTAINER",
            "image": "standard",
            "computeType": "BUILD_GENERAL1_MEDIUM",
            "environmentVariables": variables,
        },
        "logs": {"deepLink": "https://console/logs"},
    }
    aws.codebuild.add_response("batch_get_builds", {"builds": [build]}, {"ids": ["images:1"]})
    arn = "arn:aws:codebuild:us-east-2:111122223333:build/images:1"
    build_image.handle({"detail": {"build-id": arn, "build-status": status}}, None)


def test_what_an_answer_needs_travels_with_the_build(
    aws: Aws, cloudformation: CloudFormation, monkeypatch: pytest.MonkeyPatch
) -> None:
    _asked_for_image(aws, exists=False)
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(aws.clients["codebuild"], "start_build", lambda **said: started.append(said))
    build_image.handle(_request(cloudformation), None)
    ((entry,),) = [
        [v for v in said["environmentVariablesOverride"] if v["name"] == build_image.ANSWER_TO]
        for said in started
    ]
    assert json.loads(entry["value"])["Url"] == cloudformation.address


def test_an_image_that_exists_is_not_built_again(aws: Aws, cloudformation: CloudFormation) -> None:
    _asked_for_image(aws, exists=True)
    build_image.handle(_request(cloudformation, "Update"), None)
    assert [answer["Status"] for answer in cloudformation.answers] == ["SUCCESS"]


def test_a_failed_build_fails_the_deployment_and_says_where_to_look(
    aws: Aws, cloudformation: CloudFormation
) -> None:
    _ended(aws, cloudformation, "FAILED")
    (answer,) = cloudformation.answers
    assert answer["Status"] == "FAILED"
    assert answer["Reason"] == "build images:1 FAILED: see https://console/logs"


def test_a_build_that_cannot_start_is_answered_at_once(aws: Aws, cloudformation: CloudFormation) -> None:
    _asked_for_image(aws, exists=False)
    aws.codebuild.add_client_error("start_build", "AccountLimitExceededException", "too many builds")
    build_image.handle(_request(cloudformation), None)
    (answer,) = cloudformation.answers
    assert answer["Status"] == "FAILED"
    assert "too many builds" in answer["Reason"]


def test_deleting_builds_nothing(aws: Aws, cloudformation: CloudFormation) -> None:
    build_image.handle(_request(cloudformation, "Delete"), None)
    assert [answer["Status"] for answer in cloudformation.answers] == ["SUCCESS"]


def test_a_build_of_somebody_else_is_left_alone(aws: Aws, cloudformation: CloudFormation) -> None:
    build = {
        "environment": {
            "type": "LINUX_CONTAINER",
            "image": "x",
            "computeType": "BUILD_GENERAL1_SMALL",
            "environmentVariables": [],
        }
    }
    aws.codebuild.add_response("batch_get_builds", {"builds": [build]}, {"ids": ["images:2"]})
    build_image.handle({"detail": {"build-id": "arn:x:build/images:2", "build-status": "FAILED"}}, None)
    assert cloudformation.answers == []
