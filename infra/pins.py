"""Versions of the managed add-ons, by Kubernetes version.

Each was read in a public record of a cluster that ran it, or of a pipeline that keeps such a list current, between July
and November 2026; `aws eks describe-addon-versions --kubernetes-version 1.35` says what a region offers today. What no
record could be found for is absent: then EKS chooses its default, and the running version is in `describe-addon`. Not
run on AWS.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


_ALIKE = {
    "vpc-cni": "v1.22.4-eksbuild.3",
    "eks-pod-identity-agent": "v1.3.10-eksbuild.3",
    "eks-node-monitoring-agent": "v1.6.6-eksbuild.1",
    "aws-mountpoint-s3-csi-driver": "v2.7.0-eksbuild.1",
    # The last line of 5.x: 6.0.1 switches Container Insights to OpenTelemetry names, which the dashboard does not read
    # (https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/container-insights-otel-metrics.html).
    "amazon-cloudwatch-observability": "v5.4.0-eksbuild.1",
}
ADDON_VERSIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "1.35": {
            **_ALIKE,
            "kube-proxy": "v1.35.3-eksbuild.18",
            "coredns": "v1.14.3-eksbuild.3",
            "metrics-server": "v0.9.0-eksbuild.5",
        },
        "1.36": {
            **_ALIKE,
            "kube-proxy": "v1.36.0-eksbuild.21",
            "coredns": "v1.14.3-eksbuild.16",
            "metrics-server": "v0.9.0-eksbuild.11",
        },
    }
)


def addon_version(kubernetes: str, name: str) -> str | None:
    """The pinned version of an add-on, or nothing where none could be verified."""
    return ADDON_VERSIONS.get(kubernetes, {}).get(name)
