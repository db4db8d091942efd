"""The alert rules say what the alarms say: promtool runs them over series made by hand, in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from benchmark.metrics import TPOT
from experiment import Experiment
from experiment.cost import SYSTEM_NODES
from experiment.measurement import SearchedLoad
from infra.monitoring.alarms import alarms, alert_groups
from tests.infra.monitoring.promtool import needs_promtool, promtool

ARM, OTHER = "qwen-sd-vllm", "qwen-vllm"
OF = 'experiment="qwen3-32b"'
CELL = f'{OF},arm="{ARM}",class="code",concurrency="4"'
ACTIVE, REQUESTS = f"trnspec_run_active{{{OF}}}", f"trnspec_errors_count{{{CELL}}}"
FAILED, P99 = f"trnspec_errors_sum{{{CELL}}}", f'trnspec_tpot_seconds{{{CELL},quantile="0.99"}}'
NODES = {f'kube_node_info{{node="n{number}"}}': "1x150" for number in range(SYSTEM_NODES)}
TRN2 = {'kube_node_info{node="trn2"}': "1x150"}
ON, STEADY, STOPPED = {ACTIVE: "1x60"}, {REQUESTS: "0+10x60"}, {REQUESTS: "0+10x10 100x50"}


class Story(NamedTuple):
    """Series in promtool's notation, a value a minute, and what is in alarm at a minute."""

    series: Mapping[str, str]
    minute: int
    alarms: set[str]


ERRORS, SLOW = {f"error-rate-{ARM}"}, {f"p99-tpot-{ARM}"}
STORIES = {
    "nothing was ever published": Story({}, 120, set()),
    "a healthy run": Story({**ON, **STEADY, FAILED: "0x60", P99: "0.05x60"}, 40, set()),
    "one request in ten fails": Story({**ON, **STEADY, FAILED: "0+1x60"}, 40, ERRORS),
    "one in twenty fails, the limit": Story({**ON, REQUESTS: "0+20x60", FAILED: "0+1x60"}, 40, set()),
    "one in ten fails for one period": Story({**ON, **STEADY, FAILED: "0x31 0+1x4 4x30"}, 37, set()),
    "one in ten fails for two periods": Story({**ON, **STEADY, FAILED: "0x30 0+1x10 10x30"}, 42, ERRORS),
    "no request is sent any more, so none fails": Story({**STOPPED, FAILED: "0+9x10 90x50"}, 40, set()),
    "tokens are slow": Story({**ON, **STEADY, P99: "0.21x60"}, 40, SLOW),
    "tokens are as slow as allowed": Story({**ON, **STEADY, P99: "0.2x60"}, 40, set()),
    "tokens are slow in one class of two": Story(
        {**STEADY, P99: "0.21x60", P99.replace("code", "chat"): "0.02x60"}, 40, SLOW
    ),
    "tokens were slow for one period": Story({**STEADY, P99: "0.05x32 0.21x4 0.05x30"}, 42, set()),
    "a run hangs": Story({**ON, **STOPPED}, 35, {"no-data"}),
    "a run hung for two periods only": Story({**ON, REQUESTS: "0+10x22 220x14 230x30"}, 36, set()),
    "a run has ended": Story({ACTIVE: "1x10 0x50", **STOPPED}, 35, set()),
    "a pod vanished": Story({ACTIVE: "1x10 stale", REQUESTS: "0+10x10 stale"}, 35, {"no-data"}),
    "a pod vanished long ago": Story({ACTIVE: "1x10 stale", REQUESTS: "0+10x10 stale"}, 90, set()),
    "nodes are paid for and idle": Story(NODES | TRN2, 75, {"paid-node-idle"}),
    "nodes have been idle for half an hour": Story(NODES | TRN2 | {REQUESTS: "0+10x45 450x60"}, 75, set()),
    "nodes work": Story(NODES | TRN2 | {REQUESTS: "0+10x150"}, 75, set()),
    "only system nodes run": Story(NODES, 75, set()),
}


def rules_of(experiment: Experiment) -> dict[str, Any]:
    return {rule["alert"]: rule for group in alert_groups(experiment) for rule in group["rules"]}


def tell(story: Story, experiment: Experiment, folder: Path) -> None:
    expected = {f"{experiment.name}-{one}" for one in story.alarms}
    judged = []
    for alert, rule in rules_of(experiment).items():
        fired = [{"exp_labels": rule["labels"], "exp_annotations": rule["annotations"]}]
        alerts = fired if alert in expected else []
        judged.append({"eval_time": f"{story.minute}m", "alertname": alert, "exp_alerts": alerts})
    assert expected <= {one["alertname"] for one in judged}
    series = [{"series": one, "values": values} for one, values in story.series.items()]
    groups = {"groups": alert_groups(experiment)}
    (folder / "rules.yaml").write_text(yaml.safe_dump(groups), encoding="utf-8")
    test = {"interval": "1m", "input_series": series, "alert_rule_test": judged}
    promtool("test", {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}, folder)


@needs_promtool
@pytest.mark.parametrize("name", STORIES)
def test_a_story_ends_in_these_alarms_and_no_others(
    name: str, experiment: Experiment, tmp_path: Path
) -> None:
    tell(STORIES[name], experiment, tmp_path)


@needs_promtool
@pytest.mark.parametrize(("seconds", "in_alarm"), [("2.1", {f"mean-tpot-{ARM}"}), ("2", set())])
def test_a_search_is_watched_by_its_mean_time_per_token(
    seconds: str, in_alarm: set[str], experiment: Experiment, tmp_path: Path
) -> None:
    """Ten answers a minute, whose times per token add up to so many seconds; the limit is 0.2 s."""
    load = SearchedLoad.model_validate({"search": [1, 64]})
    searched = replace(experiment, benchmark=experiment.benchmark.model_copy(update={"load": load}))
    total, count = (f"{TPOT.prometheus_name}_{part}{{{CELL}}}" for part in ("sum", "count"))
    series = {**STEADY, count: "0+10x60", total: f"0+{seconds}x60", P99: "9x60"}
    tell(Story(series, 40, in_alarm), searched, tmp_path)


def test_an_alarm_that_notifies_has_a_rule_that_the_stories_tell_unless_only_cloudwatch_can_know(
    experiment: Experiment,
) -> None:
    rules = rules_of(experiment)
    notifying = {alarm.name: alarm for alarm in alarms(experiment) if alarm.notifies}
    assert notifying.keys() - rules.keys() == {f"{experiment.name}-switch-off-failed"}
    fired = {f"{experiment.name}-{name}" for story in STORIES.values() for name in story.alarms}
    assert fired | {name.replace(ARM, OTHER) for name in fired} == rules.keys()
