"""Versions of what is installed in a cluster: the managed add-ons, by Kubernetes version, and the Helm chart.

Each add-on's was read in a public record of a cluster that ran it, or of a pipeline that keeps such a list current, between
July and November 2026; `aws eks describe-addon-versions --kubernetes-version 1.35` says what a region offers today. Not run
on AWS.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

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


class HelmChart(NamedTuple):
    release: str
    chart: str
    """The last part of its repository."""
    repository: str
    """The chart itself in an OCI registry (`oci://...`)."""
    version: str


NEURON_CHART = HelmChart(
    "neuron", "neuron-helm-chart", "oci://public.ecr.aws/neuron/neuron-helm-chart", "1.10.0"
)
"""It installs the DRA driver 1.2.0, the device plugin and the scheduler extension 2.32.0.0, and no Neuron Observer: its values have
six top-level keys, of which `tests/data/neuron-chart/` has what decides. A workshop's participant installed the device plugin and
the extension from it on Kubernetes 1.33 (2026-09-11). Not verified on AWS."""
SCHEDULER_TAGS: Mapping[str, str] = MappingProxyType(
    {"1.35": "v1.35.8-eks-1-35-15", "1.36": "v1.36.4-eks-1-36-9"}
)
"""The tags of `public.ecr.aws/eks-distro/kubernetes/kube-scheduler`, the chart's second scheduler, by Kubernetes version: EKS
Distro's releases v1-35-eks-15 (https://newreleases.io/project/github/aws/eks-distro/release/v1-35-eks-15) and v1-36-eks-9. Not verified
on AWS."""
