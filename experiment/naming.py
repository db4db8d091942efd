"""Names that stacks, manifests and scripts must agree on, made in one place from the experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiment.arms import Experiment

ACCOUNT_PLACEHOLDER = "${AWS_ACCOUNT}"
"""Stands for the account id in rendered manifests; filled at deploy time."""
SERVING_ACCOUNT = "serving"
BENCHMARK_ACCOUNT = "benchmark"
BENCHMARK_NAME = "qwen-llmperf"
SERVICE_PORT = 8000
RESULTS_PREFIX = "runs/"
"""Under which the benchmark stores its runs in the bucket of results."""
NEURON_TAINT_KEY = "aws.amazon.com/neuron"
NODE_ROLE_LABEL = "speculation.trn2/role"
"""On every node: `neuron` or `system`."""


def namespace(experiment: Experiment) -> str:
    """Kubernetes namespace of everything that serves or measures."""
    return experiment.name


def cluster_name(experiment: Experiment) -> str:
    """EKS cluster."""
    return experiment.name


def bucket(experiment: Experiment, purpose: str, account: str) -> str:
    """S3 bucket for `checkpoints`, `artifacts` or `results`; `account` is an id, a token or the placeholder."""
    return f"{experiment.name}-{purpose}-{account}-{experiment.cluster.region}"


def metrics_namespace(experiment: Experiment) -> str:
    """CloudWatch namespace that the benchmark publishes to."""
    return f"SpeculativeDecoding/{experiment.name}"
