from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from benchmark.metrics import BY_NAME, ERRORS, RUN_ACTIVE
from experiment import Experiment
from experiment.cost import SYSTEM_NODES
from experiment.model import Objectives
from infra.monitoring.alarms import Alarm, CompositeAlarm, MetricAlarm, alarms
from tests.infra.templates import Deployment, Resource, resolved

BY_CLOUDWATCH_NAME = {metric.cloudwatch_name: metric for metric in BY_NAME.values()}
INSIGHTS_QUERY = re.compile(
    r"SELECT (AVG|COUNT|MAX|MIN|SUM)\((\w+)\) FROM SCHEMA\(\"([^\"]+)\"((?:, \"\w+\")*)\)(?: WHERE (\w+) = '([\w-]+)')?"
)
"""The part of Metrics Insights' grammar that is used.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch-metrics-insights-querylanguage.html
"""


SCHEDULER_METRICS = {
    "InvocationDroppedCount",
    "InvocationsFailedToBeSentToDeadLetterCount",
    "InvocationsSentToDeadLetterCount",
}
"""Of a schedule group (https://docs.aws.amazon.com/scheduler/latest/UserGuide/monitoring-cloudwatch.html)."""


def made(experiment: Experiment) -> dict[str, Alarm]:
    found = alarms(experiment)
    assert len({alarm.name for alarm in found}) == len(found)
    return {alarm.name.removeprefix(f"{experiment.name}-"): alarm for alarm in found}


def metric(experiment: Experiment, name: str) -> MetricAlarm:
    alarm = made(experiment)[name]
    assert isinstance(alarm, MetricAlarm)
    return alarm


def parts(experiment: Experiment, name: str) -> tuple[str, ...]:
    alarm = made(experiment)[name]
    assert isinstance(alarm, CompositeAlarm)
    return tuple(part.removeprefix(f"{experiment.name}-") for part in alarm.parts)


def test_the_alarms_of_the_reference_experiment(experiment: Experiment) -> None:
    assert {name for name, alarm in made(experiment).items() if alarm.notifies} == {
        "error-rate-qwen-vllm",
        "error-rate-qwen-sd-vllm",
        "p99-tpot-qwen-vllm",
        "p99-tpot-qwen-sd-vllm",
        "no-data",
        "paid-node-idle",
        "switch-off-failed",
    }


def test_the_error_rate_is_the_mean_of_errors_over_all_cells_of_an_arm(experiment: Experiment) -> None:
    (query,) = metric(experiment, "error-rate-qwen-sd-vllm").queries
    parsed = INSIGHTS_QUERY.fullmatch(query["Expression"])
    assert parsed
    assert parsed[1] == "AVG"
    assert parsed[2] == ERRORS.cloudwatch_name
    assert parsed[3] == "SpeculativeDecoding/qwen3-32b"
    assert tuple(re.findall(r"\w+", parsed[4])) == ERRORS.dimensions
    assert (parsed[5], parsed[6]) == ("Arm", "qwen-sd-vllm")


def test_every_expression_is_a_query_or_a_maximum_over_at_most_ten_metrics(opened: Experiment) -> None:
    many = replace(opened, benchmark=opened.benchmark.model_copy(update={"concurrency": (1, 2, 4, 8)}))
    for alarm in alarms(many):
        if isinstance(alarm, CompositeAlarm):
            continue
        metrics = [query for query in alarm.queries if "MetricStat" in query]
        expressions = [query["Expression"] for query in alarm.queries if "Expression" in query]
        assert len(metrics) <= 10
        assert [query.get("ReturnData", True) for query in alarm.queries].count(True) == 1
        for expression in expressions:
            assert expression == "MAX(METRICS())" or INSIGHTS_QUERY.fullmatch(expression)


