"""The rows of the dashboard, made from the registry of metrics, and its texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from benchmark.metrics import COMPARED, ERRORS, PUBLISHED, TOKENS_PER_STEP, Metric
from experiment import Experiment
from experiment.naming import cluster_name, namespace
from infra.monitoring import container_insights as insights
from infra.monitoring.widgets import Cells, Graph, Row, arm_lines, cost_lines, graphs, ratio_lines, text

HEADLINES: tuple[Metric, ...] = (*COMPARED, TOKENS_PER_STEP)
"""Metrics that have a row of ratios."""
FURTHER: tuple[Metric, ...] = tuple(m for m in PUBLISHED if m not in HEADLINES and m is not ERRORS)
LINES_IN_GRAPH = 24
"""More lines cannot be distinguished, so the classes are spread over several graphs."""
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


def metric_rows(experiment: Experiment, detail: Detail) -> Iterator[Row]:
    """For each metric, concurrency and portion of the classes: the arms, and below them their ratio to the baseline;
    a column for each statistic."""
    for metric, cells in product(HEADLINES, _cells(experiment)):
        yield _arms_row(experiment, metric, cells, detail)
        if cells.concurrency is None:
            continue  # which loads two arms share is known when they were measured, and the report compares them
        ratios = ratio_lines(experiment, metric, cells)
        yield graphs(
            experiment,
            *(
                Graph(
                    f"{metric.cloudwatch_name} {statistic}: times better than {baselines(experiment)}",
                    statistic,
                    ratios,
                    ("no difference", 1),
                )
                for statistic in detail.statistics(metric)
            ),
        )


def cost_and_error_rows(experiment: Experiment) -> Iterator[Row]:
    """Dollars per million output tokens, share of requests that failed, how many failed."""
    name = ERRORS.cloudwatch_name
    for cells in _cells(experiment):
        usd = Graph(
            f"USD per million output tokens, estimate, {cells.at} (lower is better)",
            "Average",
            cost_lines(experiment, cells),
        )
        errors = [
            Graph(f"{name} {title}, {cells.at}", statistic, arm_lines(experiment, ERRORS, cells, statistic))
            for title, statistic in (
                ("Average: share of requests that failed", "Average"),
                ("Sum: requests that failed", "Sum"),
            )
        ]
        yield graphs(experiment, *([usd] if usd.lines else []), *errors)


def further_rows(experiment: Experiment, detail: Detail) -> Iterator[Row]:
    """Published metrics that are not compared."""
    if detail.further:
        for metric, cells in product(FURTHER, _cells(experiment)):
            yield _arms_row(experiment, metric, cells, detail)


def node_rows(experiment: Experiment) -> Iterator[Row]:
    """Nodes and NeuronCores, a narrow graph for each metric: their units differ. By pod only where the
    device plugin hands the devices out."""
    yield text(_node_words(experiment), height=3)
    values = {"ClusterName": cluster_name(experiment), "Namespace": namespace(experiment)}
    for subject, metrics in (
        ("Nodes", insights.NODE_METRICS),
        ("Trainium nodes", insights.NEURON_NODE_METRICS),
    ):
        yield graphs(
            experiment,
            *(
                Graph(f"{subject}: {one.title}", one.statistic, [insights.insights_line(one, values)])
                for one in metrics
            ),
        )
    if experiment.baseline.serving.allocation == "device-plugin":
        metric = insights.NEURON_POD
        lines = [
            insights.insights_line(metric, {**values, "PodName": arm.name}, label=arm.name)
            for arm in experiment.served_arms
        ]
        yield graphs(experiment, Graph(metric.title, "Average", lines))


def _cells(experiment: Experiment) -> list[Cells]:
    """For each concurrency the classes, as many together as a graph can show."""
    size = max(1, LINES_IN_GRAPH // max(1, len(experiment.served_arms)))
    classes = experiment.classes
    return [
        Cells(tuple(classes[start : start + size]), concurrency)
        for concurrency in experiment.benchmark.known_concurrency or (None,)
        for start in range(0, len(classes), size)
    ]


def _arms_row(experiment: Experiment, metric: Metric, cells: Cells, detail: Detail) -> Row:
    return graphs(
        experiment,
        *(
            Graph(
                f"{metric.cloudwatch_name} {statistic}, {metric.unit}, {cells.at} ({metric.better} is better)",
                statistic,
                arm_lines(experiment, metric, cells, statistic),
            )
            for statistic in detail.statistics(metric)
        ),
    )


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


def _node_words(experiment: Experiment) -> str:
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
