"""The CloudWatch dashboard of an experiment.

Every line names its full metric: a SEARCH would also find arms and classes of earlier versions of the file.
https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/CloudWatch-Dashboard-Body-Structure.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from infra.monitoring import panels
from infra.monitoring.panels import CloudWatchMetric, Detail, InsightsMetric, Watched
from trnspec.benchmark.metrics import ERRORS, OUTPUT_TOKENS_PER_S, PERIOD_S
from trnspec.core.findings import Misuse
from trnspec.experiment import Experiment, naming
from trnspec.experiment.arms import Arm
from trnspec.experiment.cost import arm_usd_per_hour

_MOST = (500, 2500, 500, 900_000)
"""Maximum widgets and metrics of a page and metrics of a graph. Expressions are counted too, because the documentation does not exclude
them (https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_limits.html). And characters: a template holds 1 MB
(https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html)."""
MAX_ALARMS_PER_WIDGET = 100
LINES_IN_GRAPH = 24
"""More lines cannot be distinguished, so the classes are spread over several graphs."""
_COLUMNS, _HEIGHT = 24, 7
_INTRODUCTION_HEIGHT, _ALARMS_HEIGHT, _ALARMS_IN_ROW = 5, 3, 6
Widget = dict[str, Any]
Row = list[Widget]
"""Widgets side by side."""
Lines = list[list[Any]]
"""Each line is the names of a metric and then how it is drawn; an expression has only the latter."""


class Graph(NamedTuple):
    """Lines over time from 0 upward, all with one statistic."""

    title: str
    statistic: str
    lines: Lines
    level: tuple[str, float] | None = None
    """A horizontal line."""


class CellSelection(NamedTuple):
    """The classes and the load on which a graph compares the arms."""

    classes: tuple[str, ...]
    concurrency: int


def dashboard(experiment: Experiment, alarms: Sequence[str] = ()) -> str:
    """Return the page of the experiment as JSON; `alarms` are ARNs.

    It has a text, the alarms, then each metric with its ratios, cost, errors, nodes and further metrics. It shows less where all
    would be too much for a page. Raises `Misuse` where CloudWatch or CloudFormation would refuse even that.
    """
    for detail in panels.DETAILS:
        rows = [
            _text(_introduction(experiment, detail.left_out), _INTRODUCTION_HEIGHT),
            *_rows(experiment, alarms, detail),
        ]
        body = _body(rows)
        metrics = [len(widget["properties"].get("metrics", ())) for row in rows for widget in row]
        sizes = len(metrics), sum(metrics), max(metrics), len(json.dumps(body))  # as a string of the template
        if all(size <= most for size, most in zip(sizes, _MOST, strict=True)):
            return body
    raise Misuse(
        "dashboard: {:,} widgets, {:,} metrics, {:,} in one graph, {:,} characters; ".format(*sizes)  # pyrefly: ignore[unbound-name]  # there are DETAILS
        + "a page takes {:,}, {:,}, {:,} and {:,}; ".format(*_MOST)
        + "use fewer arms, prompt classes or values of benchmark.concurrency"
    )


def _body(rows: Iterable[Row]) -> str:
    """Return the page with the rows one below the other."""
    widgets, y = [], 0
    for row in rows:
        x = 0
        for widget in row:
            widgets.append({**widget, "x": x, "y": y, "properties": _shortened(widget["properties"])})
            x += widget["width"]
        y += max(widget["height"] for widget in row)
    return json.dumps({"widgets": widgets}, separators=(",", ":"))


def _shortened(properties: dict[str, Any]) -> dict[str, Any]:
    """Write `.` for a field that repeats the one above it, as the format allows: names are most of a large page."""
    if "metrics" not in properties:
        return properties
    short, before = [], list[Any]()
    for *names, drawn in properties["metrics"]:
        above = before + [None] * len(names)
        short.append(["." if one == old else one for one, old in zip(names, above, strict=False)] + [drawn])
        before = names
    return {**properties, "metrics": short}


def _widget(kind: str, width: int, height: int, properties: dict[str, Any]) -> Widget:
    return {"type": kind, "width": width, "height": height, "x": 0, "y": 0, "properties": properties}


def _text(markdown: str, height: int) -> Row:
    return [_widget("text", _COLUMNS, height, {"markdown": markdown})]


def _graphs(experiment: Experiment, *graphs: Graph) -> Row:
    """Return a row of graphs, all of one width."""
    row = []
    for title, statistic, lines, level in graphs:
        shown: dict[str, Any] = {"view": "timeSeries", "title": title, "region": experiment.cluster.region}
        shown["metrics"] = lines
        if level is not None:
            shown["annotations"] = {"horizontal": [{"value": level[1], "label": level[0], "yAxis": "left"}]}
        shown |= {"yAxis": {"left": {"min": 0, "showUnits": False}}, "period": PERIOD_S, "stat": statistic}
        row.append(_widget("metric", _COLUMNS // len(graphs), _HEIGHT, shown))
    return row


def _line(source: CloudWatchMetric, label: str, id_: str | None = None) -> list[Any]:
    """Return a line; with an id, one that only expressions use, which CloudWatch counts too."""
    names = (name for pair in sorted(source.dimensions.items()) for name in pair)
    hidden = {"id": id_, "visible": False} if id_ else {}
    return [source.namespace, source.name, *names, {"label": label, **hidden}]


def _rows(experiment: Experiment, alarms: Sequence[str], detail: Detail) -> Iterator[Row]:
    for start in range(0, len(alarms), MAX_ALARMS_PER_WIDGET):
        portion = list(alarms[start : start + MAX_ALARMS_PER_WIDGET])
        height = _ALARMS_HEIGHT + (len(portion) - 1) // _ALARMS_IN_ROW
        yield [_widget("alarm", _COLUMNS, height, {"title": "Alarms", "alarms": portion})]
    size = max(1, LINES_IN_GRAPH // max(1, len(experiment.arms)))
    all_cells = [
        CellSelection(tuple(experiment.classes[start : start + size]), concurrency)
        for concurrency in experiment.benchmark.concurrency
        for start in range(0, len(experiment.classes), size)
    ]
    watched = panels.watched(experiment)
    for metric, cells in product(detail.compared, all_cells):
        yield _values_row(experiment, watched[metric], cells, detail)
        yield _ratios_row(experiment, watched[metric], cells, detail)
    for cells in all_cells:
        yield _cost_and_errors_row(experiment, watched[OUTPUT_TOKENS_PER_S], watched[ERRORS], cells)
    yield from _node_rows(experiment)
    for metric, cells in product(panels.FURTHER if detail.further else (), all_cells):
        yield _values_row(experiment, watched[metric], cells, detail)


def _values_row(experiment: Experiment, shown: Watched, cells: CellSelection, detail: Detail) -> Row:
    metric = shown.metric
    title = f"{metric.unit}, concurrency {cells.concurrency} ({metric.better} is better)"
    graphs = (
        Graph(f"{metric.cloudwatch_name} {one}, {title}", one, _measured(experiment, shown, cells))
        for one in detail.statistics(metric)
    )
    return _graphs(experiment, *graphs)


def _ratios_row(experiment: Experiment, shown: Watched, cells: CellSelection, detail: Detail) -> Row:
    """Return how many times better each arm is than the baseline of its batch."""
    metric = shown.metric

    def ratio(arm: Arm, own: str, base: str) -> str | None:
        if arm is experiment.baseline_of(arm):
            return None
        return f"{base}/{own}" if metric.better == "lower" else f"{own}/{base}"

    lines, level = _calculated(experiment, shown, cells, ratio), ("no difference", 1)
    title = f"times better than {panels.baselines(experiment)}"
    graphs = (
        Graph(f"{metric.cloudwatch_name} {one}: {title}", one, lines, level)
        for one in detail.statistics(metric)
    )
    return _graphs(experiment, *graphs)


def _cost_and_errors_row(
    experiment: Experiment, throughput: Watched, errors: Watched, cells: CellSelection
) -> Row:
    """Return dollars per million output tokens, the share of requests that failed, and how many failed.

    The cost is an arm's price over the concurrency times the throughput of a request. It is an estimate: the report divides by
    tokens and time themselves, which CloudWatch does not hold.
    """

    def usd(arm: Arm, own: str, base: str) -> str:
        return f"{arm_usd_per_hour(experiment, arm) / 3600 * 1e6:.6g}/({cells.concurrency}*{own})"

    load = f"concurrency {cells.concurrency}"
    title = f"USD per million output tokens, estimate, {load} (lower is better)"
    shown = [Graph(title, "Average", _calculated(experiment, throughput, cells, usd))]
    for one, words in {"Average": "share of requests that failed", "Sum": "requests that failed"}.items():
        title = f"{errors.metric.cloudwatch_name} {one}: {words}, {load}"
        shown.append(Graph(title, one, _measured(experiment, errors, cells)))
    return _graphs(experiment, *shown)


def _measured(experiment: Experiment, shown: Watched, cells: CellSelection) -> Lines:
    """Return a line for every arm on every class."""
    return [_line(source, label) for source, label in _sources(experiment, shown, cells).values()]


def _sources(
    experiment: Experiment, shown: Watched, cells: CellSelection
) -> Mapping[str, tuple[CloudWatchMetric, str]]:
    """Return the metric and the label of every arm on every class, by the id that expressions use."""
    found = {}
    for (row, name), (column, arm) in product(enumerate(cells.classes), enumerate(shown.arms)):
        source = panels.cell(
            experiment, shown.metric, arm=arm, class_name=name, concurrency=cells.concurrency
        )
        found[f"c{row}a{column}"] = source, f"{name} {arm.name}"
    return found


def _calculated(
    experiment: Experiment,
    shown: Watched,
    cells: CellSelection,
    expression: Callable[[Arm, str, str], str | None],
) -> Lines:
    """Return metric math for each arm, from the ids of its own line and its baseline's. The lines that it is the first to use follow."""
    lines: Lines = []
    arms, unused = shown.arms, {**_sources(experiment, shown, cells)}
    for (row, class_name), (column, arm) in product(enumerate(cells.classes), enumerate(arms)):
        base = arms.index(experiment.baseline_of(arm))
        if (text := expression(arm, f"c{row}a{column}", f"c{row}a{base}")) is not None:
            lines.append([{"label": f"{class_name} {arm.name}", "expression": text}])
            new = [one for one in re.findall(r"c\d+a\d+", text) if one in unused]
            lines += [_line(*unused.pop(one), one) for one in new]
    return lines