def test_p99_covers_every_class_and_concurrency_of_an_arm(opened: Experiment) -> None:
    many = replace(opened, benchmark=opened.benchmark.model_copy(update={"concurrency": (1, 2, 4, 8)}))
    slow = [alarm for name, alarm in made(many).items() if name.startswith("p99-tpot-qwen-vllm")]
    watched = {
        tuple(one["Value"] for one in query["MetricStat"]["Metric"]["Dimensions"])
        for alarm in slow
        if isinstance(alarm, MetricAlarm)
        for query in alarm.queries
        if "MetricStat" in query
    }
    assert len(slow) == 2
    assert watched == {
        ("opened", "qwen-vllm", name, str(concurrency))
        for name in many.classes
        for concurrency in (1, 2, 4, 8)
    }


def test_p99_is_held_against_the_objective_of_the_experiment(experiment: Experiment) -> None:
    assert metric(experiment, "p99-tpot-qwen-vllm").threshold == 0.2
    own = replace(
        experiment, benchmark=experiment.benchmark.model_copy(update={"slo": Objectives(tpot_s=0.05)})
    )
    assert metric(own, "p99-tpot-qwen-vllm").threshold == 0.05


def test_every_metric_is_one_that_somebody_publishes(experiment: Experiment) -> None:
    for alarm in made(experiment).values():
        for query in alarm.queries if isinstance(alarm, MetricAlarm) else ():
            if "MetricStat" not in query:
                continue
            named = query["MetricStat"]["Metric"]
            names = tuple(one["Name"] for one in named["Dimensions"])
            if named["Namespace"] == "ContainerInsights":
                assert (named["MetricName"], names) == ("cluster_node_count", ("ClusterName",))
            elif named["Namespace"] == "AWS/Scheduler":
                assert named["MetricName"] in SCHEDULER_METRICS
                assert (names, named["Dimensions"][0]["Value"]) == (("ScheduleGroup",), "qwen3-32b-off")
            else:
                assert named["Namespace"] == "SpeculativeDecoding/qwen3-32b"
                assert names == BY_CLOUDWATCH_NAME[named["MetricName"]].dimensions


class State:
    """What CloudWatch makes of an alarm's points, by its documentation, newest point last; None is a missing one."""

    def __init__(self, alarm: MetricAlarm) -> None:
        self.alarm = alarm

    def after(self, *points: float | None, before: str = "OK") -> str:
        """Its state when it sees these points and was `before`."""
        window = points[-self.alarm.periods :]
        if all(point is None for point in window) and self.alarm.missing == "ignore":
            return before
        bad = sum(self._breaching(point) for point in window)
        return "ALARM" if bad >= self.alarm.breaching else "OK"

    def _breaching(self, point: float | None) -> bool:
        if point is None:
            return self.alarm.missing == "breaching"
        if self.alarm.comparison == "GreaterThanThreshold":
            return point > self.alarm.threshold
        return point < self.alarm.threshold


def test_no_data_is_an_alarm_only_while_a_run_is_on(experiment: Experiment) -> None:
    on, silence = (State(metric(experiment, name)) for name in parts(experiment, "no-data"))
    assert on.alarm.name == "qwen3-32b-run-is-on"
    assert silence.after(None, None, None) == "ALARM"
    assert silence.after(None, None, 12) == "OK"
    assert on.after(1) == "ALARM"
    assert on.after(0, before="ALARM") == "OK"
    assert on.after(None, before="OK") == "OK"


def test_a_run_that_vanished_without_a_word_counts_as_on(experiment: Experiment) -> None:
    on = State(metric(experiment, "run-is-on"))
    assert on.after(None, before="ALARM") == "ALARM"


def test_a_period_in_which_a_run_ended_is_not_one_in_which_it_is_on(experiment: Experiment) -> None:
    (query,) = metric(experiment, "run-is-on").queries
    assert query["MetricStat"]["Metric"]["MetricName"] == RUN_ACTIVE.cloudwatch_name
    assert query["MetricStat"]["Stat"] == "Minimum"


def test_a_paid_node_is_idle_after_an_hour_without_requests(experiment: Experiment) -> None:
    paid, silence = (State(metric(experiment, name)) for name in parts(experiment, "paid-node-idle"))
    hour = 12
    assert paid.after(*[3.0] * hour) == "ALARM"
    assert silence.after(*[None] * hour) == "ALARM"
    assert silence.after(*[None] * (hour - 1), 4) == "OK"


