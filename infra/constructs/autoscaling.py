"""What adds replicas of the promoted arm while requests wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aws_cdk import Duration
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from experiment.naming import AUTOSCALER_NAMESPACE, AUTOSCALER_OPERATOR, NODE_ROLE_LABEL, namespace

if TYPE_CHECKING:
    from experiment import Experiment
    from infra.settings import Settings

_SYSTEM_NODES = {"nodeSelector": {NODE_ROLE_LABEL: "system"}}


def chart_values(experiment: Experiment) -> dict[str, Any]:
    """One namespace to watch, no Secret to read, and nothing on Trn2 nodes.

    Keys: https://github.com/kedacore/charts/blob/main/keda/values.yaml
    """
    return {
        "watchNamespace": namespace(experiment),
        "operator": {"name": AUTOSCALER_OPERATOR, **_SYSTEM_NODES},
        "metricsServer": _SYSTEM_NODES,
        "webhooks": _SYSTEM_NODES,
        # What it asks, vLLM's own metrics, wants no key.
        "permissions": {"operator": {"restrict": {"secret": True}}},
    }


class Autoscaling(Construct):
    """KEDA, by its makers' chart: it reads vLLM's metrics from the pods and keeps a HorizontalPodAutoscaler.

    That the chart installs, and scales, is not run on AWS.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        experiment: Experiment,
        cluster: eks.ICluster,
        settings: Settings,
    ) -> None:
        super().__init__(scope, construct_id)
        chart = settings.autoscaler_chart
        eks.HelmChart(
            self,
            "Chart",
            cluster=cluster,
            release=chart.release,
            chart=chart.name,
            repository=chart.repository,
            version=chart.version,
            namespace=AUTOSCALER_NAMESPACE,
            values=chart_values(experiment),
            # The manifests that follow hold an object of a kind that this brings.
            wait=True,
            timeout=Duration.minutes(10),
        )
