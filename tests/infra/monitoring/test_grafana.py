"""The dashboard for Grafana: its shape, its registry, and that Prometheus can read every query."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.models.dashboard import Dashboard

from benchmark.metrics import PUBLISHED
from experiment import Experiment, load
from infra.monitoring.grafana import dashboard_rows, grafana_dashboard
from infra.monitoring.panels import NEURON_NODE_METRICS, NODE_METRICS
from tests.conftest import ROOT
from tests.experiment.edits import Variation, put
from tests.infra.conftest import changed
from tests.infra.monitoring.promtool import needs_promtool, promtool

HOURLY = "Cost per hour of the Trn2 nodes, and of it each arm that answers"
GRAFANA_UNITS = {"s", "percent", "percentunit", "bytes", "currencyUSD", "bool_on_off"}
"""Ids of @grafana/data, valueFormats/categories.ts."""
Shown = dict[str, Any]


@pytest.fixture(scope="module")
def dashboard(experiment: Experiment) -> Shown:
    found: Shown = json.loads(grafana_dashboard(experiment))
    return found


def graphs(dashboard: Shown) -> list[Shown]:
    panels = [one for row in dashboard["panels"] for one in (row, *row.get("panels", ()))]
    return [panel for panel in panels if panel["type"] == "timeseries"]


def queries(dashboard: Shown) -> list[str]:
    return [target["expr"] for panel in graphs(dashboard) for target in panel["targets"]]


def test_the_library_reads_what_was_written_and_the_first_glance_answers_what_decides(
    dashboard: Shown, experiment: Experiment
) -> None:
    assert Dashboard.from_json(dashboard).title == dashboard["title"] == "qwen3-32b-us-east-2"
    assert dashboard["schemaVersion"] == Dashboard().schema_version >= 42
    assert len(dashboard["uid"]) <= 40
    seen = [panel for panel in dashboard["panels"] if panel["type"] == "timeseries"]
    assert [panel["title"] for panel in seen] == [
        "Time per output token, p50 (lower is better)",
        "Time per output token, p50: times better than qwen-vllm",
        "Tokens of a decode step, mean (higher is better)",
        "Requests in progress and waiting",
        "Cost per million output tokens of the run so far (lower is better)",
        HOURLY,
    ]
    assert seen[0]["targets"][0]["legendFormat"] == "{{class}}, {{arm}}, load {{concurrency}}"
    assert seen[0]["options"]["legend"]["showLegend"] is True
    assert 'quantile="0.5"' in seen[0]["targets"][0]["expr"]
    rows = dashboard_rows(changed(experiment, experiment.name, existing="team")).keys()
    assert {"Nodes of the whole cluster", "Trainium nodes of the whole cluster"} <= rows
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    for name, choices in {"arm": "qwen-vllm,qwen-sd-vllm", "class": ",".join(experiment.classes)}.items():
        one = variables[name]
        assert (one["query"], one["allValue"], one["current"]["value"]) == (choices, ".*", ["$__all"])


@pytest.mark.parametrize("file", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_panel_has_a_unit_and_speaks_in_words(file: Path) -> None:
    """Of every runtime: `short` is Grafana's word for no unit."""
    for panel in graphs(json.loads(grafana_dashboard(load(file)))):
        title, unit = panel["title"], panel["fieldConfig"]["defaults"]["unit"]
        assert unit in GRAFANA_UNITS or re.fullmatch("suffix: [a-z/]+", unit), title
        legends = [re.sub(r"{{\w+}}", "", target["legendFormat"]) for target in panel["targets"]]
        for words in (title, *legends):
            assert not re.search(r"[a-z]_[a-z]|\w:\w|[a-z][A-Z]", words.replace("NeuronCores", "")), words
        if re.match("(Time to|Time per|End-to-end|Inter-token)", title) and "times better" not in title:
            assert unit == "s", title


def test_panels_lie_side_by_side_and_a_query_keeps_what_its_legend_names(dashboard: Shown) -> None:
    """Otherwise all lines of a panel would be one."""
    for row in (dashboard["panels"], *(row.get("panels", ()) for row in dashboard["panels"])):
        places = [panel["gridPos"] for panel in row]
        columns = [
            (at, product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
            for at in places
        ]
        taken = [cell for _, cells in columns for cell in cells]
        assert len(taken) == len(set(taken))
        assert all(x < 24 for x, _ in taken)
    for target in (target for panel in graphs(dashboard) for target in panel["targets"]):
        for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
            kept = re.findall(r"by \(([^)]*)\)", target["expr"])
            assert kept, target
            assert all(label in by for by in kept), target


def test_every_metric_of_the_registry_is_asked_for_by_the_chosen_arms_and_classes(
    dashboard: Shown, experiment: Experiment
) -> None:
    asked = "\n".join(queries(dashboard))
    own = experiment.baseline.runtime.metrics
    assert [metric.name for metric in PUBLISHED if metric.prometheus_name not in asked] == []
    assert [one for one in own if f"{one}{{" not in asked and f"{one}_bucket{{" not in asked] == []
    assert [one for one in (*NODE_METRICS, *NEURON_NODE_METRICS) if one.promql not in asked] == []
    for metric, labels in re.findall(r"((?:trnspec_|vllm:)\w+){([^}]*)}", asked):
        measured = metric.startswith("trnspec_") and metric != "trnspec_run_active"
        assert ('class=~"$class"' in labels) == measured, labels
        compared_with = measured and 'arm="qwen-vllm"' in labels  # a baseline is divided by, chosen or not
        assert ('arm=~"$arm"' in labels) or compared_with or metric == "trnspec_run_active", labels


@needs_promtool
def test_prometheus_reads_every_query_and_each_arm_is_divided_by_the_baseline_of_its_own_batch(
    variation: Variation, tmp_path: Path
) -> None:
    dashboard = json.loads(grafana_dashboard(load(variation(put("serving.max_num_seqs", [4, 8])))))
    titles = {panel["title"]: panel["targets"] for panel in graphs(dashboard)}
    targets = titles["Time per output token, p50: times better than qwen-vllm (1 more for other batches)"]
    divided = {target["legendFormat"]: target["expr"].split(") / (") for target in targets}
    assert len(divided) == 4
    for size in ("", "-b8"):
        base, own = divided["{{class}}, qwen-sd-vllm" + size + ", load {{concurrency}}"]
        assert (f'arm="qwen-vllm{size}"' in base, f'arm="qwen-sd-vllm{size}"' in own) == (True, True)
    rules = [{"record": f"panel:{number}", "expr": one} for number, one in enumerate(queries(dashboard))]
    assert f"{len(rules)} rules found" in promtool(
        "check", {"groups": [{"name": "x", "rules": rules}]}, tmp_path
    )
