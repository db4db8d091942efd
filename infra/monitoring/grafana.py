"""The dashboard of an experiment for Grafana, from the registry that CloudWatch's is made from.

What the benchmark measures is by class; what the servers say of themselves is by arm, since they do not know classes. The
classic model, since file provisioning and the sidecar of Grafana's chart refuse version 2
(https://github.com/grafana/grafana/issues/127928), and Grafana 13 migrates it as it loads it. Written by Grafana's library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, prometheus, text, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import DataSourceRef

from benchmark.metrics import COST, ERRORS, PERIOD_S, RUN_ACTIVE, TOKENS_PER_STEP, TPOT, Metric
from experiment import Experiment
from experiment.arms import Arm
from experiment.catalogue.prices import TRN2_ON_DEMAND
from experiment.cost import arm_usd_per_hour
from experiment.naming import NEURON_TAINT_KEY, dashboard_name
from infra.monitoring import container_insights as insights
from infra.monitoring.details import DETAILS, FURTHER, HEADLINES, baselines, compared
from infra.monitoring.promql import series, value

_COLUMNS, _HEIGHT, _LONGEST_UID, _FIRST = 24, 8, 40, "At a glance"
_HOURLY = (
    "List price. A node bills while it runs, with or without servers; of a node with the taint of Trn2 nodes nothing says "
    "here whose it is."
)
_CELL = "arm, class, concurrency"
_LEGEND = "{{class}} {{arm}} {{concurrency}}"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_DRAFTS, _ACCEPTED = "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_accepted_tokens_total"


class Panel(NamedTuple):
    """Lines over time."""

    title: str
    lines: dict[str, str]
    """Queries by their legend."""
    unit: str = "short"
    description: str = ""


def grafana_dashboard(experiment: Experiment) -> str:
    """The dashboard as JSON, for a file or a ConfigMap; the person who imports it chooses the data source."""
    name = dashboard_name(experiment)
    made = (
        dashboard.Dashboard(name)
        .uid(name[:_LONGEST_UID])
        .tags(["speculative-decoding"])
        .time("now-3h", "now")
        .refresh("1m")
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
        .with_panel(text.Panel().content(_words(experiment)).span(_COLUMNS).height(4))
    )
    for title, panels in dashboard_rows(experiment).items():
        if title == _FIRST:
            made.with_row(dashboard.Row(title))
            for panel in panels:
                made.with_panel(_drawn(panel, len(panels) // 2))
        else:
            folded = dashboard.Row(title).collapsed(True)
            for panel in panels:
                folded.with_panel(_drawn(panel, len(panels)))
            made.with_row(folded)
    return json.dumps(made.build(), cls=JSONEncoder, indent=1) + "\n"


def dashboard_rows(experiment: Experiment) -> dict[str, list[Panel]]:
    """What is asked: first what decides, then each metric as CloudWatch's dashboard has it, servers and nodes."""

    def statistics(metric: Metric) -> list[Panel]:
        return [_arms(experiment, metric, one) for one in DETAILS[0].statistics(metric)]

    def ratios(metric: Metric) -> list[Panel]:
        return [_ratio(experiment, metric, one) for one in DETAILS[0].statistics(metric)]

    answering = {
        arm.name: f"{arm_usd_per_hour(experiment, arm):.6g} * count({series(experiment, _RUNNING, arm=arm.name)})"
        for arm in experiment.served_arms
    }
    load = {
        f"{name} {{{{arm}}}}": f"sum by (arm) ({series(experiment, name)})" for name in (_RUNNING, _WAITING)
    }
    if experiment.instance.neuron:
        node = TRN2_ON_DEMAND[experiment.instance.name].usd_per_hour
        answering["Trn2 nodes"] = f'{node:.6g} * count(kube_node_spec_taint{{key="{NEURON_TAINT_KEY}"}})'
    time, steps = "Time per output token, p50", "Tokens of a decode step, average"
    cost = f"USD per million output tokens of the run so far ({COST.better} is better)"
    first = [
        _arms(experiment, TPOT, "p50")._replace(title=f"{time} ({TPOT.better} is better)"),
        _ratio(experiment, TPOT, "p50")._replace(title=f"{time}: times better than {baselines(experiment)}"),
        _arms(experiment, TOKENS_PER_STEP, "Average")._replace(
            title=f"{steps} ({TOKENS_PER_STEP.better} is better)"
        ),
        Panel("Requests in the servers", load),
        Panel(cost, {_LEGEND: f"max by ({_CELL}) ({series(experiment, COST)})"}, "currencyUSD"),
        Panel(
            "USD an hour of the Trn2 nodes, and of it each arm that answers",
            answering,
            "currencyUSD",
            _HOURLY,
        ),
    ]
    whole = " of the whole cluster" if experiment.cluster.existing else ""
    active = {"{{provenance}}": f"max by (provenance) ({series(experiment, RUN_ACTIVE)})"}
    errors = [_arms(experiment, ERRORS, one) for one in ("Average", "Sum")]
    return {
        _FIRST: first,
        **{metric.name: statistics(metric) + ratios(metric) for metric in HEADLINES},
        "Runs and errors": [Panel("1 while a run is on", active), *errors],
        **{metric.name: statistics(metric) for metric in FURTHER},
        "Servers": list(_servers(experiment)),
        f"Nodes{whole}": [Panel(one.title, {one.statistic: one.promql}) for one in insights.NODE_METRICS],
        f"Trainium nodes{whole}": [
            Panel(one.title, {one.statistic: one.promql}) for one in insights.NEURON_NODE_METRICS
        ],
    }


