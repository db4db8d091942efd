"""What Container Insights with enhanced observability reports, as far as the dashboard and the alarms name it.

Names and dimensions of the Neuron metrics as the agent's own translator writes them:
https://github.com/aws/amazon-cloudwatch-agent/blob/main/translator/translate/otel/exporter/awsemf/kubernetes.go
The others: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Container-Insights-metrics-enhanced-EKS.html
That they arrive is not run on AWS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NAMESPACE = "ContainerInsights"


@dataclass(frozen=True, kw_only=True)
class InsightsMetric:
    """One metric of the agent."""

    name: str
    title: str
    statistic: str
    dimensions: tuple[str, ...] = ("ClusterName",)


NODE_COUNT = InsightsMetric(name="cluster_node_count", title="nodes", statistic="Maximum")
FAILED_NODE_COUNT = InsightsMetric(
    name="cluster_failed_node_count", title="nodes that failed", statistic="Maximum"
)
NODE_METRICS = (
    NODE_COUNT,
    FAILED_NODE_COUNT,
    InsightsMetric(name="node_cpu_utilization", title="node CPU, %", statistic="Average"),
    InsightsMetric(name="node_memory_utilization", title="node memory, %", statistic="Average"),
    InsightsMetric(name="node_filesystem_utilization", title="node disk, %", statistic="Maximum"),
)
NEURON_NODE_METRICS = (
    InsightsMetric(name="node_neuroncore_utilization", title="NeuronCores, %", statistic="Average"),
    InsightsMetric(
        name="node_neurondevice_runtime_memory_used_bytes", title="runtime memory, bytes", statistic="Maximum"
    ),
    InsightsMetric(name="node_neuron_execution_latency", title="execution latency, s", statistic="Average"),
    InsightsMetric(name="node_neuron_execution_errors_total", title="execution errors", statistic="Sum"),
    InsightsMetric(name="node_neurondevice_hw_ecc_events_total", title="ECC events", statistic="Sum"),
)
NEURON_POD_METRICS = (
    InsightsMetric(
        name="pod_neuroncore_utilization",
        title="NeuronCores of an arm, %",
        statistic="Average",
        dimensions=("ClusterName", "Namespace", "PodName"),
    ),
)
"""Only where the device plugin hands out the devices: the agent learns from the kubelet which pod holds which extended
resource (`awsdevicepodcorrelation` in the agent's configuration), and a resource claim is none."""
SERVICE_PODS = InsightsMetric(
    name="service_number_of_running_pods",
    title="running replicas",
    statistic="Maximum",
    dimensions=("Service", "Namespace", "ClusterName"),
)
INSIGHTS_METRICS = (*NODE_METRICS, *NEURON_NODE_METRICS, *NEURON_POD_METRICS, SERVICE_PODS)


def insights_line(metric: InsightsMetric, values: dict[str, str], **rendering: Any) -> list[Any]:
    """The metric in full, then how it is drawn; `values` holds at least its dimensions."""
    names = [text for name in metric.dimensions for text in (name, values[name])]
    return [NAMESPACE, metric.name, *names, {"label": metric.title, "stat": metric.statistic, **rendering}]
