from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchmark.metrics import COMPARED, PUBLISHED, TOKENS_PER_STEP, TPOT
from core.findings import Misuse
from experiment import Experiment, Prompt, load
from experiment.cost import arm_usd_per_hour
from experiment.model import SearchedLoad, Serve
from infra.monitoring import panels
from infra.monitoring.dashboards import dashboards
from tests.conftest import REFERENCE, ROOT
from tests.experiment.edits import put
from tests.infra.templates import Deployments, resolved

PUBLISHED_NAMES = {metric.cloudwatch_name: metric for metric in PUBLISHED}
INSIGHTS_NAMES = {
    one.name: one
    for one in (*panels.NODE_METRICS, *panels.NEURON_NODE_METRICS, panels.NEURON_POD, panels.SERVICE_PODS)
}
SERVE = Serve(
    arm="qwen-sd-vllm",
    replicas=1,
    max_replicas=2,
    certificate_arn="arn:aws:acm:us-east-2:123456789012:certificate/a",
    client_cidrs=("10.20.0.0/16",),
)
Shown = dict[str, Any]


@cache
def sweep(arms: int, *, concurrency: tuple[int, ...] = (4,), searched: bool = False) -> Experiment:
    """The reference with so many arms, at these loads or at those that a search tries."""
    experiment = load(REFERENCE)
    more = (replace(experiment.arms[1], name=f"qwen-sd-k{number}") for number in range(1, arms))
    search = SearchedLoad.model_validate({"search": [1, 64]}) if searched else None
    settings = experiment.benchmark.model_copy(update={"concurrency": concurrency, "load": search})
    return replace(experiment, arms=(experiment.baseline, *more), benchmark=settings)


def with_device_plugin(experiment: Experiment) -> Experiment:
    plugin = experiment.baseline.serving.model_copy(update={"allocation": "device-plugin"})
    return replace(experiment, arms=tuple(replace(arm, serving=plugin) for arm in experiment.arms))


def pages(experiment: Experiment) -> dict[str, list[Shown]]:
    """The widgets of every page, within CloudWatch's limits
    (https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_limits.html)."""
    found = {page.name: json.loads(page.body)["widgets"] for page in dashboards(experiment).values()}
    for widgets in found.values():
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
    return found


def graphs(experiment: Experiment) -> list[Shown]:
    shown = pages(experiment).items()
    widgets = [one for name, page in shown if not name.endswith("-service") for one in page]
    return [widget["properties"] for widget in widgets if widget["type"] == "metric"]


def titled(shown: list[Shown], beginning: str) -> list[Shown]:
    return [one for one in shown if one.get("title", "").startswith(beginning)]


def metric_lines(experiment: Experiment) -> Iterator[tuple[list[str], Shown]]:
    for graph in graphs(experiment):
        for *names, rendering in graph["metrics"]:
            if names:
                yield names, rendering


def words(experiment: Experiment) -> str:
    first = next(iter(pages(experiment).values()))
    return " ".join(one["properties"]["markdown"] for one in first if one["type"] == "text")


def test_the_deployed_dashboards_show_the_alarms_that_are_deployed(made: Deployments) -> None:
    alarms = {
        f"<{one.logical_id}.Arn>"
        for type_ in ("AWS::CloudWatch::Alarm", "AWS::CloudWatch::CompositeAlarm")
        for one in made.reference.resources(type_)
    }
    body = json.loads(resolved(made.reference.only("AWS::CloudWatch::Dashboard").properties["DashboardBody"]))
    (shown,) = (one["properties"]["alarms"] for one in body["widgets"] if one["type"] == "alarm")
    assert set(shown) == alarms
    found = made.rented.properties("AWS::CloudWatch::Dashboard")
    assert {one["DashboardName"] for one in found} == {"rented-us-east-2", "rented-us-east-2-service"}


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda path: path.stem)
def test_cloudwatch_takes_the_dashboards_of_every_experiment_side_by_side(path: Path) -> None:
    example = load(path)
    shown = {names[names.index("Arm") + 1] for names, _ in metric_lines(example) if "Arm" in names}
    assert shown == {arm.name for arm in example.served_arms}
    for widgets in pages(example).values():
        corners = [(one["x"], one["y"]) for one in widgets]
        assert len(set(corners)) == len(corners)
        assert all(one["x"] + one["width"] <= 24 for one in widgets)


def test_a_class_in_any_script_is_watched_as_it_is_published(reference: Experiment) -> None:
    prompts = tuple(replace(one, class_name="Erklärung") for one in reference.prompts)
    lines = [names for names, _ in metric_lines(replace(reference, prompts=prompts)) if "Class" in names]
    assert {names[names.index("Class") + 1] for names in lines} == {"Erkl%C3%A4rung"}


