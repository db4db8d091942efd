"""The metrics of dashboards and alarms, with their statistics and their names in CloudWatch."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from trnspec.benchmark.metrics import COMPARED, ERRORS, PUBLISHED, TOKENS_PER_STEP, TPOT, Metric
from trnspec.core.words import as_ascii
from trnspec.experiment import Experiment
from trnspec.experiment.arms import Arm
from trnspec.experiment.catalogue.published import SLOWEST_TPOT_S
from trnspec.experiment.naming import metrics_namespace

HEADLINES: tuple[Metric, ...] = (*COMPARED, TOKENS_PER_STEP)
FURTHER: tuple[Metric, ...] = tuple(m for m in PUBLISHED if m not in HEADLINES and m is not ERRORS)
_MAX_NAMES = 8
MAX_ERROR_SHARE = 0.05
"""Share of failed requests. A healthy arm fails none; one in twenty is more than chance."""


class Watched(NamedTuple):
    """A metric of these arms: what the page draws, and what has an alarm."""

    metric: Metric
    arms: tuple[Arm, ...]
    limit: float = inf
    """An arm above it is in alarm; without one it has none."""


def watched(experiment: Experiment) -> dict[Metric, Watched]:
    """Return the one list of which the page and the alarms of the arms are made."""
    limits = {
        ERRORS: MAX_ERROR_SHARE,
        TPOT: experiment.benchmark.goodput.get(TPOT.name, SLOWEST_TPOT_S),  # which a single request keeps
    }
    return {
        metric: Watched(metric, experiment.arms, limits.get(metric, inf))
        for metric in (ERRORS, *HEADLINES, *FURTHER)
    }


class Detail(NamedTuple):
    """How much is shown; a large sweep shows less, because a page holds 2,500 metrics."""

    percentiles: tuple[str, ...]
    compared: tuple[Metric, ...]
    """Metrics that have a row of values and a row of ratios."""
    further: bool
    """Whether metrics that are not compared have rows."""
    left_out: str
    """In words; may be empty."""

    def statistics(self, metric: Metric) -> tuple[str, ...]:
        """Return the registry's own statistic first where it is not a percentile, then the percentiles."""
        own = () if metric.statistic.startswith("p") else (metric.statistic,)
        return (*own, *self.percentiles)


_ALL = ("p50", "p90", "p99")
DETAILS = (
    Detail(_ALL, HEADLINES, True, ""),
    Detail(_ALL, HEADLINES, False, "metrics that are not compared"),
    Detail(("p50", "p99"), HEADLINES, False, "p90, and metrics that are not compared"),
    Detail(("p50",), HEADLINES, False, "p90, p99, and metrics that are not compared"),
    Detail(("p50",), (TPOT,), False, "p90, p99, and every metric but the time per output token"),
)
"""The most first."""


class CloudWatchMetric(NamedTuple):
    namespace: str
    name: str
    dimensions: dict[str, str]


def cell(
    experiment: Experiment, metric: Metric, *, arm: Arm, class_name: str, concurrency: int
) -> CloudWatchMetric:
    """Return the metric of one arm on one class at one load, as the benchmark publishes it."""
    values = {
        "Experiment": experiment.name,
        "Arm": arm.name,
        "Class": as_ascii(class_name),
        "Concurrency": str(concurrency),
    }
    dimensions = {name: values[name] for name in metric.dimensions}
    return CloudWatchMetric(metrics_namespace(experiment), metric.cloudwatch_name, dimensions)


INSIGHTS = "ContainerInsights"
"""The namespace of Container Insights."""


class InsightsMetric(NamedTuple):
    """A metric of Container Insights with enhanced observability, for a cluster. Not verified on AWS.

    Names and dimensions of the Neuron metrics are those in the translator of the agent:
    https://github.com/aws/amazon-cloudwatch-agent/blob/main/translator/translate/otel/exporter/awsemf/kubernetes.go
    The others: https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/Container-Insights-metrics-enhanced-EKS.html
    """

    name: str
    title: str
    statistic: str


NODE_COUNT = InsightsMetric("cluster_node_count", "nodes", "Maximum")
NODE_METRICS = (
    NODE_COUNT,
    InsightsMetric("cluster_failed_node_count", "nodes that failed", "Maximum"),
    InsightsMetric("node_cpu_utilization", "node CPU, %", "Average"),
    InsightsMetric("node_memory_utilization", "node memory, %", "Average"),
    InsightsMetric("node_filesystem_utilization", "node disk, %", "Maximum"),
)
NEURON_NODE_METRICS = (
    InsightsMetric("node_neuroncore_utilization", "NeuronCores, %", "Average"),
    InsightsMetric("node_neurondevice_runtime_memory_used_bytes", "runtime memory, bytes", "Maximum"),
    InsightsMetric("node_neuron_execution_latency", "execution latency, s", "Average"),
    InsightsMetric("node_neuron_execution_errors_total", "execution errors", "Sum"),
    InsightsMetric("node_neurondevice_hw_ecc_events_total", "ECC events", "Sum"),
)
NEURON_POD = InsightsMetric("pod_neuroncore_utilization", "NeuronCores of an arm, %", "Average")
"""It also has the dimensions Namespace and PodName. It exists only where the device plugin hands out the devices: the agent learns
from the kubelet which pod holds which extended resource (`awsdevicepodcorrelation` in the agent's configuration), and a resource
claim is not one."""


def compared(experiment: Experiment) -> str:
    """Say which arms are compared, and how a time and a ratio are meant."""
    names = [arm.name for arm in experiment.arms if arm is not experiment.baseline_of(arm)]
    more = len(names) - _MAX_NAMES
    others = f"**{', '.join(names[:_MAX_NAMES])}**" if names else "no other arm"
    return (
        f"Baseline **{baselines(experiment)}** against {others}{f' and {more} more' if more > 0 else ''}, by class of prompts. "
        "Time per output token is per token, not per streamed chunk. In the ratios, above 1 means better than the baseline."
    )


def baselines(experiment: Experiment) -> str:
    """Name the baseline; where each batch has its own, the first and how many more there are."""
    more = len(experiment.by_batch) - 1
    return experiment.baseline.name + (f" ({more} more for other batches)" if more else "")