def test_system_nodes_alone_are_not_paid_for_nothing(experiment: Experiment) -> None:
    paid = State(metric(experiment, "paid-nodes"))
    assert paid.after(*[float(SYSTEM_NODES)] * 12) == "OK"
    assert paid.after(*[None] * 12) == "OK"


def test_nothing_alarms_before_the_first_run(experiment: Experiment) -> None:
    for name, alarm in made(experiment).items():
        if isinstance(alarm, MetricAlarm):
            state = State(alarm).after(*[None] * alarm.periods)
            assert (state == "ALARM") == name.startswith("no-requests"), name
    assert parts(experiment, "no-data")[0] == "run-is-on"
    assert parts(experiment, "paid-node-idle")[0] == "paid-nodes"


@pytest.mark.parametrize(
    ("shares", "state"),
    [((0.0, 0.06, 0.06), "ALARM"), ((0.0, 0.0, 1.0), "OK"), ((0.05, 0.05, 0.05), "OK"), ((None,) * 3, "OK")],
)
def test_more_than_one_failed_request_in_twenty_is_an_alarm(
    experiment: Experiment, shares: tuple[float | None, ...], state: str
) -> None:
    assert State(metric(experiment, "error-rate-qwen-sd-vllm")).after(*shares) == state


def test_one_switch_off_that_failed_is_an_alarm(experiment: Experiment) -> None:
    failed = State(metric(experiment, "switch-off-failed"))
    assert (failed.after(None), failed.after(0), failed.after(1)) == ("OK", "OK", "ALARM")


def templates(deployment: Deployment, type_: str) -> dict[str, Resource]:
    return {one.properties["AlarmName"]: one for one in deployment.resources(type_)}


def test_what_is_deployed_is_what_was_decided(deployment: Deployment, experiment: Experiment) -> None:
    deployed = {
        **templates(deployment, "AWS::CloudWatch::Alarm"),
        **templates(deployment, "AWS::CloudWatch::CompositeAlarm"),
    }
    decided = {alarm.name: alarm for alarm in alarms(experiment)}
    assert deployed.keys() == decided.keys()
    for name, alarm in decided.items():
        properties = deployed[name].properties
        assert bool(properties.get("AlarmActions")) == alarm.notifies
        assert properties["AlarmDescription"].startswith(alarm.message)
        if isinstance(alarm, CompositeAlarm):
            assert properties["AlarmRule"] == " AND ".join(f'ALARM("{part}")' for part in alarm.parts)
            assert len(deployed[name].waits_for) == len(alarm.parts)
        else:
            assert properties["TreatMissingData"] == alarm.missing
            assert properties["EvaluationPeriods"] * 300 <= 86_400
            assert _without_defaults(properties["Metrics"]) == _without_defaults(alarm.queries)


def _without_defaults(queries: Any) -> list[dict[str, Any]]:
    return [{"ReturnData": True, **query} for query in queries]


def test_cloudwatch_may_publish_to_the_topic_under_its_key(deployment: Deployment) -> None:
    topic = deployment.only("AWS::SNS::Topic", stack="observability")
    assert topic.properties["KmsMasterKeyId"]
    key = deployment.only("AWS::KMS::Key", stack="observability")
    (allowed,) = [
        one
        for one in key.properties["KeyPolicy"]["Statement"]
        if one["Principal"] == {"Service": "cloudwatch.amazonaws.com"}
    ]
    assert allowed["Action"] == ["kms:Decrypt", "kms:GenerateDataKey*"]
    assert resolved(allowed["Condition"]) == {"StringEquals": {"aws:SourceAccount": "111122223333"}}
    policy = deployment.only("AWS::SNS::TopicPolicy", stack="observability")
    effects = [(one["Effect"], one["Action"]) for one in policy.properties["PolicyDocument"]["Statement"]]
    assert ("Allow", "sns:Publish") in effects
    assert any(effect == "Deny" for effect, _ in effects), "transport without TLS"
