from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest

from infra.monitoring.alarms import MetricAlarm, alarms
from infra.monitoring.dashboards import dashboard
from tests.conftest import REFERENCE, ROOT
from tests.experiment.edits import put
from tests.infra.templates import Deployments, resolved
from trnspec.benchmark.metrics import (
    COMPARED,
    ERRORS,
    OUTPUT_TOKENS_PER_S,
    PUBLISHED,
    TOKENS_PER_STEP,
    TPOT,
)
from trnspec.core.findings import Misuse
from trnspec.experiment import Experiment, Prompt, load
from trnspec.experiment.cost import arm_usd_per_hour

PUBLISHED_NAMES = {metric.cloudwatch_name for metric in PUBLISHED}
COMPARED_NAMES = {one.cloudwatch_name for one in (*COMPARED, TOKENS_PER_STEP, OUTPUT_TOKENS_PER_S, ERRORS)}
Shown = dict[str, Any]


@cache
def sweep(arms: int, *, concurrency: tuple[int, ...] = (4,)) -> Experiment:
    """The reference with so many arms, at these loads."""
    experiment = load(REFERENCE)
    more = (replace(experiment.arms[1], name=f"qwen-sd-k{number}") for number in range(1, arms))
    settings = experiment.benchmark.model_copy(update={"concurrency": concurrency})
    return replace(experiment, arms=(experiment.baseline, *more), benchmark=settings)


def page(experiment: Experiment) -> list[Shown]:
    """The widgets of the page, within CloudWatch's limits
    (https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_limits.html)."""
    widgets: list[Shown] = json.loads(dashboard(experiment))["widgets"]
    drawn = [one["properties"] for one in widgets if one["type"] == "metric"]
    for graph in drawn:
        assert (graph["region"], graph["period"]) == (experiment.cluster.region, 300)
        before: list[Any] = []
        for line in graph["metrics"]:  # `.` repeats what stands there in the line before
            assert "stat" not in line[-1], "a line has that of its graph"
            line[:-1] = [before[place] if one == "." else one for place, one in enumerate(line[:-1])]
            before = line
    metrics = [len(graph["metrics"]) for graph in drawn]
    assert len(widgets) <= 500
    assert max(metrics) <= 500
    assert sum(metrics) <= 2500
    return widgets


def graphs(experiment: Experiment) -> list[Shown]:
    return [widget["properties"] for widget in page(experiment) if widget["type"] == "metric"]


def titled(shown: list[Shown], beginning: str) -> list[Shown]:
    return [one for one in shown if one.get("title", "").startswith(beginning)]


def metrics(experiment: Experiment) -> list[dict[str, str]]:
    """Namespace, name and dimensions of every metric that is drawn."""
    lines = [line[:-1] for graph in graphs(experiment) for line in graph["metrics"] if len(line) > 1]
    pairs = [["Namespace", line[0], "Metric", *line[1:]] for line in lines]
    return [dict(zip(one[::2], one[1::2], strict=True)) for one in pairs]


def words(experiment: Experiment) -> str:
    return " ".join(str(one["properties"]["markdown"]) for one in page(experiment) if one["type"] == "text")


def test_the_deployed_dashboard_shows_the_alarms_that_are_deployed(made: Deployments) -> None:
    alarms = {
        f"<{one.logical_id}.Arn>"
        for type_ in ("AWS::CloudWatch::Alarm", "AWS::CloudWatch::CompositeAlarm")
        for one in made.reference.resources(type_)
    }
    body = json.loads(resolved(made.reference.only("AWS::CloudWatch::Dashboard").properties["DashboardBody"]))
    (shown,) = (one["properties"]["alarms"] for one in body["widgets"] if one["type"] == "alarm")
    assert set(shown) == alarms
    found = made.opened.only("AWS::CloudWatch::Dashboard").properties
    assert found["DashboardName"] == "opened-us-east-2"


def test_every_experiment_has_a_page_with_each_metric_of_each_arm_at_every_load_side_by_side() -> None:
    for path in (ROOT / "experiments").glob("*.yaml"):
        example = load(path)
        measured = [one for one in metrics(example) if "Arm" in one]
        assert {one["Arm"] for one in measured} == {arm.name for arm in example.arms}
        named = PUBLISHED_NAMES if len(example.arms) < 16 else COMPARED_NAMES
        assert {(one["Metric"], one["Concurrency"]) for one in measured} == {
            (name, str(load)) for name in named for load in example.benchmark.concurrency
        }
        widgets = page(example)
        corners = [(one["x"], one["y"]) for one in widgets]
        assert len(set(corners)) == len(corners)
        assert all(one["x"] + one["width"] <= 24 for one in widgets)


def test_every_arm_that_has_an_alarm_has_its_metric_on_the_page() -> None:
    """Both are made of one list. An alarm names its metric in its sources or in its query, its arm at the end of its name."""
    example = load(REFERENCE)
    drawn = {(one["Metric"], one["Arm"]) for one in metrics(example) if "Arm" in one}
    for of, name in ((ERRORS, "error-rate"), (TPOT, "p99-tpot")):
        found = [one for one in alarms(example) if isinstance(one, MetricAlarm) and name in one.name]
        watched = {one.name.partition(f"{name}-")[2] for one in found}
        assert {arm for metric, arm in drawn if metric == of.cloudwatch_name} == watched
        named = {f"{one.expression} {' '.join(each.name for each in one.sources)}" for one in found}
        assert all(of.cloudwatch_name in text for text in named)


