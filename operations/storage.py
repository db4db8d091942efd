"""Weights, artifacts and results in their buckets: what is complete, read from the markers that are written last."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from experiment.artifact import artifact_key
from experiment.finding import Refusal
from experiment.naming import COMPLETE, artifact_path, bucket, weights_path
from operations.aws_errors import AwsError
from operations.deploying import deploy_command

if TYPE_CHECKING:
    from experiment import Arm, Experiment
    from experiment.arms import Weights
    from operations.aws import Aws

_ABSENT = "NoSuchKey"
"""A page that says 404 is no answer of S3."""


def has_weights(experiment: Experiment, aws: Aws, weights: Weights) -> bool:
    """Whether a model was fetched to its end."""
    name = bucket(experiment, "checkpoints", aws.account)
    return marker(aws, name, f"{weights_path(weights)}/{COMPLETE}") is not None


def has_artifact(experiment: Experiment, aws: Aws, arm: Arm) -> bool:
    """Whether an arm was compiled to its end, under its own key."""
    name = bucket(experiment, "artifacts", aws.account)
    found = marker(aws, name, f"{artifact_path(arm)}/{COMPLETE}")
    return found is not None and found.get("key") == artifact_key(arm)


def marker(aws: Aws, name: str, key: str) -> dict[str, Any] | None:
    """The JSON of a marker, nothing when there is none or it is no marker.

    Raises `Refusal` when there is no such bucket.
    """
    try:
        text = aws.client("s3").get_object(Bucket=name, Key=key)["Body"].read()
    except AwsError as error:
        if error.code == _ABSENT:
            return None
        raise missing_bucket(name, aws, error) from None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def missing_bucket(name: str, aws: Aws, error: AwsError) -> Refusal:
    """A bucket that is not there as its own line; every other error as it is."""
    if error.code != "NoSuchBucket":
        return error
    experiment_name = re.split(r"-(?:checkpoints|artifacts|results)-", name)[0]
    return Refusal(
        f"bucket {name}: none in account {aws.account}; deploy the storage stack ({deploy_command(experiment_name)}), or "
        "check AWS_PROFILE"
    )
