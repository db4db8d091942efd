"""What Container Insights with enhanced observability reports, as far as the dashboard and the alarms name it.

Names and dimensions of the Neuron metrics as the agent's own translator writes them:
https://github.com/aws/amazon-cloudwatch-agent/blob/main/translator/translate/otel/exporter/awsemf/kubernetes.go
The others: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Container-Insights-metrics-enhanced-EKS.html
That they arrive is not run on AWS.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmark.metrics import PERIOD_S

NAMESPACE = "ContainerInsights"


class InsightsMetric(NamedTuple):
    """One metric of the agent."""

    name: str
    title: str
    statistic: str
    promql: str = ""
    """The same to a Prometheus that reads the usual exporters; empty where none has it."""
    dimensions: tuple[str, ...] = ("ClusterName",)


NODE_COUNT = InsightsMetric("cluster_node_count", "nodes", "Maximum", "count(kube_node_info)")
NODE_METRICS = (
    NODE_COUNT,
    InsightsMetric(
        "cluster_failed_node_count",
        "nodes that failed",
        "Maximum",
        'sum(kube_node_status_condition{condition="Ready",status="true"} == bool 0)',
    ),
    InsightsMetric(
        "node_cpu_utilization",
        "node CPU, %",
        "Average",
        f'100 * (1 - avg(rate(node_cpu_seconds_total{{mode="idle"}}[{PERIOD_S}s])))',
    ),
    InsightsMetric(
        "node_memory_utilization",
        "node memory, %",
        "Average",
        "100 * avg(1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes)",
    ),
    InsightsMetric(
        "node_filesystem_utilization",
        "node disk, %",
        "Maximum",
        '100 * max(1 - node_filesystem_avail_bytes{mountpoint="/"} / node_filesystem_size_bytes{mountpoint="/"})',
    ),
)
"""In Prometheus: kube-state-metrics and the node exporter
(https://github.com/kubernetes/kube-state-metrics/tree/main/docs/metrics, https://github.com/prometheus/node_exporter)."""
NEURON_NODE_METRICS = (
    InsightsMetric(
        "node_neuroncore_utilization",
        "NeuronCores, %",
        "Average",
        "100 * avg(neuroncore_utilization_ratio)",
    ),
    InsightsMetric(
        "node_neurondevice_runtime_memory_used_bytes",
        "runtime memory, bytes",
        "Maximum",
        'max(neuron_runtime_memory_used_bytes{memory_location="neuron_device"})',
    ),
    InsightsMetric(
        "node_neuron_execution_latency",
        "execution latency, s",
        "Average",
        'avg(execution_latency_seconds{percentile="p50"})',
    ),
    InsightsMetric(
        "node_neuron_execution_errors_total",
        "execution errors",
        "Sum",
        f"sum(increase(execution_errors_total[{PERIOD_S}s]))",
    ),
    InsightsMetric(
        "node_neurondevice_hw_ecc_events_total",
        "ECC events",
        "Sum",
        f"sum(increase(hardware_ecc_events_total[{PERIOD_S}s]))",
    ),
)
"""In Prometheus: what `neuron-monitor-prometheus.py` exports, by the agent's own receiver of it
(`awsneuron/metric_name.go` and the tests of awscontainerinsightreceiver). Unproven: no device was read."""
NEURON_POD_METRICS = (
    InsightsMetric(
        "pod_neuroncore_utilization",
        "NeuronCores of an arm, %",
        "Average",
        dimensions=("ClusterName", "Namespace", "PodName"),
    ),
)
"""Only where the device plugin hands out the devices: the agent learns from the kubelet which pod holds which extended
resource (`awsdevicepodcorrelation` in the agent's configuration), and a resource claim is not one."""
SERVICE_PODS = InsightsMetric(
    "service_number_of_running_pods",
    "running replicas",
    "Maximum",
    dimensions=("Service", "Namespace", "ClusterName"),
)
INSIGHTS_METRICS = (*NODE_METRICS, *NEURON_NODE_METRICS, *NEURON_POD_METRICS, SERVICE_PODS)


def insights_line(metric: InsightsMetric, values: dict[str, str], **rendering: Any) -> list[Any]:
    """The full metric, then how it is drawn; `values` holds at least its dimensions."""
    names = [text for name in metric.dimensions for text in (name, values[name])]
    return [NAMESPACE, metric.name, *names, {"label": metric.title, "stat": metric.statistic, **rendering}]