def _arms(experiment: Experiment, metric: Metric, statistic: str) -> Panel:
    title = f"{metric.name} {statistic} ({metric.better} is better)"
    lines = {_LEGEND: value(experiment, metric, statistic, _CELL)}
    return Panel(title, lines, "s" if metric.unit == "s" else "short", metric.formula)


def _ratio(experiment: Experiment, metric: Metric, statistic: str) -> Panel:
    def of(arm: Arm) -> str:
        return value(experiment, metric, statistic, "class, concurrency", arm=arm.name)

    lines = {}
    for arm in experiment.served_arms:
        own, base = of(arm), of(experiment.baseline_of(arm))
        times = f"({base}) / ({own})" if metric.better == "lower" else f"({own}) / ({base})"
        lines[_LEGEND.replace("{{arm}}", arm.name)] = times
    return Panel(f"{metric.name} {statistic}: times better than {baselines(experiment)}", lines)


def _servers(experiment: Experiment) -> Iterator[Panel]:
    """Each metric that the catalogue lists for an arm's runtime; what is accepted only where the engine counts it."""
    names = dict.fromkeys(name for arm in experiment.served_arms for name in arm.runtime.metrics)

    def rate(name: str, by: str = "arm") -> str:
        return f"sum by ({by}) (rate({series(experiment, name)}[{PERIOD_S}s]))"

    if _DRAFTS in names:
        yield Panel(
            "Tokens of a step as the server counts them",
            {"{{arm}}": f"1 + {rate(_ACCEPTED)} / {rate(_DRAFTS)}"},
        )
    for name in names:
        if name.endswith("_total"):
            yield Panel(f"{name}, a second", {"{{arm}}": rate(name)})
        elif name.endswith("_seconds"):
            buckets = rate(f"{name}_bucket", "arm, le")
            yield Panel(
                name,
                {
                    f"p{100 * one:g} {{{{arm}}}}": f"histogram_quantile({one}, {buckets})"
                    for one in (0.5, 0.99)
                },
            )
        else:
            yield Panel(name, {"{{arm}}": f"max by (arm) ({series(experiment, name)})"})


def _words(experiment: Experiment) -> str:
    return (
        f"**{experiment.name}**: {experiment.description} {compared(experiment)} The row of runs says of each whether it was "
        "*measured* or *emulated*; verdicts and intervals stand in the report. On vLLM 0.9.1 a server's own time per output "
        "token and its count of generated tokens are those of *steps*: read time per token from the benchmark. Names of "
        "Neuron metrics are unproven, and neuron-monitor does not support devices that are held by resource claims."
    )


def _drawn(panel: Panel, in_line: int) -> timeseries.Panel:
    drawn = timeseries.Panel().title(panel.title).description(panel.description).unit(panel.unit).min(0)
    drawn.datasource(_SOURCE).span(max(_COLUMNS // in_line, 6)).height(_HEIGHT)
    drawn.legend(common.VizLegendOptions().show_legend(True))
    for place, (legend, query) in enumerate(panel.lines.items()):
        drawn.with_target(
            prometheus.Dataquery().expr(query).legend_format(legend).ref_id(f"Q{place}").range()
        )
    return drawn
