from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmark.metrics import COMPARED, PUBLISHED
from experiment import Experiment, Prompt
from infra.dashboard_body import dashboard_body
from infra.errors import InfraError
from tests.infra.templates import Deployment

KNOWN = {metric.cloudwatch_name: metric for metric in PUBLISHED}


def _graphs(experiment: Experiment) -> list[dict[str, Any]]:
    widgets = dashboard_body(experiment)["widgets"]
    return [widget["properties"] for widget in widgets if widget["type"] == "metric"]


def _metrics(experiment: Experiment) -> list[list[Any]]:
    return [line for graph in _graphs(experiment) for line in graph["metrics"] if len(line) > 1]


def test_the_deployed_body_is_the_generated_one(deployment: Deployment, experiment: Experiment) -> None:
    dashboard = deployment.only("AWS::CloudWatch::Dashboard").properties
    assert json.loads(dashboard["DashboardBody"]) == dashboard_body(experiment)
    assert dashboard["DashboardName"] == "qwen3-32b"


def test_every_published_metric_has_its_row_and_every_compared_one_its_ratio(experiment: Experiment) -> None:
    titles = [graph["title"] for graph in _graphs(experiment)]
    for metric in PUBLISHED:
        expected = 2 if metric in COMPARED else 1
        assert len([title for title in titles if title.startswith(metric.cloudwatch_name)]) == expected


def test_every_line_names_a_metric_of_the_registry_with_all_its_dimensions(experiment: Experiment) -> None:
    for namespace, name, *dimensions, _rendering in _metrics(experiment):
        assert namespace == "SpeculativeDecoding/qwen3-32b"
        assert tuple(dimensions[::2]) == KNOWN[name].dimensions
        values = dict(zip(dimensions[::2], dimensions[1::2], strict=True))
        assert values["Experiment"] == "qwen3-32b"
        assert values["Arm"] in {arm.name for arm in experiment.arms}
        assert values["Class"] in experiment.classes
        assert values["Concurrency"] == "4"


def test_both_arms_of_every_class_are_shown(experiment: Experiment) -> None:
    graph = next(g for g in _graphs(experiment) if g["title"].startswith("TimePerOutputToken p50"))
    labels = [line[-1]["label"] for line in graph["metrics"]]
    assert labels == [f"{name} {arm.name}" for name in experiment.classes for arm in experiment.arms]
    assert graph["stat"] == "p50"


@pytest.mark.parametrize(
    ("name", "expression"), [("TimePerOutputToken", "c0a0/c0a1"), ("OutputTokensPerSecond", "c0a1/c0a0")]
)
def test_a_ratio_above_one_means_that_the_treatment_is_better(
    experiment: Experiment, name: str, expression: str
) -> None:
    graph = next(g for g in _graphs(experiment) if g["title"].startswith(f"{name}: times better"))
    expressions = [line[0]["expression"] for line in graph["metrics"] if len(line) == 1]
    assert expressions[0] == expression
    assert len(expressions) == len(experiment.classes)
    hidden = {line[-1]["id"]: line for line in graph["metrics"] if len(line) > 1}
    assert "qwen-vllm" in hidden["c0a0"]
    assert "qwen-sd-vllm" in hidden["c0a1"]
    assert not any(line[-1]["visible"] for line in hidden.values())


def test_ids_are_unique_in_a_graph_as_cloudwatch_demands(opened: Experiment) -> None:
    for graph in _graphs(opened):
        ids = [line[-1]["id"] for line in graph["metrics"] if "id" in line[-1]]
        assert len(ids) == len(set(ids))


def test_widgets_stay_on_the_grid_and_do_not_overlap(opened: Experiment) -> None:
    taken: set[tuple[int, int]] = set()
    for widget in dashboard_body(opened)["widgets"]:
        assert widget["x"] + widget["width"] <= 24
        cells = {
            (column, row)
            for column in range(widget["x"], widget["x"] + widget["width"])
            for row in range(widget["y"], widget["y"] + widget["height"])
        }
        assert not cells & taken
        taken |= cells


def test_each_concurrency_has_graphs_of_its_own(opened: Experiment) -> None:
    used = {line[line.index("Concurrency") + 1] for line in _metrics(opened)}
    assert used == {"1", "4"}


def test_the_dashboard_says_that_numbers_can_be_emulated(experiment: Experiment) -> None:
    text = dashboard_body(experiment)["widgets"][0]["properties"]["markdown"]
    assert "*measured*" in text
    assert "*emulated*" in text


def test_more_metrics_than_cloudwatch_takes_are_refused_in_one_line(experiment: Experiment) -> None:
    many = tuple(Prompt(id=f"p{n}", class_name=f"class-{n}", text="x") for n in range(200))
    with pytest.raises(InfraError, match=r"^dashboard: \d+ metrics .* use fewer prompt classes") as refusal:
        dashboard_body(replace(experiment, prompts=many))
    assert "\n" not in str(refusal.value)
