"""Who may do what: one role a service account, its rights action by action."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from experiment.naming import (
    BENCHMARK_ACCOUNT,
    COMPILE_ACCOUNT,
    FETCH_ACCOUNT,
    PLANS_PREFIX,
    RESULTS_PREFIX,
    SERVING_ACCOUNT,
    metrics_namespace,
    namespace,
)
from infra.stacks.experiment_stack import ExperimentStack

if TYPE_CHECKING:
    from collections.abc import Sequence

if TYPE_CHECKING:
    from aws_cdk import aws_s3 as s3

    from infra.stacks.storage import ModelStore

if TYPE_CHECKING:
    from aws_cdk import aws_eks_v2 as eks
    from constructs import Construct

    from experiment import Experiment
    from infra.stacks.storage import ModelStore


POD_IDENTITY = "pods.eks.amazonaws.com"
"""Who assumes the roles of pods; it tags its sessions (https://docs.aws.amazon.com/eks/latest/userguide/pod-id-role.html)."""


class PodRole(Construct):
    """A role, and the Pod Identity association that hands it to the pods of a service account."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: eks.ICluster,
        namespace: str,
        service_account: str,
        statements: Sequence[iam.PolicyStatement],
    ) -> None:
        super().__init__(scope, construct_id)
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal(POD_IDENTITY).with_session_tags(),
        )
        for statement in statements:
            self.role.add_to_policy(statement)
        eks.CfnPodIdentityAssociation(
            self,
            "Association",
            cluster_name=cluster.cluster_name,
            namespace=namespace,
            service_account=service_account,
            role_arn=self.role.role_arn,
        )


def serving(store: ModelStore) -> list[iam.PolicyStatement]:
    """Mountpoint, or the pod's own copy to local disks, reads weights and artifacts; it can write neither."""
    return [*_read(store.checkpoints), *_read(store.artifacts), _use_key(store, "kms:Decrypt")]


def fetch(store: ModelStore) -> list[iam.PolicyStatement]:
    """Put weights where they belong, see what is there already; nothing can be deleted."""
    return [*_read(store.checkpoints), _write(store.checkpoints), _upload_with_key(store)]


def compile_(store: ModelStore) -> list[iam.PolicyStatement]:
    """Read weights, put artifacts."""
    return [
        *_read(store.checkpoints),
        *_read(store.artifacts),
        _write(store.artifacts),
        _upload_with_key(store),
    ]


def benchmark(store: ModelStore, *, metrics_namespace: str) -> list[iam.PolicyStatement]:
    """Publish metrics in one namespace; read large plans; store runs under one prefix, and read them to resume."""
    prefixes = (PLANS_PREFIX, RESULTS_PREFIX)
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
            actions=["s3:ListBucket"],
            resources=[store.results.bucket_arn],
            conditions={"StringLike": {"s3:prefix": [f"{prefix}*" for prefix in prefixes]}},
        ),
        iam.PolicyStatement(
            actions=["s3:GetObject"],
            resources=[store.results.arn_for_objects(f"{prefix}*") for prefix in prefixes],
        ),
        _write(store.results, RESULTS_PREFIX),
        _upload_with_key(store),
    ]


def _read(bucket: s3.Bucket) -> list[iam.PolicyStatement]:
    return [
        iam.PolicyStatement(actions=["s3:ListBucket"], resources=[bucket.bucket_arn]),
        iam.PolicyStatement(actions=["s3:GetObject"], resources=[bucket.arn_for_objects("*")]),
    ]


def _write(bucket: s3.Bucket, prefix: str = "") -> iam.PolicyStatement:
    return iam.PolicyStatement(
        actions=["s3:PutObject", "s3:AbortMultipartUpload"],
        resources=[bucket.arn_for_objects(f"{prefix}*")],
    )


def _upload_with_key(store: ModelStore) -> iam.PolicyStatement:
    """An upload in parts, which boto3 makes of anything above 8 MB, needs Decrypt as well
    (https://docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html)."""
    return _use_key(store, "kms:GenerateDataKey", "kms:Decrypt")


def _use_key(store: ModelStore, *actions: str) -> iam.PolicyStatement:
    return iam.PolicyStatement(sid="UseKey", actions=list(actions), resources=[store.key.key_arn])


class IdentityStack(ExperimentStack):
    """Pod Identity for the pods that serve, fetch, compile and measure. The grants stand here, with who gets them, so that the
    buckets know nothing of their readers."""

    def __init__(
        self,
        scope: Construct,
        part: str,
        *,
        experiment: Experiment,
        cluster: eks.ICluster,
        store: ModelStore,
    ) -> None:
        super().__init__(scope, part, experiment=experiment, description="identity of the pods")
        rights = {
            SERVING_ACCOUNT: serving(store),
            FETCH_ACCOUNT: fetch(store),
            COMPILE_ACCOUNT: compile_(store),
            BENCHMARK_ACCOUNT: benchmark(store, metrics_namespace=metrics_namespace(experiment)),
        }
        for account, statements in rights.items():
            PodRole(
                self,
                account.capitalize(),
                cluster=cluster,
                namespace=namespace(experiment),
                service_account=account,
                statements=statements,
            )