def _node_rows(experiment: Experiment) -> Iterator[Row]:
    """Yield nodes and NeuronCores, a narrow graph for each metric because their units differ; by pod only where the device plugin
    hands the devices out."""
    by_pod = experiment.baseline.serving.allocation == "device-plugin"
    yield _text(f"## Nodes\nFrom Container Insights{_BY_POD if by_pod else _BY_NODE}", 3)
    for subject, metrics in (("Nodes", panels.NODE_METRICS), ("Trainium nodes", panels.NEURON_NODE_METRICS)):
        shown = ((one, [_line(_insights(experiment, one), one.title)]) for one in metrics)
        graphs = (Graph(f"{subject}: {one.title}", one.statistic, lines) for one, lines in shown)
        yield _graphs(experiment, *graphs)
    if by_pod:
        metric = panels.NEURON_POD
        values = {"Namespace": naming.namespace(experiment)}
        lines = [
            _line(_insights(experiment, metric, **values, PodName=arm.name), arm.name)
            for arm in experiment.arms
        ]
        yield _graphs(experiment, Graph(metric.title, metric.statistic, lines))


_BY_POD = ". The device plugin hands out the devices, so the agent knows which pod holds which NeuronCores."
_BY_NODE = (
    ", **by node only**: devices are held by resource claims (DRA), and the agent "
    "learns from the device plugin alone which pod holds which NeuronCores. The Neuron documentation says that its "
    "monitor does not support DRA yet, so an empty graph of NeuronCores does not mean that they are idle."
)


def _insights(experiment: Experiment, metric: InsightsMetric, **more: str) -> CloudWatchMetric:
    dimensions = {"ClusterName": naming.cluster_name(experiment), **more}
    return CloudWatchMetric(panels.INSIGHTS, metric.name, dimensions)


def _introduction(experiment: Experiment, left_out: str) -> str:
    """Return which arms are compared, and what kind of numbers these are."""
    return (
        f"# {experiment.name}\n{panels.compared(experiment)}\n\n"
        "The values are *measured* when the benchmark ran against this cluster. They are *emulated* when someone "
        "published a run of the emulated arms here: CloudWatch cannot tell the two apart, the run's summary.json can. "
        "Intervals and verdicts stand in the report of a run, and so does the exact cost: the one here is an estimate, "
        "the arm's quoted price over concurrency times the mean throughput of a request."
        + (f" So many arms leave no room for {left_out}." if left_out else "")
    )
