"""The metrics of dashboards and alarms, with their statistics and their names in CloudWatch and in Prometheus.

https://prometheus.io/docs/prometheus/latest/querying/basics/
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from benchmark.metrics import COMPARED, ERRORS, PERIOD_S, PUBLISHED, TOKENS_PER_STEP, Metric
from core.words import as_ascii
from experiment import Experiment
from experiment.arms import Arm
from experiment.naming import metrics_namespace

HEADLINES: tuple[Metric, ...] = (*COMPARED, TOKENS_PER_STEP)
"""Metrics that have a row of ratios."""
FURTHER: tuple[Metric, ...] = tuple(m for m in PUBLISHED if m not in HEADLINES and m is not ERRORS)
_MAX_NAMES = 8


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


class InsightsMetric(NamedTuple):
    """A metric of Container Insights; `metrics.yaml` says where they are from."""

    name: str
    title: str
    statistic: str
    grafana_unit: str = "percent"
    promql: str = ""
    """The same to Prometheus, where somebody shows it there."""
    dimensions: tuple[str, ...] = ("ClusterName",)


_WRITTEN: dict[str, dict[str, Any]] = yaml.load(
    Path(__file__).with_name("metrics.yaml").read_text(encoding="utf-8").replace("PERIOD]", f"{PERIOD_S}s]"),
    Loader=yaml.CSafeLoader,
)
NODE_METRICS, NEURON_NODE_METRICS = (
    tuple(InsightsMetric(name, **metric) for name, metric in _WRITTEN[where].items())
    for where in ("nodes", "neuron_nodes")
)
NODE_COUNT = NODE_METRICS[0]
OF_SERVERS = {f"vllm:{name}": tuple(words) for name, words in _WRITTEN["servers"].items()}
"""What servers say of themselves: title and unit by vLLM's name."""
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
    more = len(names) - _MAX_NAMES
    others = f"**{', '.join(names[:_MAX_NAMES])}**" if names else "no other arm"
    return (
        f"Baseline **{baselines(experiment)}** against {others}{f' and {more} more' if more > 0 else ''}, by class of prompts. "
        "Time per output token is per token, not per streamed chunk. In the ratios, above 1 means better than the baseline."
    )


def baselines(experiment: Experiment) -> str:
    """The baseline; where each batch has its own, the first and how many more there are."""
    more = len(experiment.by_batch) - 1
    return experiment.baseline.name + (f" ({more} more for other batches)" if more else "")
