"""Where checkpoints, compiled artifacts and results are kept."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_s3 as s3
from constructs import Construct

from experiment import Experiment
from experiment.naming import STALE_TAG, bucket
from infra import settings
from infra.constructs.conventions import encryption_key
from infra.stacks.experiment_stack import ExperimentStack

_KEPT = cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE
"""A first deployment that fails removes its empty buckets again, so that a second one can use their names
(https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-attribute-deletionpolicy.html)."""


class ModelStore(Construct):
    """One key, one bucket a purpose, one bucket for their access logs. All outlive the stack.

    Names are those that the manifests mount, made by the same function. They stay in use after `cdk destroy`, and so does
    the key; `./trnspec teardown` leaves this stack alone, so that the next deployment goes on with both.
    """

    def __init__(self, scope: Construct, construct_id: str, *, experiment: Experiment) -> None:
        super().__init__(scope, construct_id)
        self.key = encryption_key(
            self,
            "Key",
            description=f"weights, artifacts and results of {experiment.name}",
            removal_policy=_KEPT,
        )
        uploads = s3.LifecycleRule(
            abort_incomplete_multipart_upload_after=cdk.Duration.days(settings.INCOMPLETE_UPLOAD_DAYS)
        )
        # S3 writes access logs with its own key only when the bucket uses S3's encryption:
        # https://docs.aws.amazon.com/AmazonS3/latest/userguide/enable-server-access-logging.html
        self._access_logs = self._bucket(
            "AccessLogs",
            encryption=s3.BucketEncryption.S3_MANAGED,
            lifecycle_rules=[
                uploads,
                s3.LifecycleRule(expiration=cdk.Duration.days(settings.ACCESS_LOG_DAYS)),
            ],
        )
        kept = [
            uploads,
            s3.LifecycleRule(
                noncurrent_version_expiration=cdk.Duration.days(settings.NONCURRENT_VERSION_DAYS),
                expired_object_delete_marker=True,
            ),
        ]
        cooling = s3.LifecycleRule(
            transitions=[
                s3.Transition(
                    storage_class=s3.StorageClass.INTELLIGENT_TIERING,
                    transition_after=cdk.Duration.days(settings.COOL_AFTER_DAYS),
                )
            ]
        )
        # Age says nothing: a serving arm reads the same artifact for a year. So only what was marked goes, which every
        # run does (operations/cloud/markers.py).
        stale = s3.LifecycleRule(
            tag_filters=dict([STALE_TAG]), expiration=cdk.Duration.days(settings.STALE_ARTIFACT_DAYS)
        )
        self.checkpoints = self._store(experiment, "checkpoints", [*kept, cooling])
        """Model weights as downloaded."""
        self.artifacts = self._store(experiment, "artifacts", [*kept, cooling, stale])
        """Compiled graphs and sharded weights, a folder an artifact key."""
        self.results = self._store(experiment, "results", kept)
        """What the benchmark measured."""

    def _store(self, experiment: Experiment, purpose: str, rules: list[s3.LifecycleRule]) -> s3.Bucket:
        return self._bucket(
            purpose.capitalize(),
            bucket_name=bucket(experiment, purpose, cdk.Aws.ACCOUNT_ID),
            encryption=s3.BucketEncryption.KMS,
            encryption_key=self.key,
            bucket_key_enabled=True,
            versioned=True,
            server_access_logs_bucket=self._access_logs,
            server_access_logs_prefix=f"{purpose}/",
            lifecycle_rules=rules,
        )

    def _bucket(self, construct_id: str, **properties: Any) -> s3.Bucket:
        return s3.Bucket(
            self,
            construct_id,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            removal_policy=_KEPT,
            **properties,
        )


class StorageStack(ExperimentStack):
    """Buckets for checkpoints, artifacts and results, and the key that they share."""

    def __init__(self, scope: Construct, *, experiment: Experiment) -> None:
        super().__init__(
            scope, "storage", experiment=experiment, description="checkpoints, artifacts and results"
        )
        self.store = ModelStore(self, "Store", experiment=experiment)
        for name, made in (
            ("CheckpointsBucket", self.store.checkpoints),
            ("ArtifactsBucket", self.store.artifacts),
            ("ResultsBucket", self.store.results),
        ):
            cdk.CfnOutput(self, name, value=made.bucket_name)
