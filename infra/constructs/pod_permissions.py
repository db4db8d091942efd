"""The rights that pods get, action by action."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_iam as iam

from experiment.naming import RESULTS_PREFIX

if TYPE_CHECKING:
    from aws_cdk import aws_s3 as s3

    from infra.constructs.model_store import ModelStore


def serving(store: ModelStore) -> list[iam.PolicyStatement]:
    """Mountpoint reads weights and artifacts with the identity of the serving pod; it can write neither."""
    return [*_read(store.checkpoints), *_read(store.artifacts), _use_key(store, "kms:Decrypt")]


def benchmark(store: ModelStore, *, metrics_namespace: str) -> list[iam.PolicyStatement]:
    """Publish metrics in one namespace, store runs under one prefix."""
    return [
        iam.PolicyStatement(
            sid="PublishMetrics",
            actions=["cloudwatch:PutMetricData"],
            # The action knows no resource; the condition is how it is confined:
            # https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/iam-cw-condition-keys-namespace.html
            resources=["*"],
            conditions={"StringEquals": {"cloudwatch:namespace": metrics_namespace}},
        ),
        iam.PolicyStatement(
            sid="StoreRuns",
            actions=["s3:PutObject"],
            resources=[store.results.arn_for_objects(f"{RESULTS_PREFIX}*")],
        ),
        # An upload in parts, which boto3 makes of anything above 8 MB, needs Decrypt as well:
        # https://docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html
        _use_key(store, "kms:GenerateDataKey", "kms:Decrypt"),
    ]


def _read(bucket: s3.Bucket) -> list[iam.PolicyStatement]:
    return [
        iam.PolicyStatement(actions=["s3:ListBucket"], resources=[bucket.bucket_arn]),
        iam.PolicyStatement(actions=["s3:GetObject"], resources=[bucket.arn_for_objects("*")]),
    ]


def _use_key(store: ModelStore, *actions: str) -> iam.PolicyStatement:
    return iam.PolicyStatement(sid="UseKey", actions=list(actions), resources=[store.key.key_arn])
