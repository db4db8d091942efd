"""Drafting that no longer pays: the log line, the alarm's stories in both languages, and what the stacks make for it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiment import Experiment
from experiment.catalogue.runtimes import RUNTIMES
from experiment.model import Serve
from infra.monitoring.alarms import alarms
from infra.monitoring.dashboards import dashboards
from infra.monitoring.draft_alarm import GROK, MIN_STEPS, draft_alarms, metric_filters, transformer
from infra.monitoring.grafana import dashboard_rows
from tests.infra.monitoring.promtool import needs_promtool
from tests.infra.monitoring.test_alert_rules import Story, tell

ARM, ALARM = "qwen-sd-vllm", "drafting-no-longer-pays-qwen-sd-vllm"
SERVE = Serve(routes={"json": ARM, "*": "qwen-vllm"}, break_even={ARM: 3.0})
LABELS = f'experiment="qwen3-32b",arm="{ARM}"'
DRAFTS, ACCEPTED = (
    f"vllm:spec_decode_num_{name}_total{{{LABELS}}}" for name in ("drafts", "accepted_tokens")
)
LINE = (
    "INFO 11-24 17:30:01 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 3.41, Accepted throughput: 96.38 tokens/s, "
    "Drafted throughput: 280.00 tokens/s, Accepted: 964 tokens, Drafted: 2800 tokens, Per-position acceptance rate: 0.800, 0.600, "
    "Avg Draft acceptance rate: 34.4%"
)
"""As vLLM 0.29 writes it (`SpecDecodingLogging.log`)."""


@pytest.fixture
def service(experiment: Experiment) -> Experiment:
    """The reference on a runtime that counts drafts, as a service."""
    return on(experiment, "native-vllm-0.29")


def on(experiment: Experiment, runtime: str) -> Experiment:
    arms = tuple(replace(arm, runtime=RUNTIMES[runtime]) for arm in experiment.arms)
    return replace(experiment, arms=arms, serve=SERVE)


def test_an_engine_that_counts_nothing_has_no_alarm(experiment: Experiment, service: Experiment) -> None:
    assert [one.break_even for one in draft_alarms(service)] == [3.0]
    plain = on(experiment, "nxdi-vllm-0.9.1")
    assert not draft_alarms(plain)
    assert not metric_filters(plain)
    assert not [alarm for alarm in alarms(plain) if "pays" in alarm.name]


def test_the_line_of_the_log_gives_both_counts() -> None:
    kinds = {"DATA": ".*?", "NUMBER": r"[-+]?\d+(?:\.\d+)?", "INT": r"[-+]?\d+", "GREEDYDATA": ".*"}
    written = re.sub(
        r"%\{(\w+)(?::(\w+))?\}",
        lambda one: f"(?P<{one[2]}>{kinds[one[1]]})" if one[2] else f"(?:{kinds[one[1]]})",
        GROK,
    )
    found = re.fullmatch(written, LINE)
    assert found
    assert found.groupdict() == {"accepted_tokens": "964", "drafted_tokens": "2800"}
    assert not re.fullmatch(written, "INFO 11-24 17:30:01 Engine 000: Running: 3 reqs, Waiting: 0 reqs")


def _alarm(service: Experiment) -> dict[str, Any]:
    (alarm,) = (one for one in alarms(service) if one.name.endswith(ALARM))
    return {"message": alarm.message, **vars(alarm)}


@pytest.mark.parametrize(
    ("accepted", "drafted", "tokens"),
    [
        (2 * MIN_STEPS, 7 * MIN_STEPS, 3.0),
        (1.9 * MIN_STEPS, 7 * MIN_STEPS, 2.9),
        (0, 7 * MIN_STEPS - 1, 3.0),
    ],
)
def test_cloudwatch_judges_a_period_by_its_steps_where_they_are_enough(
    service: Experiment, accepted: float, drafted: float, tokens: float
) -> None:
    alarm = _alarm(service)
    condition = re.fullmatch(r"IF\((.+?), (.+), (.+)\)", str(alarm["expression"]))
    assert condition
    enough, value, otherwise = (
        eval(part, {}, {"m0": accepted, "m1": drafted}) for part in condition.groups()
    )
    assert (value if enough else otherwise) == pytest.approx(tokens)
    assert (alarm["threshold"], alarm["periods"], alarm["breaching"]) == (3.0, 12, 12)


def test_the_message_names_the_routes_to_change_and_the_commands(service: Experiment) -> None:
    message = _alarm(service)["message"]
    assert "move the routes json to qwen-vllm" in message
    assert "./trnspec promote qwen-vllm" in message


STORIES = {
    "acceptance stays": Story({DRAFTS: "0+200x150", ACCEPTED: "0+480x150"}, 100, set()),
    "acceptance fell two hours ago": Story({DRAFTS: "0+200x150", ACCEPTED: "0+300x150"}, 100, {ALARM}),
    "acceptance fell half an hour ago": Story(
        {DRAFTS: "0+200x150", ACCEPTED: "0+480x70 33600+300x80"}, 100, set()
    ),
    "acceptance was low for an hour but for ten minutes": Story(
        {DRAFTS: "0+200x150", ACCEPTED: "0+300x70 21000+480x10 25800+300x70"}, 100, set()
    ),
    "too few steps to know": Story({DRAFTS: "0+20x150", ACCEPTED: "0+10x150"}, 100, set()),
    "nobody asks": Story({DRAFTS: "1000x150", ACCEPTED: "10x150"}, 100, set()),
}


@needs_promtool
@pytest.mark.parametrize("name", STORIES)
def test_prometheus_tells_the_same(name: str, service: Experiment, tmp_path: Path) -> None:
    tell(STORIES[name], service, tmp_path)


def test_both_dashboards_show_the_steps_of_production_beside_the_break_even(service: Experiment) -> None:
    widgets = json.loads(dashboards(service)["ServiceDashboard"].body)["widgets"]
    (graph,) = (one["properties"] for one in widgets if "still pay" in one["properties"].get("title", ""))
    assert graph["annotations"]["horizontal"][0]["value"] == 3.0
    names = {line[1] for line in graph["metrics"] if isinstance(line[0], str)}
    assert names == {f"AcceptedTokens-{ARM}", f"DraftedTokens-{ARM}"}
    assert any("failed_over" in one["properties"].get("query", "") for one in widgets)
    (cost,) = (one["properties"] for one in widgets if "USD an hour" in one["properties"].get("title", ""))
    dollars, *replicas = cost["metrics"]
    assert [line[-2] for line in replicas] == ["qwen-vllm", ARM], "not the gateway's pods"
    assert dollars[0]["expression"].count("FILL(replicas") == 2
    steps = next(
        panel for panel in dashboard_rows(service)["Servers"] if panel.title.startswith("Tokens of a step")
    )
    assert steps.lines[f"break-even of {ARM}"] == "3"


def test_filters_read_what_the_transformer_adds_from_the_pods_of_the_arm(service: Experiment) -> None:
    made = transformer(service)
    fields = {entry["Key"] for entry in made["TransformerConfig"][2]["TypeConverter"]["Entries"]}
    filters = metric_filters(service)
    assert {one["MetricTransformations"][0]["MetricValue"] for one in filters.values()} == {
        f"$.{name}" for name in fields
    }
    assert {one["LogGroupName"] for one in filters.values()} == {made["LogGroupIdentifier"]}
    assert all(one["ApplyOnTransformedLogs"] for one in filters.values())
    assert all(f'"{ARM}-*"' in one["FilterPattern"] for one in filters.values())


def test_an_arm_whose_name_begins_like_another_is_not_counted_with_it(service: Experiment) -> None:
    longer = replace(next(arm for arm in service.arms if arm.name == ARM), name=f"{ARM}-k5")
    serve = SERVE.model_copy(update={"routes": {**SERVE.routes, "code": longer.name}})
    both = metric_filters(replace(service, arms=(*service.arms, longer), serve=serve))
    assert f'pod_name != "{ARM}-k5-*"' in both[f"AcceptedTokens-{ARM}"]["FilterPattern"]
    assert "!=" not in metric_filters(service)[f"AcceptedTokens-{ARM}"]["FilterPattern"]
