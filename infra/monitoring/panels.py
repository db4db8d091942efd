"""What dashboards and alarms show: which metrics, with which statistics, under which names in CloudWatch and in Prometheus. Pure.

https://prometheus.io/docs/prometheus/latest/querying/basics/
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from benchmark.metrics import COMPARED, ERRORS, PERIOD_S, PUBLISHED, TOKENS_PER_STEP, Metric
from core.words import as_ascii
from experiment import Experiment
from experiment.arms import Arm
from experiment.naming import metrics_namespace

HEADLINES: tuple[Metric, ...] = (*COMPARED, TOKENS_PER_STEP)
"""Metrics that have a row of ratios."""
FURTHER: tuple[Metric, ...] = tuple(m for m in PUBLISHED if m not in HEADLINES and m is not ERRORS)
_MOST_NAMES = 8


class Detail(NamedTuple):
    """How much is shown; a large sweep shows less, because a template holds 1 MB."""

    percentiles: tuple[str, ...]
    further: bool
    """Whether metrics that are not compared have rows."""
    left_out: str
    """In words; may be empty."""

    def statistics(self, metric: Metric) -> tuple[str, ...]:
        """The registry's own statistic first where it is not a percentile, then the percentiles."""
        own = () if metric.statistic.startswith("p") else (metric.statistic,)
        return (*own, *self.percentiles)


DETAILS = (
    Detail(("p50", "p90", "p99"), True, ""),
    Detail(("p50", "p90", "p99"), False, "metrics that are not compared"),
    Detail(("p50", "p99"), False, "p90, and metrics that are not compared"),
    Detail(("p50",), False, "p90, p99, and metrics that are not compared"),
)
"""The most first."""


class CloudWatchMetric(NamedTuple):
    """A metric of CloudWatch in full."""

    namespace: str
    name: str
    dimensions: dict[str, str]


def cell(
    experiment: Experiment, metric: Metric, *, arm: Arm, class_name: str, concurrency: int
) -> CloudWatchMetric:
    """One arm on one class at one load, as the benchmark publishes it."""
    values = {
        "Experiment": experiment.name,
        "Arm": arm.name,
        "Class": as_ascii(class_name),
        "Concurrency": str(concurrency),
    }
    dimensions = {name: values[name] for name in metric.dimensions}
    return CloudWatchMetric(metrics_namespace(experiment), metric.cloudwatch_name, dimensions)


def series(
    experiment: Experiment,
    metric: Metric | str,
    suffix: str = "",
    *,
    chosen: Sequence[str] = (),
    **labels: str,
) -> str:
    """In PromQL, the series of one experiment; a metric by its registry's name or as it is exported. `chosen`: labels that a
    variable of the same name limits."""
    name = metric if isinstance(metric, str) else metric.prometheus_name
    matchers = [f'{key}="{value}"' for key, value in {"experiment": experiment.name, **labels}.items()]
    matchers += [f'{key}=~"${key}"' for key in chosen]
    return f"{name}{suffix}{{{','.join(matchers)}}}"


def value(
    experiment: Experiment,
    metric: Metric,
    statistic: str,
    by: str = "",
    *,
    chosen: Sequence[str] = (),
    **labels: str,
) -> str:
    """In PromQL, a statistic of CloudWatch over the same period; over several cells the worst percentile, and the sum of what is
    counted."""
    if statistic.startswith("p"):
        quantile = f"{int(statistic[1:]) / 100:g}"
        return f"max by ({by}) ({series(experiment, metric, chosen=chosen, quantile=quantile, **labels)})"
    total, count = (
        f"sum by ({by}) (increase({series(experiment, metric, part, chosen=chosen, **labels)}[{PERIOD_S}s]))"
        for part in ("_sum", "_count")
    )
    return {"Sum": total, "SampleCount": count, "Average": f"{total} / {count}"}[statistic]


INSIGHTS = "ContainerInsights"
"""The namespace of Container Insights."""
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
"""Metrics of nodes where Prometheus reads kube-state-metrics, the node exporter and `neuron-monitor-prometheus.py`, whose names are
those of the agent's receiver of it (amazon-cloudwatch-agent, `awsneuron`): unproven, no device was read."""


class InsightsMetric(NamedTuple):
    """A metric of Container Insights with enhanced observability; that it arrives is not run on AWS.

    Names and dimensions of the Neuron metrics as the agent's own translator writes them:
    https://github.com/aws/amazon-cloudwatch-agent/blob/main/translator/translate/otel/exporter/awsemf/kubernetes.go
    The others: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Container-Insights-metrics-enhanced-EKS.html
    """

    name: str
    title: str
    statistic: str
    grafana_unit: str = "percent"
    dimensions: tuple[str, ...] = ("ClusterName",)


_CORES, _MEMORY = "node_neuroncore_utilization", "node_neurondevice_runtime_memory_used_bytes"
_ECC = "node_neurondevice_hw_ecc_events_total"
NODE_COUNT = InsightsMetric("cluster_node_count", "nodes", "Maximum", "suffix: nodes")
NODE_METRICS = (
    NODE_COUNT,
    InsightsMetric("cluster_failed_node_count", "nodes that failed", "Maximum", "suffix: nodes"),
    InsightsMetric("node_cpu_utilization", "node CPU, %", "Average"),
    InsightsMetric("node_memory_utilization", "node memory, %", "Average"),
    InsightsMetric("node_filesystem_utilization", "node disk, %", "Maximum"),
)
NEURON_NODE_METRICS = (
    InsightsMetric(_CORES, "NeuronCores, %", "Average"),
    InsightsMetric(_MEMORY, "runtime memory, bytes", "Maximum", "bytes"),
    InsightsMetric("node_neuron_execution_latency", "execution latency, s", "Average", "s"),
    InsightsMetric("node_neuron_execution_errors_total", "execution errors", "Sum", "suffix: errors"),
    InsightsMetric(_ECC, "ECC events", "Sum", "suffix: events"),
)
_POD, _SERVICE = ("ClusterName", "Namespace", "PodName"), ("ClusterName", "Namespace", "Service")
NEURON_POD = InsightsMetric(
    "pod_neuroncore_utilization", "NeuronCores of an arm, %", "Average", dimensions=_POD
)
"""Only where the device plugin hands out the devices: the agent learns from the kubelet which pod holds which extended
resource (`awsdevicepodcorrelation` in the agent's configuration), and a resource claim is not one."""
SERVICE_PODS = InsightsMetric(
    "service_number_of_running_pods", "running replicas", "Maximum", dimensions=_SERVICE
)


def compared(experiment: Experiment) -> str:
    """Which arms are compared, and how a time and a ratio are meant."""
    names = [arm.name for arm in experiment.served_arms if arm is not experiment.baseline_of(arm)]
    more = len(names) - _MOST_NAMES
    others = f"**{', '.join(names[:_MOST_NAMES])}**" if names else "no other arm"
    return (
        f"Baseline **{baselines(experiment)}** against {others}{f' and {more} more' if more > 0 else ''}, by class of prompts. "
        "Time per output token is per token, not per streamed chunk. In the ratios, above 1 means better than the baseline."
    )


def baselines(experiment: Experiment) -> str:
    """The baseline; where each batch has its own, the first and how many more there are."""
    more = len(experiment.by_batch) - 1
    return experiment.baseline.name + (f" ({more} more for other batches)" if more else "")
