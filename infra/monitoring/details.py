"""What the dashboards show of which metric, and their texts; for CloudWatch and for Grafana."""

from __future__ import annotations

from dataclasses import dataclass

from benchmark.metrics import COMPARED, ERRORS, PUBLISHED, TOKENS_PER_STEP, Metric
from core.labels import as_ascii
from experiment import Experiment
from experiment.arms import Arm

HEADLINES: tuple[Metric, ...] = (*COMPARED, TOKENS_PER_STEP)
"""Metrics that have a row of ratios."""
FURTHER: tuple[Metric, ...] = tuple(m for m in PUBLISHED if m not in HEADLINES and m is not ERRORS)
_MOST_NAMES = 8


@dataclass(frozen=True, kw_only=True)
class Detail:
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
    Detail(percentiles=("p50", "p90", "p99"), further=True, left_out=""),
    Detail(percentiles=("p50", "p90", "p99"), further=False, left_out="metrics that are not compared"),
    Detail(percentiles=("p50", "p99"), further=False, left_out="p90, and metrics that are not compared"),
    Detail(percentiles=("p50",), further=False, left_out="p90, p99, and metrics that are not compared"),
)
"""The most first."""


def cell_dimensions(
    experiment: Experiment, metric: Metric, *, arm: Arm, class_name: str, concurrency: int
) -> dict[str, str]:
    """As the benchmark publishes them."""
    values = {
        "Experiment": experiment.name,
        "Arm": arm.name,
        "Class": as_ascii(class_name),
        "Concurrency": str(concurrency),
    }
    return {name: values[name] for name in metric.dimensions}


def introduction(experiment: Experiment, *, page: int, pages: int, left_out: str) -> str:
    """What is compared, and what kind of numbers these are."""
    return (
        f"# {experiment.name}{f' ({page} of {pages})' if pages > 1 else ''}\n"
        f"{experiment.description}\n\n"
        f"{compared(experiment)}\n\n"
        "The values are *measured* when the benchmark ran against this cluster. They are *emulated* when someone "
        "published a run of the emulated arms here: CloudWatch cannot tell the two apart, the run's summary.json can. "
        "Intervals and verdicts stand in the report of a run, and so does the exact cost: the one here is an estimate, "
        "the arm's list price over concurrency times the mean throughput of a request."
        + (
            " Loads are searched: a graph has a line for each that was measured."
            if experiment.benchmark.load
            else ""
        )
        + (f" So many arms leave no room for {left_out}." if left_out else "")
    )


def compared(experiment: Experiment) -> str:
    """What is compared, and how a time and a ratio are meant."""
    return (
        f"Baseline **{baselines(experiment)}** against {_others(experiment)}, by class of prompts. Time per output "
        "token is per token, not per streamed chunk. In the ratios, above 1 means better than the baseline."
    )


def node_words(experiment: Experiment) -> str:
    """What Container Insights can and cannot say about the devices."""
    if experiment.baseline.serving.allocation == "device-plugin":
        return (
            "## Nodes\nFrom Container Insights. The device plugin hands out the devices, so the agent knows which pod "
            "holds which NeuronCores."
        )
    return (
        "## Nodes\nFrom Container Insights, **by node only**: devices are held by resource claims (DRA), and the agent "
        "learns from the device plugin alone which pod holds which NeuronCores. The Neuron documentation says that its "
        "monitor does not support DRA yet, so an empty graph of NeuronCores does not mean that they are idle."
    )


def baselines(experiment: Experiment) -> str:
    """The baseline, of several batches with what tells that each has its own."""
    more = len(experiment.by_batch) - 1
    return experiment.baseline.name + (f" ({more} more for other batches)" if more else "")


def _others(experiment: Experiment) -> str:
    names = [arm.name for arm in experiment.served_arms if arm is not experiment.baseline_of(arm)]
    if not names:
        return "no other arm"
    left = len(names) - _MOST_NAMES
    return f"**{', '.join(names[:_MOST_NAMES])}**{f' and {left} more' if left > 0 else ''}"
