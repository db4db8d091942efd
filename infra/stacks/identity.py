"""Who may do what: one role a service account, its rights action by action."""

from __future__ import annotations

from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from constructs import Construct

from experiment import Experiment
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
from infra.constructs.addons import pod_identity
from infra.stacks.experiment_stack import ExperimentStack
from infra.stacks.storage import ModelStore

Statements = list[iam.PolicyStatement]


class IdentityStack(ExperimentStack):
    """Pod Identity for the pods that serve, fetch, compile and measure. The grants stand here, with who gets them, so that the
    buckets know nothing of their readers."""

    def __init__(
        self, scope: Construct, *, experiment: Experiment, cluster: eks.ICluster, store: ModelStore
    ) -> None:
        super().__init__(scope, "identity", experiment=experiment, description="identity of the pods")
        weights, artifacts = store.checkpoints, store.artifacts
        # Mountpoint, or the pod's own copy to local disks, reads weights and artifacts; it can write neither.
        serving = [*_read(weights), *_read(artifacts), _use_key(store, "kms:Decrypt")]
        # Put weights where they belong, see what is there already; nothing can be deleted.
        fetching = [*_read(weights), _write(weights), _upload_with_key(store)]
        compiling = [*_read(weights), *_read(artifacts), _write(artifacts), _upload_with_key(store)]
        for account, statements in (
            (SERVING_ACCOUNT, serving),
            (FETCH_ACCOUNT, fetching),
            (COMPILE_ACCOUNT, compiling),
            (BENCHMARK_ACCOUNT, _benchmark(store, experiment)),
        ):
            self._hand_out(account, statements, experiment, cluster)

    def _hand_out(
        self, account: str, statements: Statements, experiment: Experiment, cluster: eks.ICluster
    ) -> None:
        """A role, and the Pod Identity association that hands it to the pods of a service account."""
        scope = Construct(self, account.capitalize())
        role = iam.Role(scope, "Role", assumed_by=pod_identity())
        for statement in statements:
            role.add_to_policy(statement)
        eks.CfnPodIdentityAssociation(
            scope,
            "Association",
            cluster_name=cluster.cluster_name,
            namespace=namespace(experiment),
            service_account=account,
            role_arn=role.role_arn,
        )


def _benchmark(store: ModelStore, experiment: Experiment) -> Statements:
    """Publish metrics in one namespace; read large plans; store runs under one prefix, and read them to resume."""
    prefixes = (PLANS_PREFIX, RESULTS_PREFIX)
    return [
        iam.PolicyStatement(
            sid="PublishMetrics",
            actions=["cloudwatch:PutMetricData"],
            # The action knows no resource; the condition is how it is confined:
            # https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/iam-cw-condition-keys-namespace.html
            resources=["*"],
            conditions={"StringEquals": {"cloudwatch:namespace": metrics_namespace(experiment)}},
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


def _read(bucket: s3.Bucket) -> Statements:
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
