"""Builds a container image in CodeBuild when CloudFormation asks for one, and answers when the build has ended.

Two kinds of events arrive: CloudFormation's request, on which a build is started, and CodeBuild's event that a build ended
(through EventBridge), on which the request is answered. Nothing waits in between, so a build may take as long as
CloudFormation waits for it (an hour). Where the answer goes travels with the build, in its environment.

An image that exists under its tag, the hash of its sources, is not built again. Deleting leaves images to their
repository, which goes with its stack.
"""

from __future__ import annotations

import json
import logging
import urllib.request
from typing import Any

import boto3

LOG = logging.getLogger(__name__)
ANSWER_TO = "CLOUDFORMATION_ANSWER"
"""Variable of the build that holds, as JSON, what an answer to CloudFormation must repeat, and where it goes."""
_REPEATED = ("StackId", "RequestId", "LogicalResourceId")


def handle(event: dict[str, Any], context: object) -> None:
    if "RequestType" in event:
        _requested(event)
    else:
        _ended(event["detail"])


def _requested(event: dict[str, Any]) -> None:
    wanted = event["ResourceProperties"]
    answer = {key: event[key] for key in _REPEATED} | {
        "PhysicalResourceId": wanted["Tag"],
        "Uri": wanted["Uri"],
        "Url": event["ResponseURL"],
    }
    try:
        if event["RequestType"] == "Delete" or _exists(wanted["Repository"], wanted["Tag"]):
            _reply(answer, "SUCCESS", "")
            return
        boto3.client("codebuild").start_build(
            projectName=wanted["Project"],
            environmentVariablesOverride=[
                {"name": "IMAGE_URI", "value": wanted["Uri"], "type": "PLAINTEXT"},
                {"name": ANSWER_TO, "value": json.dumps(answer), "type": "PLAINTEXT"},
            ],
        )
    except Exception as error:  # any error: without an answer the deployment hangs for an hour
        LOG.exception("no build was started")
        _reply(answer, "FAILED", f"no build was started: {error}")


def _exists(repository: str, tag: str) -> bool:
    registry = boto3.client("ecr")
    try:
        registry.describe_images(repositoryName=repository, imageIds=[{"imageTag": tag}])
    except registry.exceptions.ImageNotFoundException:
        return False
    return True


def _ended(detail: dict[str, Any]) -> None:
    build_id = detail["build-id"].rpartition("build/")[2]
    (build,) = boto3.client("codebuild").batch_get_builds(ids=[build_id])["builds"]
    variables = {entry["name"]: entry["value"] for entry in build["environment"]["environmentVariables"]}
    if ANSWER_TO not in variables:
        LOG.info("build %s was started by somebody else", build_id)
        return
    status = detail["build-status"]
    if status == "SUCCEEDED":
        _reply(json.loads(variables[ANSWER_TO]), "SUCCESS", "")
    else:
        where = build.get("logs", {}).get("deepLink", "the project's log group")
        _reply(json.loads(variables[ANSWER_TO]), "FAILED", f"build {build_id} {status}: see {where}")


def _reply(answer: dict[str, str], status: str, reason: str) -> None:
    """https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/crpg-ref-responses.html"""
    body = {key: answer[key] for key in (*_REPEATED, "PhysicalResourceId")} | {
        "Status": status,
        "Reason": reason,
        "Data": {"Uri": answer["Uri"]},
    }
    request = urllib.request.Request(
        answer["Url"], data=json.dumps(body).encode(), method="PUT", headers={"Content-Type": ""}
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        LOG.info("answered %s: %s", status, response.status)