SEARCH_EXPRESSION = re.compile(
    r"""SEARCH\('\{"(?P<namespace>[^"]+)",(?P<dimensions>\w+(,\w+)*)\} MetricName="(?P<metric>\w+)" Arm="(?P<arm>[^"]+)" """
    r"""Class="(?P<class_name>[^"]+)"', '(p\d\d|Average|Sum|SampleCount|Minimum|Maximum)', 300\)"""
)
"""https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/search-expression-syntax.html"""


@pytest.mark.parametrize("arms", [2, 16])
def test_loads_that_are_searched_are_found_for_every_arm_and_class_and_nothing_is_divided(arms: int) -> None:
    searched = sweep(arms, searched=True)
    found = {}
    for graph in graphs(searched):
        sought = [line[-1] for line in graph["metrics"] if "SEARCH(" in line[-1].get("expression", "")]
        assert len(sought) <= 100, "as many as a graph takes"
        for one in sought:
            parsed = SEARCH_EXPRESSION.fullmatch(one["expression"])
            assert parsed, one
            assert len(one["expression"]) <= 1024
            assert parsed["namespace"] == "SpeculativeDecoding/qwen3-32b"
            assert tuple(parsed["dimensions"].split(",")) == PUBLISHED_NAMES[parsed["metric"]].dimensions
            assert "every load" in graph["title"]
            found[parsed["metric"], parsed["arm"], parsed["class_name"]] = one["label"]
    cells = product(PUBLISHED_NAMES, (arm.name for arm in searched.served_arms), searched.classes)
    assert set(found) == set(cells)
    assert not any("better than" in graph["title"] or "USD" in graph["title"] for graph in graphs(searched))
    assert "a graph has a line for each that was measured" in words(searched)


def test_a_sweep_of_16_arms_takes_several_pages_that_say_which_they_are_and_loses_no_arm(
    experiment: Experiment,
) -> None:
    large = sweep(16)
    names = list(pages(large))
    assert len(names) > 1
    assert names == ["qwen3-32b-us-east-2"] + [f"qwen3-32b-us-east-2-{n}" for n in range(2, len(names) + 1)]
    lines = [names for names, _ in metric_lines(large) if names[1] == TPOT.cloudwatch_name]
    assert {(names[names.index("Arm") + 1], names[names.index("Class") + 1]) for names in lines} == {
        (arm.name, class_name) for arm in large.arms for class_name in large.classes
    }
    shown = [sum(line[-1].get("visible", True) for line in graph["metrics"]) for graph in graphs(large)]
    assert max(shown) <= 24, "more cannot be told apart"
    said = words(experiment)
    assert said.startswith("# qwen3-32b\n")
    assert ("*measured*" in said, "*emulated*" in said) == (True, True)
    assert words(large).startswith(f"# qwen3-32b (1 of {len(names)})\n")


def test_every_line_names_a_metric_that_somebody_publishes_and_each_is_shown_at_every_concurrency(
    experiment: Experiment, opened: Experiment
) -> None:
    shown = set()
    for example in (with_device_plugin(experiment), opened):
        for (namespace, name, *dimensions), rendering in metric_lines(example):
            values = dict(zip(dimensions[::2], dimensions[1::2], strict=True))
            if namespace == "ContainerInsights":
                assert {*values} == {*INSIGHTS_NAMES[name].dimensions}
                assert values["ClusterName"] == example.name
                continue
            assert namespace == f"SpeculativeDecoding/{example.name}"
            assert {*values} == {*PUBLISHED_NAMES[name].dimensions}
            assert values["Experiment"] == example.name
            assert values["Arm"] in {arm.name for arm in example.arms}
            assert values["Class"] in example.classes
            if rendering.get("visible", True):
                shown.add((example.name, name, values["Concurrency"]))
    loads = (("qwen3-32b", "4"), ("opened", "1"), ("opened", "4"))
    assert shown == {(one, name, load) for one, load in loads for name in PUBLISHED_NAMES}


def test_a_compared_metric_has_all_arms_per_class_and_their_ratio(experiment: Experiment) -> None:
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


def test_a_ratio_is_over_the_baseline_of_the_arms_own_batch(variation: Any) -> None:
    batches = load(variation(put("serving.max_num_seqs", [4, 8])))
    (ratio,) = titled(graphs(batches), "TimePerOutputToken p50: times better")
    shown = [line[0]["expression"] for line in ratio["metrics"] if len(line) == 1]
    assert shown[:2] == ["c0a0/c0a1", "c0a2/c0a3"]


