"""Artifacts that no arm has any more: tagged, because the bucket's lifecycle rule lets only tagged objects go.

The rule counts days from the upload (https://docs.aws.amazon.com/AmazonS3/latest/userguide/intro-lifecycle-rules.html),
so what is old goes the night after it is tagged; the bucket keeps it as a noncurrent version for a while longer.
The marker is tagged first and freed last: one without the tag says that no file of its folder has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.naming import COMPLETE, STALE_TAG, artifact_path, bucket

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.aws import Aws


def mark(experiment: Experiment, aws: Aws) -> list[str]:
    """Tag every artifact that is no arm's; returns their keys."""
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
        keys = _keys(aws, name, prefix)
        if not keys or _is_free(aws, name, f"{prefix}{COMPLETE}"):
            continue
        for key in sorted(keys, key=lambda key: key == f"{prefix}{COMPLETE}"):
            aws.client("s3").delete_object_tagging(Bucket=name, Key=key)
        freed.append(prefix.rstrip("/"))
    return freed


def _wanted(experiment: Experiment) -> set[str]:
    return {f"{artifact_path(arm)}/" for arm in experiment.arms}


def _keys(aws: Aws, name: str, prefix: str) -> list[str]:
    return [
        entry["Key"]
        for entry in aws.client("s3").every("list_objects_v2", "Contents", Bucket=name, Prefix=prefix)
    ]


def _is_free(aws: Aws, name: str, marker: str) -> bool:
    """Whether there is a marker, and without the tag."""
    found = aws.client("s3").find("get_object_tagging", "NoSuchKey", Bucket=name, Key=marker)
    return found is not None and STALE_TAG not in {(tag["Key"], tag["Value"]) for tag in found["TagSet"]}
