"""Where checkpoints, compiled artifacts and results are kept."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.deployment_file import DeployedExperiment
from infra.stacks.experiment_stack import ExperimentStack, encryption_key
from trnspec.experiment.naming import STALE_TAG, bucket

ACCESS_LOG_DAYS = 90
_INCOMPLETE_UPLOAD_DAYS = 7
_NONCURRENT_VERSION_DAYS = 30
"""Days in which overwritten weights and artifacts can be restored; one set of the reference weights is 66 GB."""
_STALE_ARTIFACT_DAYS = 30
"""How old an artifact must be to go once it is marked stale: S3 counts from the upload, not from the mark. For
`_NONCURRENT_VERSION_DAYS` after that it can be restored by removing the delete markers."""
_COOL_AFTER_DAYS = 30
"""Days after which unread weights and artifacts move to cheaper storage; reading stays as fast."""
_KEPT = cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE
"""A first deployment that fails removes its empty buckets again, so that a second one can use their names
(https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-attribute-deletionpolicy.html)."""


def closed_bucket(scope: Construct, construct_id: str, **properties: Any) -> s3.Bucket:
    """Return a bucket of this account alone, reached over TLS."""
    return s3.Bucket(
        scope,
        construct_id,
        block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
        object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
        enforce_ssl=True,
        minimum_tls_version=1.2,
        **properties,
    )


class ModelStore(Construct):
    """One key, one bucket a purpose, one bucket for their access logs. All outlive the stack.

    Names are those that the manifests mount, made by the same function. They stay in use after `cdk destroy`, and so does
    the key; `./trnspec teardown` leaves this stack alone, so that the next deployment goes on with both.
    """

    def __init__(self, stack: ExperimentStack, construct_id: str) -> None:
        super().__init__(stack, construct_id)
        self._experiment = stack.experiment
        described = f"weights, artifacts and results of {stack.experiment.name}"
        self.key = encryption_key(self, "Key", stack.settings, description=described, removal_policy=_KEPT)
        days = cdk.Duration.days
        uploads = s3.LifecycleRule(abort_incomplete_multipart_upload_after=days(_INCOMPLETE_UPLOAD_DAYS))
        # S3 writes access logs with its own key only when the bucket uses S3's encryption:
        # https://docs.aws.amazon.com/AmazonS3/latest/userguide/enable-server-access-logging.html
        self._access_logs = closed_bucket(
            self,
            "AccessLogs",
            encryption=s3.BucketEncryption.S3_MANAGED,
            lifecycle_rules=[uploads, s3.LifecycleRule(expiration=days(ACCESS_LOG_DAYS))],
            removal_policy=_KEPT,
        )
        versions = s3.LifecycleRule(
            noncurrent_version_expiration=days(_NONCURRENT_VERSION_DAYS), expired_object_delete_marker=True
        )
        cooler = s3.Transition(
            storage_class=s3.StorageClass.INTELLIGENT_TIERING, transition_after=days(_COOL_AFTER_DAYS)
        )
        cooling = s3.LifecycleRule(transitions=[cooler])
        # Age says nothing: a serving arm reads the same artifact for a year. So only what was marked goes, which every
        # run does (src/trnspec/operations/cloud/experiment_resources.py).
        stale = s3.LifecycleRule(tag_filters=dict([STALE_TAG]), expiration=days(_STALE_ARTIFACT_DAYS))
        self.checkpoints = self._store("checkpoints", [uploads, versions, cooling])
        """Model weights as downloaded."""
        self.artifacts = self._store("artifacts", [uploads, versions, cooling, stale])
        """Compiled graphs and sharded weights, a folder an artifact key."""
        self.results = self._store("results", [uploads, versions])
        """What the benchmark measured."""

    def _store(self, purpose: str, rules: list[s3.LifecycleRule]) -> s3.Bucket:
        return closed_bucket(
            self,
            purpose.capitalize(),
            bucket_name=bucket(self._experiment, purpose, cdk.Aws.ACCOUNT_ID),
            encryption=s3.BucketEncryption.KMS,
            encryption_key=self.key,
            bucket_key_enabled=True,
            versioned=True,
            server_access_logs_bucket=self._access_logs,
            server_access_logs_prefix=f"{purpose}/",
            lifecycle_rules=rules,
            removal_policy=_KEPT,
        )


class StorageStack(ExperimentStack):
    """Buckets for checkpoints, artifacts and results, and the key that they share."""

    def __init__(self, scope: Construct, deployed: DeployedExperiment) -> None:
        super().__init__(scope, "storage", "checkpoints, artifacts and results", deployed)
        self.store = ModelStore(self, "Store")
        for purpose in ("checkpoints", "artifacts", "results"):
            made = getattr(self.store, purpose).bucket_name
            cdk.CfnOutput(self, f"{purpose.capitalize()}Bucket", value=made)
