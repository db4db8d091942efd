"""The Grafana dashboard of an experiment, from the same registry of metrics as CloudWatch's dashboard.

What the benchmark measures is by class; what the servers say of themselves is by arm, since they do not know classes. The
classic model, since file provisioning and the sidecar of Grafana's chart refuse version 2
(https://github.com/grafana/grafana/issues/127928), and Grafana 13 migrates it as it loads it. Written by Grafana's library.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, prometheus, text, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import DataSourceRef
from grafana_foundation_sdk.models.dashboard import VariableOption

from benchmark.metrics import COST, ERRORS, PERIOD_S, RUN_ACTIVE, TOKENS_PER_STEP, TPOT, Metric
from experiment import Experiment
from experiment.arms import Arm
from experiment.catalogue.runtimes import COUNTED_DRAFTS
from experiment.cost import arm_usd_per_hour, node_price
from experiment.naming import NEURON_TAINT_KEY, dashboard_name
from infra.monitoring import panels
from infra.monitoring.panels import DETAILS, baselines, series, value

ALL = ".*"
"""What a variable stands for while nothing is chosen."""
FIRST = "At a glance"
_COLUMNS, _HEIGHT, _MAX_UID_LENGTH = 24, 8, 40
_CELL, _LEGEND = "arm, class, concurrency", "{{class}}, {{arm}}, load {{concurrency}}"
_CHOSEN = ("arm", "class")
"""What a reader may choose: the names of the variables, and of the labels."""
_REQUESTS, _TOKENS, _USD, _SHARE = "suffix: requests", "suffix: tokens", "currencyUSD", "percentunit"
_UNITS = {"s": "s", "tokens": _TOKENS, "tokens/s": "suffix: tokens/s", "USD": _USD}
"""Grafana's by the registry's."""
_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


class Panel(NamedTuple):
    title: str
    lines: dict[str, str]
    """Queries by their legend."""
    unit: str
    """As Grafana names it."""
    description: str = ""


def grafana_dashboard(experiment: Experiment) -> str:
    """The dashboard as JSON, for a file or a ConfigMap; the person who imports it chooses the data source."""
    name = dashboard_name(experiment)
    made = dashboard.Dashboard(name).uid(name[:_MAX_UID_LENGTH]).tags(["speculative-decoding"])
    made.time("now-3h", "now").refresh("1m")
    made.with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
    made.with_variable(_choice("arm", "Arm", [arm.name for arm in experiment.served_arms]))
    made.with_variable(_choice("class", "Class", experiment.classes))
    made.with_panel(text.Panel().content(_words(experiment)).span(_COLUMNS).height(4))
    for title, row in dashboard_rows(experiment).items():
        if title == FIRST:
            made.with_row(dashboard.Row(title))
            for panel in row:
                made.with_panel(_drawn(panel, len(row) // 2))
        else:
            folded = dashboard.Row(title).collapsed(True)
            for panel in row:
                folded.with_panel(_drawn(panel, len(row)))
            made.with_row(folded)
    return json.dumps(made.build(), cls=JSONEncoder, indent=1) + "\n"


def _choice(name: str, label: str, values: Iterable[str]) -> dashboard.CustomVariable:
    """One, several or all of the values, which are those of the file: a new dashboard has no data to ask for them."""
    everything = VariableOption(selected=True, text=["All"], value=["$__all"])
    made = dashboard.CustomVariable(name).label(label).values(",".join(values))
    return made.multi(True).include_all(True).all_value(ALL).current(everything)


def _drawn(panel: Panel, in_line: int) -> timeseries.Panel:
    drawn = timeseries.Panel().title(panel.title).description(panel.description).unit(panel.unit).min(0)
    drawn.datasource(DataSourceRef(type_val="prometheus", uid="${datasource}"))
    drawn.span(max(_COLUMNS // in_line, 6)).height(_HEIGHT)
    drawn.legend(common.VizLegendOptions().show_legend(True))
    for place, (legend, query) in enumerate(panel.lines.items()):
        drawn.with_target(
            prometheus.Dataquery().expr(query).legend_format(legend).ref_id(f"Q{place}").range()
        )
    return drawn


def dashboard_rows(experiment: Experiment) -> dict[str, list[Panel]]:
    """First what decides, then each metric as CloudWatch's dashboard has it, servers and nodes."""

    def statistics(metric: Metric) -> list[Panel]:
        return [_arms(experiment, metric, one) for one in DETAILS[0].statistics(metric)]

    def ratios(metric: Metric) -> list[Panel]:
        return [_ratio(experiment, metric, one) for one in DETAILS[0].statistics(metric)]

    whole = " of the whole cluster" if experiment.cluster.existing else ""
    active = {"{{provenance}}": f"max by (provenance) ({series(experiment, RUN_ACTIVE)})"}
    share, failed = (_arms(experiment, ERRORS, one) for one in ("Average", "Sum"))
    return {
        FIRST: list(_first(experiment)),
        **{metric.title: statistics(metric) + ratios(metric) for metric in panels.HEADLINES},
        "Runs and errors": [
            Panel("A run is on", active, "bool_on_off"),
            share._replace(title="Share of the requests that failed", unit=_SHARE),
            failed._replace(title=f"{ERRORS.title}, in {PERIOD_S // 60} minutes", unit=_REQUESTS),
        ],
        **{metric.title: statistics(metric) for metric in panels.FURTHER},
        "Servers": list(_servers(experiment)),
        f"Nodes{whole}": list(map(_of_nodes, panels.NODE_METRICS)),
        f"Trainium nodes{whole}": list(map(_of_nodes, panels.NEURON_NODE_METRICS)),
    }