@pytest.mark.slow
def test_a_sweep_of_16_arms_shows_less_of_each_on_its_page_and_loses_no_arm() -> None:
    small, large = load(REFERENCE), sweep(16)
    drawn = {(one["Arm"], one["Class"]) for one in metrics(large) if one["Metric"] == TPOT.cloudwatch_name}
    assert drawn == {(arm.name, class_name) for arm in large.arms for class_name in large.classes}
    shown = [sum(line[-1].get("visible", True) for line in graph["metrics"]) for graph in graphs(large)]
    assert max(shown) <= 24, "more cannot be told apart"
    assert words(small).startswith("# qwen3-32b\n")
    assert "leave no room" not in words(small)
    assert "leave no room for p90, p99, and metrics that are not compared" in words(large)
    larger = sweep(16, concurrency=(1, 4, 16))
    statistics = {one["stat"] for one in graphs(larger) if one["title"].startswith(TPOT.cloudwatch_name)}
    assert statistics == {"p50"}
    assert "every metric but the time per output token" in words(larger)


def test_a_page_shows_less_where_it_would_have_too_many_widgets() -> None:
    experiment = sweep(2, concurrency=tuple(range(1, 41)))
    prompts = tuple(replace(one, class_name="Erklärung") for one in experiment.prompts)
    example = replace(experiment, prompts=prompts)
    assert len(page(example)) > 200
    assert "leave no room" in words(example)
    labels = {one["Class"] for one in metrics(example) if "Class" in one}
    assert labels == {"Erkl%C3%A4rung"}, "as it is published"


def test_a_compared_metric_has_all_arms_per_class_and_their_ratio(variation: Any) -> None:
    experiment = load(REFERENCE)
    drawn = graphs(experiment)
    for metric, statistic in product((*COMPARED, TOKENS_PER_STEP), ("p50", "p90", "p99")):
        values, ratio = titled(drawn, f"{metric.cloudwatch_name} {statistic}")
        assert values["stat"] == ratio["stat"] == statistic
        assert [line[-1]["label"] for line in values["metrics"]] == [
            f"{name} {arm.name}" for name in experiment.classes for arm in experiment.arms
        ]
        assert "concurrency 4" in values["title"]
        assert "times better than qwen-vllm" in ratio["title"]
        shown = [line[0] for line in ratio["metrics"] if len(line) == 1]
        assert [line["label"] for line in shown] == [f"{name} qwen-sd-vllm" for name in experiment.classes]
        # Above 1 the treatment is better.
        assert shown[0]["expression"] == ("c0a0/c0a1" if metric.better == "lower" else "c0a1/c0a0")
        assert ratio["annotations"]["horizontal"][0]["value"] == 1
        hidden = {line[-1]["id"]: line for line in ratio["metrics"] if len(line) > 1}
        assert ("qwen-vllm" in hidden["c0a0"], "qwen-sd-vllm" in hidden["c0a1"]) == (True, True)
        assert not any(line[-1]["visible"] for line in hidden.values())
    batches = load(variation(put("serving.max_num_seqs", [4, 8])))
    (ratio,) = titled(graphs(batches), "TimePerOutputToken p50: times better")
    shown = [line[0]["expression"] for line in ratio["metrics"] if len(line) == 1]
    assert shown[:2] == ["c0a0/c0a1", "c0a2/c0a3"], "over the baseline of the arm's own batch"
    (cost,) = titled(drawn, "USD per million")
    dollars, throughput = cost["metrics"][0][0]["expression"].split("/", 1)
    price = arm_usd_per_hour(experiment, experiment.baseline)
    assert float(dollars) == pytest.approx(price / 3600 * 1e6, rel=1e-5)
    assert (throughput, cost["metrics"][1][1], cost["stat"]) == (
        "(4*c0a0)",
        "OutputTokensPerSecond",
        "Average",
    )
    assert [graph["stat"] for graph in titled(drawn, "Errors")] == ["Average", "Sum"]


def test_neuron_metrics_are_by_node_only_but_with_the_device_plugin_and_the_dashboard_says_so() -> None:
    experiment = load(REFERENCE)
    plugin = experiment.baseline.serving.model_copy(update={"allocation": "device-plugin"})
    arms = tuple(replace(arm, serving=plugin) for arm in experiment.arms)
    for example, pods in ((experiment, []), (replace(experiment, arms=arms), [arm.name for arm in arms])):
        drawn = metrics(example)
        assert "node_neuroncore_utilization" in {one["Metric"] for one in drawn}
        assert [one["PodName"] for one in drawn if one["Metric"].startswith("pod_")] == pods
        assert ("by node only" in words(example)) == (not pods)


@pytest.mark.slow
def test_more_than_cloudwatch_or_a_template_takes_is_refused_in_one_line(experiment: Experiment) -> None:
    many = tuple(Prompt(id=f"p{n}", class_name=f"class-{n}", prompt="x", contents=("x",)) for n in range(210))
    for example, line in (
        (replace(experiment, prompts=many), r"^dashboard: .* use fewer arms, prompt classes"),
        (sweep(300), r"^dashboard: .* in one graph, .*use fewer arms"),
    ):
        with pytest.raises(Misuse, match=line) as refusal:
            dashboard(example)
        assert "\n" not in str(refusal.value)
