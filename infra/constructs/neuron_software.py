"""What AWS Neuron runs on the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

if TYPE_CHECKING:
    from infra.settings import Settings

CHART_VALUES = {
    "dra": {
        "devicePlugin": {"enabled": False},
        "scheduler": {"enabled": False},
        "npd": {"enabled": False},
        "draDriver": {"enabled": True},
    },
    "device-plugin": {
        "devicePlugin": {"enabled": True},
        "scheduler": {"enabled": True},
        "npd": {"enabled": False},
        "draDriver": {"enabled": False},
    },
}
"""One way of handing out devices at a time: both on one node would give the same device away twice, and the chart
refuses the DRA driver beside the device plugin, which is on by default, or beside the scheduler extension (README of
aws-neuron/neuron-helm-charts). The extension places pods that take fewer than 16 devices on connected ones; it runs as
a second scheduler, which those pods name (https://awsdocs-neuron.readthedocs-hosted.com/en/latest/deploy/infrastructure/scheduler.html).
The node problem detector would need a role of its own, and replaces nodes by itself: off."""


class NeuronSoftware(Construct):
    """The Neuron Helm chart: with the DRA driver, which brings the device class that the claims name, or with the
    device plugin and the scheduler extension.

    The chart's templates could not be read offline: that version and values install is not run on AWS.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: eks.ICluster,
        settings: Settings,
        allocation: str,
    ) -> None:
        super().__init__(scope, construct_id)
        chart = settings.neuron_chart
        eks.HelmChart(
            self,
            "Chart",
            cluster=cluster,
            release=chart.release,
            # The provider pulls an OCI chart by its repository alone, yet wants a name beside it.
            chart=chart.repository.rpartition("/")[2],
            repository=chart.repository,
            version=chart.version,
            namespace="kube-system",
            values=CHART_VALUES[allocation],
        )
