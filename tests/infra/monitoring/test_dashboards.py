from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk.assertions import Template

from benchmark.metrics import BY_NAME, COMPARED, PUBLISHED, TOKENS_PER_STEP, TPOT
from core.findings import Misuse
from experiment import Experiment, Prompt, load
from experiment.cost import arm_usd_per_hour
from experiment.model import SearchedLoad, Serve
from infra.monitoring.container_insights import INSIGHTS_METRICS, NAMESPACE
from infra.monitoring.dashboards import add_dashboards
from tests.conftest import ROOT
from tests.experiment.edits import put
from tests.infra.templates import Deployments, resolved

PUBLISHED_NAMES = {metric.cloudwatch_name: metric for metric in PUBLISHED}
INSIGHTS_NAMES = {metric.name: metric for metric in INSIGHTS_METRICS}
SERVE = Serve(
    arm="qwen-sd-vllm",
    replicas=1,
    max_replicas=2,
    certificate_arn="arn:aws:acm:us-east-2:123456789012:certificate/a",
    client_cidrs=("10.20.0.0/16",),
)
Shown = dict[str, Any]


def expanded(body: Shown) -> Shown:
    """With every `.` of a line replaced by what stands there in the line before."""
    for widget in body["widgets"]:
        before: list[Any] = []
        for line in widget["properties"].get("metrics", ()):
            for place, one in enumerate(line):
                if one == ".":
                    line[place] = before[place]
            before = line
    return body


_MADE: list[tuple[Experiment, dict[str, Shown]]] = []


def dashboards(experiment: Experiment) -> dict[str, Shown]:
    """Bodies by name, within CloudWatch's limits
    (https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch_limits.html)."""
    for known, found in _MADE:
        if known is experiment:
            return found
    stack = cdk.Stack(cdk.App(), "Stack", env=cdk.Environment(region=experiment.cluster.region))
    add_dashboards(stack, experiment)
    made = Template.from_stack(stack).find_resources("AWS::CloudWatch::Dashboard").values()
    found = {
        one["Properties"]["DashboardName"]: expanded(json.loads(one["Properties"]["DashboardBody"]))
        for one in made
    }
    for body in found.values():
        metrics = [len(widget["properties"].get("metrics", ())) for widget in body["widgets"]]
        assert len(metrics) <= 500
        assert max(metrics) <= 500
        assert sum(metrics) <= 2500
        for graph in (one["properties"] for one in body["widgets"] if one["type"] == "metric"):
            assert (graph["region"], graph["period"]) == (experiment.cluster.region, 300)
            assert not {one[-1].get("stat") for one in graph["metrics"]} - {None}, (
                "a line has that of its graph"
            )
    _MADE.append((experiment, found))
    return found


def bodies(experiment: Experiment) -> list[Shown]:
    """Every page of the experiment."""
    return [body for name, body in dashboards(experiment).items() if not name.endswith("-service")]


def graphs(experiment: Experiment) -> list[Shown]:
    widgets = [widget for body in bodies(experiment) for widget in body["widgets"]]
    return [widget["properties"] for widget in widgets if widget["type"] == "metric"]


def metric_lines(experiment: Experiment) -> Iterator[tuple[list[str], Shown]]:
    for graph in graphs(experiment):
        for *names, rendering in graph["metrics"]:
            if names:
                yield names, rendering


def words(experiment: Experiment) -> str:
    widgets = bodies(experiment)[0]["widgets"]
    return " ".join(one["properties"]["markdown"] for one in widgets if one["type"] == "text")


def sweep(experiment: Experiment, arms: int, *, concurrency: tuple[int, ...] = (4,)) -> Experiment:
    more = (replace(experiment.arms[1], name=f"qwen-sd-k{number}") for number in range(1, arms))
    settings = experiment.benchmark.model_copy(update={"concurrency": concurrency})
    return replace(experiment, arms=(experiment.baseline, *more), benchmark=settings)


def with_device_plugin(experiment: Experiment) -> Experiment:
    plugin = experiment.baseline.serving.model_copy(update={"allocation": "device-plugin"})
    return replace(experiment, arms=tuple(replace(arm, serving=plugin) for arm in experiment.arms))


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
def test_cloudwatch_takes_the_dashboards_of_every_experiment(path: Path) -> None:
    example = load(path)
    shown = {names[names.index("Arm") + 1] for names, _ in metric_lines(example) if "Arm" in names}
    assert shown == {arm.name for arm in example.served_arms}


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
def test_loads_that_are_searched_are_found_for_every_arm_and_class_and_nothing_is_divided(
    experiment: Experiment, arms: int
) -> None:
    load = SearchedLoad.model_validate({"search": [1, 64]})
    searched = sweep(experiment, arms)
    searched = replace(searched, benchmark=searched.benchmark.model_copy(update={"load": load}))
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
            found[parsed["metric"], parsed["arm"], parsed["class_name"]] = one["label"]
    assert set(found) == {
        (one.cloudwatch_name, arm.name, name)
        for one in PUBLISHED
        for arm in searched.served_arms
        for name in searched.classes
    }
    assert not any("better than" in graph["title"] or "USD" in graph["title"] for graph in graphs(searched))
    assert "a graph has a line for each that was measured" in words(searched)


