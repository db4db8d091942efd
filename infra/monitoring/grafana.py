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
from experiment.cost import arm_usd_per_hour
from experiment.naming import dashboard_name
from infra.monitoring import container_insights as insights
from infra.monitoring.promql import series
from infra.monitoring.rows import DETAILS, FURTHER, HEADLINES, baselines, compared

_COLUMNS, _HEIGHT, _LONGEST_UID = 24, 8, 40
_UNITS = {"s": "s", "USD": "currencyUSD"}
_CELL = "arm, class, concurrency"
_LEGEND = "{{class}} {{arm}} {{concurrency}}"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_DRAFTS, _ACCEPTED = "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_accepted_tokens_total"


class Panel(NamedTuple):
    """Lines over time."""

    title: str
    lines: dict[str, str]
    """Queries by their legend."""
    unit: str = "short"
    description: str = ""


class Row(NamedTuple):
    """Panels under a heading; all but the first row are folded up."""

    title: str
    panels: list[Panel]


def grafana_dashboard(experiment: Experiment) -> str:
    """The dashboard as JSON, for a file or a ConfigMap; whoever imports it chooses the data source."""
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
    first, *others = dashboard_rows(experiment)
    made.with_row(dashboard.Row(first.title))
    for panel in first.panels:
        made.with_panel(_drawn(panel, len(first.panels) // 2))
    for row in others:
        folded = dashboard.Row(row.title).collapsed(True)
        for panel in row.panels:
            folded.with_panel(_drawn(panel, len(row.panels)))
        made.with_row(folded)
    return json.dumps(made.build(), cls=JSONEncoder, indent=1) + "\n"


def dashboard_rows(experiment: Experiment) -> Iterator[Row]:
    """What is asked: first what decides, then each metric as CloudWatch's dashboard has it, servers and nodes."""
    yield Row(
        "At a glance",
        [
            _arms(experiment, TPOT, "p50"),
            _ratio(experiment, TPOT, "p50"),
            _arms(experiment, TOKENS_PER_STEP, "Average"),
            Panel(
                "Requests in the servers",
                {
                    f"{what} {{{{arm}}}}": f"sum by (arm) ({series(experiment, f'vllm:num_requests_{what}')})"
                    for what in ("running", "waiting")
                },
            ),
            Panel(
                f"{COST.name} ({COST.better} is better)",
                {_LEGEND: f"max by ({_CELL}) ({series(experiment, COST)})"},
                "currencyUSD",
                "Of the run so far, as in the report.",
            ),
            Panel(
                "USD an hour of the servers that answer",
                {
                    arm.name: f"{arm_usd_per_hour(experiment, arm):.6g} * "
                    f"count({series(experiment, 'vllm:num_requests_running', arm=arm.name)})"
                    for arm in experiment.served_arms
                },
                "currencyUSD",
                "List price of an arm's share of its node; a node bills whole, and also while no server answers.",
            ),
        ],
    )
    statistics = DETAILS[0].statistics
    for metric in HEADLINES:
        shown = [_arms(experiment, metric, one) for one in statistics(metric)]
        yield Row(metric.name, shown + [_ratio(experiment, metric, one) for one in statistics(metric)])
    active = f"max by (provenance) ({series(experiment, RUN_ACTIVE)})"
    yield Row(
        "Runs and errors",
        [
            Panel("1 while a run is on", {"{{provenance}}": active}),
            *(_arms(experiment, ERRORS, one) for one in ("Average", "Sum")),
        ],
    )
    for metric in FURTHER:
        yield Row(metric.name, [_arms(experiment, metric, one) for one in statistics(metric)])
    yield Row("Servers", list(_servers(experiment)))
    for title, metrics in (
        ("Nodes", insights.NODE_METRICS),
        ("Trainium nodes", insights.NEURON_NODE_METRICS),
    ):
        yield Row(title, [Panel(one.title, {one.statistic: one.promql}) for one in metrics])


def value(experiment: Experiment, metric: Metric, statistic: str, by: str = _CELL, **labels: str) -> str:
    """A statistic of CloudWatch over the same period."""
    if statistic.startswith("p"):
        quantile = f"{int(statistic[1:]) / 100:g}"
        return f"max by ({by}) ({series(experiment, metric, quantile=quantile, **labels)})"
    total, count = (
        f"sum by ({by}) (increase({series(experiment, metric, part, **labels)}[{PERIOD_S}s]))"
        for part in ("_sum", "_count")
    )
    return total if statistic == "Sum" else f"{total} / {count}"


def _arms(experiment: Experiment, metric: Metric, statistic: str) -> Panel:
    title = f"{metric.name} {statistic} ({metric.better} is better)"
    return Panel(
        title,
        {_LEGEND: value(experiment, metric, statistic)},
        _UNITS.get(metric.unit, "short"),
        metric.formula,
    )


def _ratio(experiment: Experiment, metric: Metric, statistic: str) -> Panel:
    on, several, times = "on (class, concurrency)", len(experiment.by_batch) > 1, []
    for arms in experiment.by_batch:
        of_batch = {"arm": "|".join(arm.name for arm in arms)} if several else {}
        own = value(experiment, metric, statistic, **of_batch)
        base = value(experiment, metric, statistic, "class, concurrency", arm=arms[0].name)
        times.append(
            f"({base}) / {on} group_right () ({own})"
            if metric.better == "lower"
            else f"({own}) / {on} group_left () ({base})"
        )
    title = f"{metric.name} {statistic}: times better than {baselines(experiment)}"
    return Panel(title, {_LEGEND: " or ".join(times)})


def _servers(experiment: Experiment) -> Iterator[Panel]:
    """Each metric that the catalogue lists for an arm's runtime; what is accepted only where the engine counts it."""
    names = dict.fromkeys(name for arm in experiment.served_arms for name in arm.runtime.metrics)
    if _DRAFTS in names:
        accepted, drafts = (
            f"sum by (arm) (increase({series(experiment, one)}[{PERIOD_S}s]))" for one in (_ACCEPTED, _DRAFTS)
        )
        yield Panel("Tokens of a step as the server counts them", {"{{arm}}": f"1 + {accepted} / {drafts}"})
    for name in names:
        if name.endswith("_total"):
            lines = {"{{arm}}": f"sum by (arm) (rate({series(experiment, name)}[{PERIOD_S}s]))"}
        elif name.endswith("_seconds"):
            buckets = f"sum by (arm, le) (rate({series(experiment, name, '_bucket')}[{PERIOD_S}s]))"
            lines = {
                f"p{percent} {{{{arm}}}}": f"histogram_quantile({percent / 100:g}, {buckets})"
                for percent in (50, 99)
            }
        else:
            lines = {"{{arm}}": f"max by (arm) ({series(experiment, name)})"}
        yield Panel(f"{name}{', a second' if name.endswith('_total') else ''}", lines)


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
            prometheus.Dataquery().expr(query).legend_format(legend).ref_id(chr(ord("A") + place)).range()
        )
    return drawn
