"""What AWS Neuron runs on the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

if TYPE_CHECKING:
    from infra.settings import Settings

DRA_VALUES = {
    "devicePlugin": {"enabled": False},
    "scheduler": {"enabled": False},
    "npd": {"enabled": False},
    "draDriver": {"enabled": True},
}
"""Devices by resource claims. The chart refuses the DRA driver beside the device plugin, which is on by default, or
beside the scheduler extension, and with the driver its README leaves the node problem detector out."""


class NeuronSoftware(Construct):
    """The Neuron Helm chart with the DRA driver, which brings the device class that the claims name.

    The chart's templates could not be read offline: that version and values install is not run on AWS.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, cluster: eks.ICluster, settings: Settings
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
            values=DRA_VALUES,
        )
