"""Resources of an experiment outside its stacks: weights and artifacts in buckets, stale artifacts, log groups, subscribers of alarms."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from trnspec.core.findings import Refusal
from trnspec.experiment import Arm, Experiment, naming
from trnspec.experiment.arms import Weights
from trnspec.experiment.compilation import artifact_key
from trnspec.operations.cloud.aws import Aws, AwsError
from trnspec.operations.cloud.cloudformation import deploy_command

UNCONFIRMED = "has not confirmed yet: the mail from AWS Notifications asks for it"
_STALE = dict(zip(("Key", "Value"), naming.STALE_TAG, strict=True))


def has_weights(experiment: Experiment, aws: Aws, weights: Weights) -> bool:
    """Return whether the weights of a model are complete."""
    key = f"{naming.weights_path(weights)}/{naming.COMPLETE}"
    return marker(experiment, aws, "checkpoints", key) is not None


def has_artifact(experiment: Experiment, aws: Aws, arm: Arm) -> bool:
    """Return whether the artifact of an arm is complete, under the arm's own key."""
    complete = marker(experiment, aws, "artifacts", f"{naming.artifact_path(arm)}/{naming.COMPLETE}")
    return complete is not None and complete.get("key") == artifact_key(arm)


def missing_artifacts(experiment: Experiment, aws: Aws, arms: Iterable[Arm] | None = None) -> list[Arm]:
    """Return those of the arms (default: all) that are not compiled."""
    chosen = experiment.arms if arms is None else arms
    return [arm for arm in chosen if not has_artifact(experiment, aws, arm)]


def marker(experiment: Experiment, aws: Aws, purpose: str, key: str) -> dict[str, Any] | None:
    """Return the JSON object of a completion marker; None if it does not exist or is not valid. Raises `Refusal` without the bucket."""
    if (answer := stored(experiment, aws, purpose, key)) is None:
        return None
    try:
        content = json.loads(answer[0])
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def stored(
    experiment: Experiment, aws: Aws, purpose: str, key: str, *, max_bytes: int | None = None
) -> tuple[bytes, str] | None:
    """Return the content, at most `max_bytes`, and the ETag of an object; None if it does not exist. Raises `Refusal` without the bucket."""
    where = {"Bucket": naming.bucket(experiment, purpose, aws.account), "Key": key}
    try:
        return aws.client("s3").content(max_bytes, **where)
    except AwsError as error:
        if error.code == "NoSuchKey":  # a page that says 404 is not an answer of S3
            return None
        raise missing_bucket(experiment, aws, purpose, error) from None


def missing_bucket(experiment: Experiment, aws: Aws, purpose: str, error: AwsError) -> Refusal:
    """Return the refusal for a bucket that does not exist; other errors are returned unchanged."""
    if error.code != "NoSuchBucket":
        return error
    name = naming.bucket(experiment, purpose, aws.account)
    remedy = f"deploy the storage stack ({deploy_command(experiment)}), or check AWS_PROFILE"
    return Refusal(f"bucket {name}: none in account {aws.account}; {remedy}")


def mark(experiment: Experiment, aws: Aws) -> list[str]:
    """Tag every artifact that no arm uses, and return their keys. The bucket's lifecycle rule deletes only tagged objects.

    The rule counts days from the upload (https://docs.aws.amazon.com/AmazonS3/latest/userguide/intro-lifecycle-rules.html),
    so an old artifact is deleted the night after it is tagged; the bucket keeps it as a noncurrent version for some days. The
    marker is tagged first and untagged last, so a marker without the tag means that no file of its folder has the tag.
    """
    name, s3 = naming.bucket(experiment, "artifacts", aws.account), aws.client("s3")
    folders = s3.paginate("list_objects_v2", "CommonPrefixes", Bucket=name, Delimiter="/")
    stale = sorted({entry["Prefix"] for entry in folders} - _wanted(experiment))
    for prefix in stale:
        for key in reversed(_keys(aws, name, prefix)):
            s3.put_object_tagging(Bucket=name, Key=key, Tagging={"TagSet": [_STALE]})
    return [prefix.rstrip("/") for prefix in stale]


