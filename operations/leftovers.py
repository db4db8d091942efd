"""What outlives an experiment's stacks under a name that its next deployment gives again, and so would fail on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.naming import bucket
from infra.naming import container_insights_log_groups, control_plane_log_group

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.aws import Aws

_NOT_THERE = ("404", "NoSuchBucket", "NotFound")


def log_groups(experiment: Experiment, aws: Aws) -> list[str]:
    """Groups that EKS and the agents write to. Both may make one again while the cluster goes, after its stack has deleted
    it (https://github.com/terraform-aws-modules/terraform-aws-eks/issues/2763)."""
    names = (control_plane_log_group(experiment), *container_insights_log_groups(experiment))
    return [
        group["logGroupName"]
        for prefix in dict.fromkeys(name.rpartition("/")[0] for name in names)
        for group in aws.client("logs").every("describe_log_groups", "logGroups", logGroupNamePrefix=prefix)
        if group["logGroupName"] in names
    ]


def delete_log_groups(experiment: Experiment, aws: Aws) -> list[str]:
    """Remove those groups, whose cluster is gone; returns their names."""
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
