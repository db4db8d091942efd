"""What is installed in the cluster as a Helm chart: AWS Neuron's software, and KEDA, which adds replicas of the promoted arm
while requests wait."""

from __future__ import annotations

import copy
from typing import Any

from aws_cdk import Duration
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from experiment import Experiment
from experiment.naming import (
    AUTOSCALER_NAMESPACE,
    AUTOSCALER_OPERATOR,
    NODE_ROLE_LABEL,
    driver_label,
    namespace,
    neuron_release,
    role_label,
)
from infra.pins import AUTOSCALER_CHART, NEURON_CHART, SCHEDULER_TAGS

_NEURON_VALUES: dict[str, dict[str, Any]] = {
    "dra": {
        "devicePlugin": {"enabled": False},
        "scheduler": {"enabled": False},
        "npd": {"enabled": False},
        "draDriver": {"enabled": True, "nodeSelector": driver_label("dra")},
    },
    "device-plugin": {
        "devicePlugin": {"enabled": True, "nodeSelector": driver_label("device-plugin")},
        "scheduler": {"enabled": True},
        "npd": {"enabled": False},
        "draDriver": {"enabled": False},
    },
}
"""One way of handing out devices at a time: both on one node would give the same device away twice, and the chart
refuses the DRA driver beside the device plugin, which is on by default, or beside the scheduler extension (README of
aws-neuron/neuron-helm-charts). The extension places pods that take fewer devices than their node has on connected ones; it runs as
a second scheduler, which those pods alone name (https://awsdocs-neuron.readthedocs-hosted.com/en/latest/deploy/infrastructure/scheduler.html).
The node problem detector would need a role of its own, and replaces nodes by itself: off; so is the chart's operator of UltraServers,
by its default. The affinity that the chart gives to driver and plugin admits all nodes with Neuron devices, those of other teams
too: the selectors leave them out. The names of all switches were compared with the values of chart 1.10.0 (`tests/data/neuron-chart/`)."""


def neuron_values(allocation: str, *, kubernetes: str, system: str = "system") -> dict[str, Any]:
    """Of the chart, for a cluster of this version. Its second scheduler would be kube-scheduler 1.31 by the chart's default, which
    speaks older APIs than such a cluster may still have; it has the cluster's version instead, and runs on system nodes, whose
    role is `system`."""
    values = copy.deepcopy(_NEURON_VALUES[allocation])
    if values["scheduler"]["enabled"]:
        place = {"nodeSelector": {NODE_ROLE_LABEL: system}}
        image = {"image": {"tag": SCHEDULER_TAGS[kubernetes]}}
        values["scheduler"] |= {**place, "customScheduler": {**place, **image}}
    return values


def install_neuron_software(scope: Construct, *, experiment: Experiment, cluster: eks.ICluster) -> Construct:
    """The Neuron Helm chart: with the DRA driver, which brings the device class that the claims name, or with the
    device plugin and the scheduler extension.

    The templates of this version could not be read: that they install with these values is not run on AWS.
    """
    software = Construct(scope, "Neuron")
    eks.HelmChart(
        software,
        "Chart",
        cluster=cluster,
        # The provider pulls an OCI chart by its repository alone, but requires a name as well.
        **NEURON_CHART._asdict() | {"release": neuron_release(experiment)},
        namespace="kube-system",
        values=neuron_values(
            experiment.baseline.serving.allocation,
            kubernetes=experiment.cluster.kubernetes,
            system=role_label(experiment, "system"),
        ),
    )
    return software


def install_autoscaling(scope: Construct, *, experiment: Experiment, cluster: eks.ICluster) -> Construct:
    """KEDA, from its own chart: it reads vLLM's metrics from the pods and keeps a HorizontalPodAutoscaler.

    That the chart installs, and scales, is not run on AWS.
    """
    scaling = Construct(scope, "Autoscaling")
    eks.HelmChart(
        scaling,
        "Chart",
        cluster=cluster,
        **AUTOSCALER_CHART._asdict(),
        namespace=AUTOSCALER_NAMESPACE,
        values=autoscaler_values(experiment),
        # The manifests that follow hold an object of a kind that this chart defines.
        wait=True,
        timeout=Duration.minutes(10),
    )
    return scaling


def autoscaler_values(experiment: Experiment) -> dict[str, Any]:
    """One namespace to watch, no Secret to read, and nothing on Trn2 nodes.

    Keys: https://github.com/kedacore/charts/blob/main/keda/values.yaml
    """
    on_system_nodes = {"nodeSelector": {NODE_ROLE_LABEL: role_label(experiment, "system")}}
    return {
        "watchNamespace": namespace(experiment),
        "operator": {"name": AUTOSCALER_OPERATOR, **on_system_nodes},
        "metricsServer": on_system_nodes,
        "webhooks": on_system_nodes,
        # vLLM's metrics, which it reads, need no key.
        "permissions": {"operator": {"restrict": {"secret": True}}},
    }
