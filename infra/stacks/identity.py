"""Permissions of the pods: one role per service account, with its actions listed one by one."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.stacks.experiment_stack import ExperimentStack, StackOfCluster, allow, pod_identity
from infra.stacks.storage import ModelStore
from trnspec.experiment import Experiment, naming

Statements = list[iam.PolicyStatement]


class IdentityStack(ExperimentStack):
    """Pod Identity for the pods that serve, fetch, compile and measure. The grants are here, with their principals, so that
    the buckets do not depend on their readers."""

    def __init__(self, scope: Construct, control: StackOfCluster, store: ModelStore) -> None:
        super().__init__(scope, "identity", "identity of the pods", control.deployed)
        experiment = self.experiment
        weights, artifacts, results = (
            bucket.bucket_arn for bucket in (store.checkpoints, store.artifacts, store.results)
        )
        key, cluster_name, pods = store.key.key_arn, control.cluster.cluster_name, pod_identity()
        upload = _upload_with(key)
        for account, statements in {
            # Mountpoint, or the pod's own copy to local disks, reads weights and artifacts; it can write neither.
            naming.SERVING_ACCOUNT: [
                *_read(weights),
                *_read(artifacts),
                allow("kms:Decrypt", key, sid="UseKey"),
            ],
            # Store weights and list what is there; nothing can be deleted.
            naming.FETCH_ACCOUNT: [*_read(weights), _write(weights), upload, *_read_own(experiment)],
            naming.COMPILE_ACCOUNT: [*_read(weights), *_read(artifacts), _write(artifacts), upload],
            naming.BENCHMARK_ACCOUNT: [*_measure(results, experiment), upload],
        }.items():
            inner = Construct(self, account.capitalize())
            role = iam.Role(inner, "Role", assumed_by=pods)
            iam.Policy(role, "DefaultPolicy", roles=[role], statements=statements)  # pyrefly: ignore[bad-argument-type]  # jsii names parameters of interfaces otherwise
            eks.CfnPodIdentityAssociation(
                inner,
                "Association",
                cluster_name=cluster_name,
                namespace=naming.namespace(experiment),
                service_account=account,
                role_arn=role.role_arn,
            )


def admit_builds(stack: ExperimentStack, role: iam.Role, cluster: eks.ICluster) -> None:
    """Admit the role of builds to the cluster. They create Jobs and scale Deployments in the experiment's namespace, by the rendered roles
    of their group alone."""
    eks.CfnAccessEntry(
        stack,
        "Access",
        cluster_name=cluster.cluster_name,
        principal_arn=role.role_arn,
        kubernetes_groups=[naming.runners_group(stack.experiment)],
    )


def _measure(results: str, experiment: Experiment) -> Statements:
    """Allow to publish metrics in one namespace, to read large plans, to store runs under one prefix, and to read them to resume."""
    prefixes = (naming.PLANS_PREFIX, naming.RESULTS_PREFIX)
    # The action has no resource type; the condition limits it:
    # https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/iam-cw-condition-keys-namespace.html
    own = {"StringEquals": {"cloudwatch:namespace": naming.metrics_namespace(experiment)}}
    listed = {"StringLike": {"s3:prefix": [f"{prefix}*" for prefix in prefixes]}}
    return [
        allow("cloudwatch:PutMetricData", "*", sid="PublishMetrics", where=own),
        allow("s3:ListBucket", results, where=listed),
        allow("s3:GetObject", *(f"{results}/{prefix}*" for prefix in prefixes)),
        _write(results, naming.RESULTS_PREFIX),
    ]


def _read_own(experiment: Experiment) -> Statements:
    """Allow to read the folders of other buckets from which the experiment takes weights."""
    statements = []
    for address in sorted({weights.address for weights in experiment.weights if weights.address}):
        bucket, _, folder = address.removeprefix("s3://").partition("/")
        arn = f"arn:{cdk.Aws.PARTITION}:s3:::{bucket}"
        statements += [
            allow("s3:ListBucket", arn, where={"StringLike": {"s3:prefix": [f"{folder}/*"]}}),
            allow("s3:GetObject", f"{arn}/{folder}/*"),
        ]
    return statements


def _read(bucket: str) -> Statements:
    return [allow("s3:ListBucket", bucket), allow("s3:GetObject", f"{bucket}/*")]


def _write(bucket: str, prefix: str = "") -> iam.PolicyStatement:
    return allow("s3:PutObject AbortMultipartUpload", f"{bucket}/{prefix}*")


def _upload_with(key: str) -> iam.PolicyStatement:
    """Allow to encrypt uploads. An upload in parts, which boto3 makes of anything above 8 MB, needs Decrypt as well
    (https://docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html)."""
    return allow("kms:GenerateDataKey Decrypt", key, sid="UseKey")
