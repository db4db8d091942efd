"""The CloudWatch dashboards of an experiment and of its promoted arm.

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
from trnspec.core.words import count
from trnspec.experiment import Experiment, naming
from trnspec.experiment.arms import Arm
from trnspec.experiment.cost import arm_usd_per_hour

_MOST = (500, 2500, 500, 900_000)
"""Maximum widgets and metrics of a page and metrics of a graph; expressions are counted too, because the documentation does not exclude
them (https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_limits.html). And characters: a template holds 1 MB
(https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html)."""
MAX_ALARMS_PER_WIDGET = 100
LINES_IN_GRAPH = 24
"""More lines cannot be distinguished, so the classes are spread over several graphs."""
_COLUMNS, _HEIGHT = 24, 7
_WORDS_HEIGHT, _ALARMS_HEIGHT, _ALARMS_IN_ROW = 5, 3, 6
Widget = dict[str, Any]
Row = list[Widget]
"""Widgets side by side."""
Lines = list[list[Any]]
"""The names of a metric, then how it is drawn; of an expression the last alone."""


class Dashboard(NamedTuple):
    name: str
    body: str


class Graph(NamedTuple):
    """Lines over time from 0 upward, all with one statistic."""

    title: str
    statistic: str
    lines: Lines
    level: tuple[str, float] | None = None
    """A horizontal line."""


class CellSelection(NamedTuple):
    """What a graph compares the arms on."""

    classes: tuple[str, ...]
    concurrency: int

    @property
    def at(self) -> str:
        return f"concurrency {self.concurrency}"


def dashboards(experiment: Experiment, alarms: Sequence[str] = ()) -> dict[str, Dashboard]:
    """One page, and one of the promoted arm, by the ids that they have in the template; `alarms` are ARNs.

    A text, the alarms, then each metric with its ratios, cost, errors, nodes and further metrics; less of it where all would be
    too much for a page. Raises `Misuse` where CloudWatch or CloudFormation would refuse even that.
    """
    for detail in panels.DETAILS:
        words = _text(_introduction(experiment, detail.left_out), _WORDS_HEIGHT)
        rows = [words, *_rows(experiment, alarms, detail)]
        body, metrics = _body(rows), [_metrics(widget) for row in rows for widget in row]
        sizes = len(metrics), sum(metrics), max(metrics), len(json.dumps(body))  # as a string of the template
        if all(size <= most for size, most in zip(sizes, _MOST, strict=True)):
            break
    else:
        raise Misuse(
            "dashboard: {:,} widgets, {:,} metrics, {:,} in one graph, {:,} characters; ".format(*sizes)  # pyrefly: ignore[unbound-name]  # there are DETAILS
            + "a page takes {:,}, {:,}, {:,} and {:,}; ".format(*_MOST)
            + "use fewer arms, prompt classes or values of benchmark.concurrency"
        )
    pages = {"Dashboard": Dashboard(naming.dashboard_name(experiment), body)}
    if experiment.serve and experiment.promoted:
        body = _body(_service_rows(experiment, experiment.promoted, experiment.serve.replicas))
        pages["ServiceDashboard"] = Dashboard(naming.service_dashboard_name(experiment), body)
    return pages


def _metrics(widget: Widget) -> int:
    return len(widget["properties"].get("metrics", ()))


def _body(rows: Iterable[Row]) -> str:
    """The rows one below the other."""
    widgets, y = [], 0
    for row in rows:
        x = 0
        for widget in row:
            widgets.append({**widget, "x": x, "y": y, "properties": _short(widget["properties"])})
            x += widget["width"]
        y += max(widget["height"] for widget in row)
    return json.dumps({"widgets": widgets}, separators=(",", ":"))


def _short(properties: dict[str, Any]) -> dict[str, Any]:
    """A field that repeats the one in the line before at the same place is written `.`, as the format allows: a template holds
    1 MB, and names are most of a large dashboard."""
    if "metrics" not in properties:
        return properties
    short, before = [], list[Any]()
    for *names, drawn in properties["metrics"]:
        former = before + [None] * len(names)
        short.append(["." if one == old else one for one, old in zip(names, former, strict=False)] + [drawn])
        before = names
    return {**properties, "metrics": short}


def _widget(kind: str, width: int, height: int, properties: dict[str, Any]) -> Widget:
    return {"type": kind, "width": width, "height": height, "x": 0, "y": 0, "properties": properties}


def _text(markdown: str, height: int) -> Row:
    return [_widget("text", _COLUMNS, height, {"markdown": markdown})]


def _graphs(experiment: Experiment, *graphs: Graph) -> Row:
    """A row of graphs, all of one width."""
    axis = {"left": {"min": 0, "showUnits": False}}
    row = []
    for title, statistic, lines, level in graphs:
        shown: dict[str, Any] = {"view": "timeSeries", "title": title, "region": experiment.cluster.region}
        shown["metrics"] = lines
        if level is not None:
            shown["annotations"] = {"horizontal": [{"value": level[1], "label": level[0], "yAxis": "left"}]}
        shown |= {"yAxis": axis, "period": PERIOD_S, "stat": statistic}
        row.append(_widget("metric", _COLUMNS // len(graphs), _HEIGHT, shown))
    return row


def _line(source: CloudWatchMetric, label: str, id_: str | None = None) -> list[Any]:
    """With an id, a line that only expressions use; CloudWatch counts it too."""
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
    for one, cells in product([watched[metric] for metric in detail.compared], all_cells):
        yield _arms_row(experiment, one, cells, detail)
        yield _ratios_row(experiment, one, cells, detail)
    for cells in all_cells:
        yield _cost_and_errors_row(experiment, watched[OUTPUT_TOKENS_PER_S], watched[ERRORS], cells)
    yield from _node_rows(experiment)
    further = [one for one in watched.values() if one.drawn == "further" and detail.further]
    for one, cells in product(further, all_cells):
        yield _arms_row(experiment, one, cells, detail)


def _arms_row(experiment: Experiment, shown: Watched, cells: CellSelection, detail: Detail) -> Row:
    metric = shown.metric
    title = f"{metric.unit}, {cells.at} ({metric.better} is better)"
    graphs = (
        Graph(f"{metric.cloudwatch_name} {one}, {title}", one, _measured(experiment, shown, cells))
        for one in detail.statistics(metric)
    )
    return _graphs(experiment, *graphs)


def _ratios_row(experiment: Experiment, shown: Watched, cells: CellSelection, detail: Detail) -> Row:
    """How many times better than the baseline of its batch each other arm is."""
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
    """Dollars per million output tokens, share of requests that failed, how many failed.

    The cost is an arm's price over the concurrency times the throughput of a request. An estimate: the report divides by the
    tokens and the time themselves, which CloudWatch does not hold.
    """

    def usd(arm: Arm, own: str, base: str) -> str:
        return f"{arm_usd_per_hour(experiment, arm) / 3600 * 1e6:.6g}/({cells.concurrency}*{own})"

    title = f"USD per million output tokens, estimate, {cells.at} (lower is better)"
    shown = [Graph(title, "Average", _calculated(experiment, throughput, cells, usd))]
    for one, words in {"Average": "share of requests that failed", "Sum": "requests that failed"}.items():
        title = f"{errors.metric.cloudwatch_name} {one}: {words}, {cells.at}"
        shown.append(Graph(title, one, _measured(experiment, errors, cells)))
    return _graphs(experiment, *shown)


def _measured(experiment: Experiment, shown: Watched, cells: CellSelection) -> Lines:
    """Every arm on every class."""
    return [_line(source, label) for source, label in _sources(experiment, shown, cells).values()]


def _sources(
    experiment: Experiment, shown: Watched, cells: CellSelection
) -> Mapping[str, tuple[CloudWatchMetric, str]]:
    """Every arm on every class and its label, by the id that expressions use."""
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
    """Metric math for each arm, from the ids of its own line and its baseline's; followed by the lines that it is the first to
    use."""
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
    """Nodes and NeuronCores, a narrow graph for each metric: their units differ. By pod only where the device plugin hands the
    devices out."""
    by_pod = experiment.baseline.serving.allocation == "device-plugin"
    yield _text(f"## Nodes\nFrom Container Insights{_BY_POD if by_pod else _BY_NODE}", 3)
    for subject, metrics in (("Nodes", panels.NODE_METRICS), ("Trainium nodes", panels.NEURON_NODE_METRICS)):
        shown = ((one, [_line(_insights(experiment, one), one.title)]) for one in metrics)
        graphs = (Graph(f"{subject}: {one.title}", one.statistic, lines) for one, lines in shown)
        yield _graphs(experiment, *graphs)
    if by_pod:
        metric, arms = panels.NEURON_POD, experiment.arms
        lines = [_line(_insights(experiment, metric, PodName=arm.name), arm.name) for arm in arms]
        yield _graphs(experiment, Graph(metric.title, metric.statistic, lines))


_BY_POD = ". The device plugin hands out the devices, so the agent knows which pod holds which NeuronCores."
_BY_NODE = (
    ", **by node only**: devices are held by resource claims (DRA), and the agent "
    "learns from the device plugin alone which pod holds which NeuronCores. The Neuron documentation says that its "
    "monitor does not support DRA yet, so an empty graph of NeuronCores does not mean that they are idle."
)


def _insights(experiment: Experiment, metric: InsightsMetric, **more: str) -> CloudWatchMetric:
    cluster, namespace = naming.cluster_name(experiment), naming.namespace(experiment)
    values = {"ClusterName": cluster, "Namespace": namespace, **more}
    return CloudWatchMetric(panels.INSIGHTS, metric.name, {name: values[name] for name in metric.dimensions})


def _introduction(experiment: Experiment, left_out: str) -> str:
    """What is compared, and what kind of numbers these are."""
    return (
        f"# {experiment.name}\n{panels.compared(experiment)}\n\n"
        "The values are *measured* when the benchmark ran against this cluster. They are *emulated* when someone "
        "published a run of the emulated arms here: CloudWatch cannot tell the two apart, the run's summary.json can. "
        "Intervals and verdicts stand in the report of a run, and so does the exact cost: the one here is an estimate, "
        "the arm's quoted price over concurrency times the mean throughput of a request."
        + (f" So many arms leave no room for {left_out}." if left_out else "")
    )


def _service_rows(experiment: Experiment, arm: Arm, replicas: int) -> Iterator[Row]:
    """Is it up, is it busy, what does it cost? Not verified on AWS."""
    price, service = arm_usd_per_hour(experiment, arm), naming.promoted_service(experiment.name)
    words = (
        f"# {service}\n**{arm.name}** of {experiment.name}, {count(replicas, 'replica')} at "
        f"${price:.2f} an hour (the share of a Trn2 node, quoted price; the node bills whole).\n\n"
        "Requests are read from the server's log. The Trn2 nodes are turned off "
        f"{experiment.cluster.off_when}: then replicas are 0 until `./trnspec nodes` starts nodes again."
    )
    yield _text(words, _WORDS_HEIGHT)
    yield _requests_row(experiment, arm)
    pods, title = panels.SERVICE_PODS, "USD an hour of the running replicas, quoted price"
    running = _insights(experiment, pods, Service=service)
    cost = [{"label": "USD an hour", "expression": f"{price:.6g}*replicas"}]
    yield _graphs(
        experiment,
        Graph("Replicas", "Maximum", [_line(running, pods.title)], ("most", replicas)),
        Graph(title, "Maximum", [cost, _line(running, pods.title, "replicas")]),
    )
    yield from _node_rows(experiment)


def _requests_row(experiment: Experiment, arm: Arm) -> Row:
    """From the lines that vLLM logs every ten seconds, so that no other data is collected; both of its engines: one says Waiting,
    the older one Swapped and Pending."""
    (group,) = (
        name for name in naming.container_insights_log_groups(experiment) if name.endswith("/application")
    )
    query = (
        f"SOURCE '{group}' | fields @timestamp"
        f" | filter kubernetes.namespace_name = '{naming.namespace(experiment)}'"
        f" and kubernetes.pod_name like /^{arm.name}-[0-9a-f]+-/"
        " | parse log /Running: (?<running>\\d+) reqs?, (?:Swapped: \\d+ reqs?, )?(?:Waiting|Pending): (?<waiting>\\d+) reqs?/"
        " | filter ispresent(running)"
        f" | stats max(running) as running_most, max(waiting) as waiting_most by bin({PERIOD_S}s)"
    )
    title = f"Requests in one replica of {arm.name}, most in {PERIOD_S // 60} minutes"
    shown = {"view": "timeSeries", "title": title, "region": experiment.cluster.region, "query": query}
    return [_widget("log", _COLUMNS, _HEIGHT, {**shown, "stacked": False})]