def test_the_cost_of_an_arm_is_its_price_over_its_throughput_and_errors_are_a_share_and_a_count(
    experiment: Experiment,
) -> None:
    (graph,) = titled(graphs(experiment), "USD per million")
    source = next(line for line in graph["metrics"] if line[-1].get("id") == "c0a0")
    assert (source[1], graph["stat"]) == ("OutputTokensPerSecond", "Average")
    dollars, throughput = graph["metrics"][0][0]["expression"].split("/", 1)
    price = arm_usd_per_hour(experiment, experiment.baseline)
    assert float(dollars) == pytest.approx(price / 3600 * 1e6, rel=1e-5)
    assert throughput == "(4*c0a0)"
    assert [graph["stat"] for graph in titled(graphs(experiment), "Errors")] == ["Average", "Sum"]


def test_neuron_metrics_are_by_node_only_but_with_the_device_plugin_and_the_dashboard_says_so(
    experiment: Experiment,
) -> None:
    changed = with_device_plugin(experiment)
    for example, holders in ((experiment, []), (changed, [arm.name for arm in experiment.arms])):
        lines = [names for names, _ in metric_lines(example)]
        assert "node_neuroncore_utilization" in {names[1] for names in lines}
        assert [names[-1] for names in lines if names[1].startswith("pod_")] == holders
        assert ("by node only" in words(example)) == (not holders)


def test_so_large_a_sweep_that_not_all_fits_keeps_the_comparison_and_says_what_it_lacks(
    experiment: Experiment,
) -> None:
    large = sweep(16, concurrency=(1, 4, 16))
    statistics = {graph["stat"] for graph in graphs(large) if graph["title"].startswith(TPOT.cloudwatch_name)}
    assert "p50" in statistics
    assert len(statistics) < 3
    assert "leave no room for p90" in words(large)
    assert "leave no room" not in words(experiment)


def test_more_than_cloudwatch_or_a_template_takes_is_refused_in_one_line(experiment: Experiment) -> None:
    many = tuple(Prompt(id=f"p{n}", class_name=f"class-{n}", text="x") for n in range(210))
    for example, line in (
        (replace(experiment, prompts=many), r"^dashboard: .* use fewer arms, prompt classes"),
        (sweep(300), r"^dashboard: \d+ metrics in one graph.*use fewer arms$"),
    ):
        with pytest.raises(Misuse, match=line) as refusal:
            dashboards(example)
        assert "\n" not in str(refusal.value)


def service_graphs(experiment: Experiment, serve: Serve = SERVE) -> list[Shown]:
    """Properties of what is on the service's page."""
    page = pages(replace(experiment, serve=serve))["qwen3-32b-us-east-2-service"]
    return [widget["properties"] for widget in page]


def test_the_services_page_is_there_once_something_is_promoted_with_its_cost_and_its_load_balancer(
    experiment: Experiment,
) -> None:
    assert not [name for name in pages(experiment) if name.endswith("-service")]
    for serve, searches in ((SERVE, 4), (SERVE.model_copy(update={"certificate_arn": None}), 0)):
        assert json.dumps(service_graphs(experiment, serve)).count("SEARCH(") == searches
    (replicas,) = titled(service_graphs(experiment), "Replicas")
    assert replicas["annotations"]["horizontal"][0]["value"] == SERVE.max_replicas
    (cost,) = titled(service_graphs(experiment), "USD an hour")
    shown, source = cost["metrics"]
    price = arm_usd_per_hour(experiment, experiment.arms[1])
    assert shown[-1]["expression"] == f"{price:.6g}*replicas"
    assert source[1] == "service_number_of_running_pods"
    assert source[source.index("Service") + 1] == "qwen3-32b-service"
    assert source[-1]["id"] == "replicas"


def test_the_log_query_reads_the_lines_of_both_engines_in_pods_of_the_arm(experiment: Experiment) -> None:
    (log,) = titled(service_graphs(experiment), "Requests in one replica")
    assert log["query"].startswith("SOURCE '/aws/containerinsights/qwen3-32b/application'")
    pattern = log["query"].split(" | parse log /")[1].split("/ | filter")[0].replace("(?<", "(?P<")
    for line, counts in (
        ("tokens/s, Running: 4 reqs, Waiting: 11 reqs, GPU KV cache usage: 0.1%", ("4", "11")),
        ("tokens/s, Running: 2 reqs, Swapped: 0 reqs, Pending: 7 reqs, GPU KV", ("2", "7")),
    ):
        match = re.search(pattern, line)
        assert match is not None
        assert match.group("running", "waiting") == counts
    (pods,) = re.findall(r"pod_name like /(.+?)/", log["query"])
    assert re.search(pods, "qwen-sd-vllm-5d9c7b6f4-x2x9z")
    assert not re.search(pods, "qwen-sd-vllm-k3-5d9c7b6f4-x2x9z")
