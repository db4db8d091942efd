"""What Container Insights with enhanced observability reports, as far as the dashboard and the alarms name it.

Names and dimensions of the Neuron metrics as the agent's own translator writes them:
https://github.com/aws/amazon-cloudwatch-agent/blob/main/translator/translate/otel/exporter/awsemf/kubernetes.go
The others: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Container-Insights-metrics-enhanced-EKS.html
That they arrive is not run on AWS.
"""

from __future__ import annotations

from typing import NamedTuple

from benchmark.metrics import PERIOD_S

NAMESPACE = "ContainerInsights"


IN_PROMETHEUS = {
    "cluster_node_count": "count(kube_node_info)",
    "cluster_failed_node_count": 'sum(kube_node_status_condition{condition="Ready",status="true"} == bool 0)',
    "node_cpu_utilization": f'100 * (1 - avg(rate(node_cpu_seconds_total{{mode="idle"}}[{PERIOD_S}s])))',
    "node_memory_utilization": "100 * avg(1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes)",
    "node_filesystem_utilization": (
        '100 * max((1 - node_filesystem_avail_bytes{fstype=~"xfs|ext4"} / node_filesystem_size_bytes) '
        "and node_filesystem_readonly == 0)"
    ),
    "node_neuroncore_utilization": "100 * avg(neuroncore_utilization_ratio)",
    "node_neurondevice_runtime_memory_used_bytes": 'max(neuron_runtime_memory_used_bytes{memory_location="neuron_device"})',
    "node_neuron_execution_latency": 'avg(execution_latency_seconds{percentile="p50"})',
    "node_neuron_execution_errors_total": f"sum(increase(execution_errors_total[{PERIOD_S}s]))",
    "node_neurondevice_hw_ecc_events_total": f"sum(increase(hardware_ecc_events_total[{PERIOD_S}s]))",
}
"""The same numbers where Prometheus reads kube-state-metrics, the node exporter and `neuron-monitor-prometheus.py`. Names of the
last as in the agent's receiver of it (amazon-cloudwatch-agent, `awsneuron`) and its tests: unproven, no device was read."""


class InsightsMetric(NamedTuple):
    """One metric of the agent."""

    name: str
    title: str
    statistic: str
    dimensions: tuple[str, ...] = ("ClusterName",)
    grafana_unit: str = "percent"

    @property
    def promql(self) -> str:
        """Raises KeyError for a metric that no exporter has."""
        return IN_PROMETHEUS[self.name]


NODE_COUNT = InsightsMetric("cluster_node_count", "nodes", "Maximum", grafana_unit="suffix: nodes")
NODE_METRICS = (
    NODE_COUNT,
    InsightsMetric("cluster_failed_node_count", "nodes that failed", "Maximum", grafana_unit="suffix: nodes"),
    InsightsMetric("node_cpu_utilization", "node CPU, %", "Average"),
    InsightsMetric("node_memory_utilization", "node memory, %", "Average"),
    InsightsMetric("node_filesystem_utilization", "node disk, %", "Maximum"),
)
NEURON_NODE_METRICS = (
    InsightsMetric("node_neuroncore_utilization", "NeuronCores, %", "Average"),
    InsightsMetric(
        "node_neurondevice_runtime_memory_used_bytes",
        "runtime memory, bytes",
        "Maximum",
        grafana_unit="bytes",
    ),
    InsightsMetric("node_neuron_execution_latency", "execution latency, s", "Average", grafana_unit="s"),
    InsightsMetric(
        "node_neuron_execution_errors_total", "execution errors", "Sum", grafana_unit="suffix: errors"
    ),
    InsightsMetric(
        "node_neurondevice_hw_ecc_events_total", "ECC events", "Sum", grafana_unit="suffix: events"
    ),
)
NEURON_POD = InsightsMetric(
    "pod_neuroncore_utilization",
    "NeuronCores of an arm, %",
    "Average",
    ("ClusterName", "Namespace", "PodName"),
)
"""Only where the device plugin hands out the devices: the agent learns from the kubelet which pod holds which extended
resource (`awsdevicepodcorrelation` in the agent's configuration), and a resource claim is not one."""
SERVICE_PODS = InsightsMetric(
    "service_number_of_running_pods", "running replicas", "Maximum", ("Service", "Namespace", "ClusterName")
)
INSIGHTS_METRICS = (*NODE_METRICS, *NEURON_NODE_METRICS, NEURON_POD, SERVICE_PODS)