def test_a_sweep_of_16_arms_takes_several_pages_that_say_which_they_are_and_loses_no_arm(
    experiment: Experiment,
) -> None:
    large = sweep(experiment, 16)
    pages, drawn = dashboards(large), graphs(large)
    further = [f"qwen3-32b-us-east-2-{number}" for number in range(2, len(pages) + 1)]
    assert further
    assert list(pages) == ["qwen3-32b-us-east-2", *further]
    lines = [names for names, _ in metric_lines(large) if names[1] == TPOT.cloudwatch_name]
    assert {(names[names.index("Arm") + 1], names[names.index("Class") + 1]) for names in lines} == {
        (arm.name, class_name) for arm in large.arms for class_name in large.classes
    }
    shown = [sum(line[-1].get("visible", True) for line in graph["metrics"]) for graph in drawn]
    assert max(shown) <= 24, "more cannot be told apart"
    said = words(experiment)
    assert said.startswith("# qwen3-32b\n")
    assert ("*measured*" in said, "*emulated*" in said) == (True, True)
    assert words(large).startswith(f"# qwen3-32b (1 of {len(pages)})\n")


def test_every_line_names_a_metric_that_somebody_publishes_and_each_is_shown_at_every_concurrency(
    experiment: Experiment, opened: Experiment
) -> None:
    shown = set()
    for example in (with_device_plugin(experiment), opened):
        for (namespace, name, *dimensions), rendering in metric_lines(example):
            keys = tuple(dimensions[::2])
            values = dict(zip(keys, dimensions[1::2], strict=True))
            if namespace == NAMESPACE:
                assert {*keys} == {*INSIGHTS_NAMES[name].dimensions}
                assert values["ClusterName"] == example.name
                continue
            assert namespace == f"SpeculativeDecoding/{example.name}"
            assert {*keys} == {*PUBLISHED_NAMES[name].dimensions}
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
        assert "times better than qwen-vllm" in ratio["title"]
        shown = [line[0] for line in ratio["metrics"] if len(line) == 1]
        assert [line["label"] for line in shown] == [f"{name} qwen-sd-vllm" for name in experiment.classes]
        # Above 1 the treatment is better.
        assert shown[0]["expression"] == ("c0a0/c0a1" if metric.better == "lower" else "c0a1/c0a0")
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
    errors = titled(graphs(experiment), BY_NAME["errors"].cloudwatch_name)
    assert [graph["stat"] for graph in errors] == ["Average", "Sum"]


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
    large = sweep(experiment, 16, concurrency=(1, 4, 16))
    statistics = {graph["stat"] for graph in graphs(large) if graph["title"].startswith(TPOT.cloudwatch_name)}
    assert "p50" in statistics
    assert len(statistics) < 3
    assert "leave no room for p90" in words(large)
    assert "leave no room" not in words(experiment)


@pytest.mark.slow
def test_more_than_cloudwatch_or_a_template_takes_is_refused_in_one_line(experiment: Experiment) -> None:
    many = tuple(Prompt(id=f"p{n}", class_name=f"class-{n}", text="x") for n in range(210))
    for example, line in (
        (replace(experiment, prompts=many), r"^dashboard: .* use fewer arms, prompt classes"),
        (sweep(experiment, 300), r"^dashboard: \d+ metrics in one graph.*use fewer arms$"),
    ):
        with pytest.raises(Misuse, match=line) as refusal:
            dashboards(example)
        assert "\n" not in str(refusal.value)


def service_graphs(experiment: Experiment, serve: Serve = SERVE) -> list[Shown]:
    """Properties of what is on the service's page."""
    body = dashboards(replace(experiment, serve=serve))["qwen3-32b-us-east-2-service"]
    return [widget["properties"] for widget in body["widgets"]]


def titled(shown: list[Shown], beginning: str) -> list[Shown]:
    return [one for one in shown if one.get("title", "").startswith(beginning)]


def test_the_services_page_is_there_once_something_is_promoted_with_its_cost_and_its_load_balancer(
    experiment: Experiment,
) -> None:
    assert not [name for name in dashboards(experiment) if name.endswith("-service")]
    for serve, searches in (
        (SERVE, 4),
        (SERVE.model_copy(update={"certificate_arn": None}), 0),
        (Serve(arm="qwen-vllm", replicas=2, max_replicas=2), 0),
    ):
        assert json.dumps(service_graphs(experiment, serve)).count("SEARCH(") == searches
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
        (
            "throughput: 1.0 tokens/s, Running: 4 reqs, Waiting: 11 reqs, GPU KV cache usage: 0.1%",
            ("4", "11"),
        ),
        ("throughput: 1.0 tokens/s, Running: 2 reqs, Swapped: 0 reqs, Pending: 7 reqs, GPU KV", ("2", "7")),
    ):
        match = re.search(pattern, line)
        assert match is not None
        assert match.group("running", "waiting") == counts
    (pods,) = re.findall(r"pod_name like /(.+?)/", log["query"])
    assert re.search(pods, "qwen-sd-vllm-5d9c7b6f4-x2x9z")
    assert not re.search(pods, "qwen-sd-vllm-k3-5d9c7b6f4-x2x9z")
