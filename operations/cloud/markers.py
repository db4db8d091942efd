"""What is in the experiment's buckets and log groups: what is complete, what is stale, what a deployment left."""

from __future__ import annotations

import json
import re
from typing import Any

from core.findings import Refusal
from experiment import Arm, Experiment
from experiment.arms import Weights
from experiment.compilation import artifact_key
from experiment.naming import (
    COMPLETE,
    STALE_TAG,
    artifact_path,
    bucket,
    container_insights_log_groups,
    control_plane_log_group,
    weights_path,
)
from operations.cloud.aws import Aws, AwsError
from operations.cloud.cloudformation import deploy_command

_NOT_THERE = ("404", "NoSuchBucket", "NotFound")


def has_weights(experiment: Experiment, aws: Aws, weights: Weights) -> bool:
    """Whether a model was fetched to its end."""
    name = bucket(experiment, "checkpoints", aws.account)
    return marker(aws, name, f"{weights_path(weights)}/{COMPLETE}") is not None


def has_artifact(experiment: Experiment, aws: Aws, arm: Arm) -> bool:
    """Whether an arm was compiled to its end, under its own key."""
    name = bucket(experiment, "artifacts", aws.account)
    found = marker(aws, name, f"{artifact_path(arm)}/{COMPLETE}")
    return found is not None and found.get("key") == artifact_key(arm)


def uncompiled(experiment: Experiment, aws: Aws) -> int:
    """Artifacts that a run has to make."""
    return sum(not has_artifact(experiment, aws, arm) for arm in experiment.served_arms)


def refuse_uncompiled(experiment: Experiment, aws: Aws) -> None:
    """Raises `Refusal` where a promoted arm has no artifact: its pods would hold the devices that compiling needs."""
    for arm in experiment.arms:
        if experiment.serve and arm.name == experiment.serve.arm and not has_artifact(experiment, aws, arm):
            raise Refusal(
                f"{arm.name}: has no compiled artifact, so its pods would hold devices and wait for it; run ./trnspec run, which "
                "compiles it, before it is served"
            )


def marker(aws: Aws, name: str, key: str) -> dict[str, Any] | None:
    """The JSON of a marker, nothing when it does not exist or is not a marker.

    Raises `Refusal` when the bucket does not exist.
    """
    if (answer := stored(aws, name, key)) is None:
        return None
    try:
        found = json.loads(answer["Body"].read())
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def stored(aws: Aws, name: str, key: str) -> dict[str, Any] | None:
    """What S3 answers about an object, nothing when the object does not exist: a page that says 404 is not an answer of S3.

    Raises `Refusal` when the bucket does not exist.
    """
    try:
        found: dict[str, Any] | None = aws.client("s3").find("get_object", "NoSuchKey", Bucket=name, Key=key)
    except AwsError as error:
        raise missing_bucket(name, aws, error) from None
    return found


def missing_bucket(name: str, aws: Aws, error: AwsError) -> Refusal:
    """A bucket that is not there as its own line; every other error as it is."""
    if error.code != "NoSuchBucket":
        return error
    experiment_name = re.split(r"-(?:checkpoints|artifacts|results)-", name)[0]
    return Refusal(
        f"bucket {name}: none in account {aws.account}; deploy the storage stack ({deploy_command(experiment_name)}), or "
        "check AWS_PROFILE"
    )


def mark(experiment: Experiment, aws: Aws) -> list[str]:
    """Tag every artifact that is no arm's; returns their keys. The bucket's lifecycle rule lets only tagged objects go.

    The rule counts days from the upload (https://docs.aws.amazon.com/AmazonS3/latest/userguide/intro-lifecycle-rules.html),
    so what is old goes the night after it is tagged; the bucket keeps it as a noncurrent version for a while longer. The
    marker is tagged first and freed last: one without the tag says that no file of its folder has it.
    """
    name = bucket(experiment, "artifacts", aws.account)
    found = aws.client("s3").every("list_objects_v2", "CommonPrefixes", Bucket=name, Delimiter="/")
    stale = sorted({entry["Prefix"] for entry in found} - _wanted(experiment))
    for prefix in stale:
        for key in sorted(_keys(aws, name, prefix), key=lambda key: key != f"{prefix}{COMPLETE}"):
            tags = {"TagSet": [dict(zip(("Key", "Value"), STALE_TAG, strict=True))]}
            aws.client("s3").put_object_tagging(Bucket=name, Key=key, Tagging=tags)
    return [prefix.rstrip("/") for prefix in stale]


def free(experiment: Experiment, aws: Aws) -> list[str]:
    """Take the tag from artifacts that an arm has again; returns their keys."""
    name = bucket(experiment, "artifacts", aws.account)
    freed = []
    for prefix in sorted(_wanted(experiment)):
        if not (keys := _keys(aws, name, prefix)):
            continue
        asked = {"Bucket": name, "Key": f"{prefix}{COMPLETE}"}
        found = aws.client("s3").find("get_object_tagging", "NoSuchKey", **asked)
        if found is not None and STALE_TAG not in {(tag["Key"], tag["Value"]) for tag in found["TagSet"]}:
            continue
        for key in sorted(keys, key=lambda key: key == f"{prefix}{COMPLETE}"):
            aws.client("s3").delete_object_tagging(Bucket=name, Key=key)
        freed.append(prefix.rstrip("/"))
    return freed


def _wanted(experiment: Experiment) -> set[str]:
    return {f"{artifact_path(arm)}/" for arm in experiment.arms}


def _keys(aws: Aws, name: str, prefix: str) -> list[str]:
    listed = aws.client("s3").every("list_objects_v2", "Contents", Bucket=name, Prefix=prefix)
    return [entry["Key"] for entry in listed]


def log_groups(experiment: Experiment, aws: Aws) -> list[str]:
    """Groups of a deployment that EKS and the agents write to. Both may make one again while the cluster goes, after its
    stack has deleted it (https://github.com/terraform-aws-modules/terraform-aws-eks/issues/2763). In an existing cluster they
    have the same names, no matter who made them."""
    cluster = experiment.cluster
    names = [] if cluster.existing else [control_plane_log_group(experiment)]
    if cluster.brings("amazon-cloudwatch-observability"):
        names += container_insights_log_groups(experiment)
    return [
        group["logGroupName"]
        for prefix in dict.fromkeys(name.rpartition("/")[0] for name in names)
        for group in aws.client("logs").every("describe_log_groups", "logGroups", logGroupNamePrefix=prefix)
        if group["logGroupName"] in names
    ]


def delete_log_groups(experiment: Experiment, aws: Aws) -> list[str]:
    """Remove those groups of a cluster that was the experiment's own and is gone; returns their names."""
    found = log_groups(experiment, aws)
    for name in found:
        aws.client("logs").delete_log_group(logGroupName=name)
    return found


def buckets(experiment: Experiment, aws: Aws) -> list[str]:
    """Buckets of the storage stack that exist."""
    names = [bucket(experiment, purpose, aws.account) for purpose in ("checkpoints", "artifacts", "results")]
    s3 = aws.client("s3")
    return [name for name in names if s3.find("head_bucket", *_NOT_THERE, Bucket=name) is not None]


def commands(groups: list[str], stores: list[str], *, region: str) -> list[str]:
    """What removes them, a command each."""
    return [
        *(f"aws logs delete-log-group --log-group-name {name} --region {region}" for name in groups),
        *(f"aws s3api delete-bucket --bucket {name} --region {region}" for name in stores),
    ]