def _first(experiment: Experiment) -> Iterator[Panel]:
    yield _arms(experiment, TPOT, "p50")
    yield _ratio(experiment, TPOT, "p50")
    yield _arms(experiment, TOKENS_PER_STEP, "Average")
    load = {
        f"{word}, {{{{arm}}}}": f"sum by (arm) ({series(experiment, name, chosen=['arm'])})"
        for word, name in {"in progress": _RUNNING, "waiting": _WAITING}.items()
    }
    yield Panel("Requests in progress and waiting", load, _REQUESTS)
    cost = {_LEGEND: f"max by ({_CELL}) ({series(experiment, COST, chosen=_CHOSEN)})"}
    yield Panel(f"{COST.title} of the run so far ({COST.better} is better)", cost, _USD, COST.formula)
    hourly = {}
    for arm in experiment.served_arms:
        servers = series(experiment, _RUNNING, chosen=["arm"], arm=arm.name)
        hourly[arm.name] = f"{arm_usd_per_hour(experiment, arm):.6g} * count({servers})"
    if experiment.instance.neuron:
        node = node_price(experiment).usd_per_hour
        hourly["Trn2 nodes"] = f'{node:.6g} * count(kube_node_spec_taint{{key="{NEURON_TAINT_KEY}"}})'
    words = (
        "Quoted price. A node is billed while it runs, with or without servers. Every node with the taint of Trn2 nodes counts, "
        "also those of others."
    )
    yield Panel("Cost per hour of the Trn2 nodes, and of it each arm that answers", hourly, _USD, words)


def _of_nodes(metric: panels.InsightsMetric) -> Panel:
    words = metric.title.partition(",")[0]  # what follows is the unit, where CloudWatch has none
    return Panel(f"{words[0].upper()}{words[1:]}", {words: metric.promql}, metric.grafana_unit)


def _arms(experiment: Experiment, metric: Metric, statistic: str) -> Panel:
    lines = {_LEGEND: value(experiment, metric, statistic, _CELL, chosen=_CHOSEN)}
    title = f"{_named(metric, statistic)} ({metric.better} is better)"
    return Panel(title, lines, _UNITS.get(metric.unit, _REQUESTS), metric.formula)


def _named(metric: Metric, statistic: str) -> str:
    return f"{metric.title}, {'mean' if statistic == 'Average' else statistic}"


def _ratio(experiment: Experiment, metric: Metric, statistic: str) -> Panel:
    def of(arm: Arm, chosen: Sequence[str]) -> str:
        return value(experiment, metric, statistic, "class, concurrency", chosen=chosen, arm=arm.name)

    lines = {}
    for arm in experiment.served_arms:  # the baseline is divided by, whichever arms are chosen
        own, base = of(arm, _CHOSEN), of(experiment.baseline_of(arm), ["class"])
        times = f"({base}) / ({own})" if metric.better == "lower" else f"({own}) / ({base})"
        lines[_LEGEND.replace("{{arm}}", arm.name)] = times
    title = f"{_named(metric, statistic)}: times better than {baselines(experiment)}"
    return Panel(title, lines, "suffix: x", "Above 1: better than the baseline.")


def _servers(experiment: Experiment) -> Iterator[Panel]:
    """Each metric that the catalogue lists for an arm's runtime; what is accepted only where the engine counts it."""
    names = dict.fromkeys(name for arm in experiment.served_arms for name in arm.runtime.metrics)

    def rate(name: str, by: str = "arm") -> str:
        return f"sum by ({by}) (rate({series(experiment, name, chosen=['arm'])}[{PERIOD_S}s]))"

    if COUNTED_DRAFTS in names:
        steps = {
            "{{arm}}": f"1 + {rate('vllm:spec_decode_num_accepted_tokens_total')} / {rate(COUNTED_DRAFTS)}"
        }
        yield Panel("Tokens of a step as the server counts them", steps, _TOKENS)
    for name in names:
        title, unit = panels.OF_SERVERS[name]
        if name.endswith("_per_pos_total"):
            lines = {"{{arm}}, position {{position}}": rate(name, "arm, position")}
        elif name.endswith("_total"):
            lines = {"{{arm}}": rate(name)}
        elif name.endswith("_seconds"):
            buckets = rate(f"{name}_bucket", "arm, le")
            lines = {
                f"{{{{arm}}}}, p{100 * one:g}": f"histogram_quantile({one}, {buckets})" for one in (0.5, 0.99)
            }
        else:
            lines = {"{{arm}}": f"max by (arm) ({series(experiment, name, chosen=['arm'])})"}
        yield Panel(title, lines, unit, f"{name} of vLLM")


def _words(experiment: Experiment) -> str:
    return (
        f"**{experiment.name}**: {experiment.description} {panels.compared(experiment)} The row *Runs and errors* shows whether a "
        "run is *measured* or *emulated*; verdicts and intervals are in its report. On vLLM 0.9.1 a server's own time per output "
        "token and its count of generated tokens are those of *steps*: read the time per token from the benchmark. The names of "
        "Neuron metrics were not verified on a device, and neuron-monitor does not support devices that are held by resource claims."
    )