def free(experiment: Experiment, aws: Aws) -> list[str]:
    """Remove the tag from artifacts that an arm uses again, and return their keys."""
    name, s3, freed = naming.bucket(experiment, "artifacts", aws.account), aws.client("s3"), []
    for prefix in sorted(_wanted(experiment)):
        asked = {"Bucket": name, "Key": f"{prefix}{naming.COMPLETE}"}
        tags = s3.find("get_object_tagging", "NoSuchKey", **asked)
        keys = _keys(aws, name, prefix) if tags is None or _STALE in tags["TagSet"] else []
        for key in keys:
            s3.delete_object_tagging(Bucket=name, Key=key)
        freed += [prefix.rstrip("/")] if keys else []
    return freed


def _wanted(experiment: Experiment) -> set[str]:
    return {f"{naming.artifact_path(arm)}/" for arm in experiment.arms}


def _keys(aws: Aws, name: str, prefix: str) -> list[str]:
    """Return the keys of a folder, its marker last."""
    entries = aws.client("s3").paginate("list_objects_v2", "Contents", Bucket=name, Prefix=prefix)
    return sorted((entry["Key"] for entry in entries), key=lambda key: key == f"{prefix}{naming.COMPLETE}")


def log_groups(experiment: Experiment, aws: Aws) -> list[str]:
    """Return the existing log groups that EKS and the agents write to. Both may create one again while the cluster is deleted, after its
    stack has deleted it (https://github.com/terraform-aws-modules/terraform-aws-eks/issues/2763)."""
    names = (naming.control_plane_log_group(experiment), *naming.container_insights_log_groups(experiment))
    return [
        group["logGroupName"]
        for prefix in dict.fromkeys(name.rpartition("/")[0] for name in names)
        for group in aws.client("logs").paginate(
            "describe_log_groups", "logGroups", logGroupNamePrefix=prefix
        )
        if group["logGroupName"] in names
    ]


def asset_image_sizes(aws: Aws) -> list[int]:
    """Return the bytes of each image in the registry of `cdk bootstrap`. No stack owns them: teardowns leave them, and they bill."""
    name = f"cdk-hnb659fds-container-assets-{aws.account}-{aws.region}"
    images = aws.client("ecr").paginate("describe_images", "imageDetails", repositoryName=name)
    try:
        return [one["imageSizeInBytes"] for one in images]
    except AwsError as error:
        if error.code == "RepositoryNotFoundException":
            return []
        raise


def buckets(experiment: Experiment, aws: Aws) -> list[str]:
    purposes = ("checkpoints", "artifacts", "results")
    names = [naming.bucket(experiment, purpose, aws.account) for purpose in purposes]
    absent = ("404", "NoSuchBucket", "NotFound")
    return [name for name in names if aws.client("s3").find("head_bucket", *absent, Bucket=name) is not None]


def topic(experiment: Experiment, aws: Aws) -> str:
    """Return the ARN of the topic that alarms report to."""
    return f"arn:aws:sns:{aws.region}:{aws.account}:{naming.notices_topic(experiment)}"


def subscribers(experiment: Experiment, aws: Aws) -> dict[str, bool] | None:
    """Return the addresses that receive alarms, and whether each has confirmed; None if the topic is not deployed."""
    where = {"TopicArn": topic(experiment, aws)}
    subscriptions = aws.client("sns").paginate("list_subscriptions_by_topic", "Subscriptions", **where)
    try:
        return {who["Endpoint"]: who["SubscriptionArn"] != "PendingConfirmation" for who in subscriptions}
    except AwsError as error:
        if error.code in ("NotFound", "NotFoundException"):
            return None
        raise


def nobody(experiment: Experiment) -> str:
    """Return the end of a sentence about an experiment without subscribers, with what to do."""
    return f"receives alarms; write alarm_email into deployment.yaml, then {deploy_command(experiment)}"
