from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from infra.monitoring.alarms import Alarm, CompositeAlarm, MetricAlarm, alarms
from tests.infra.conftest import Variants
from tests.infra.templates import Deployments, resolved
from trnspec.benchmark.metrics import RUN_ACTIVE
from trnspec.experiment import Experiment
from trnspec.experiment.cost import SYSTEM_NODES
from trnspec.experiment.model import Slo

SCHEDULER_METRICS = {
    "TargetErrorCount",
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


def mean_of_the_arm(of: str) -> str:
    """A query of Metrics Insights that names every dimension
    (https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/cloudwatch-metrics-insights-querylanguage.html)."""
    schema = '"SpeculativeDecoding/qwen3-32b", "Experiment", "Arm", "Class", "Concurrency"'
    return f"SELECT AVG({of}) FROM SCHEMA({schema}) WHERE Arm = 'qwen-sd-vllm'"


def test_the_alarms_of_the_reference_experiment(experiment: Experiment) -> None:
    found = made(experiment)
    by_arm = {f"{kind}-{arm}" for kind in ("error-rate", "p99-tpot") for arm in ("qwen-vllm", "qwen-sd-vllm")}
    joined = {name: alarm.parts for name, alarm in found.items() if isinstance(alarm, CompositeAlarm)}
    parts = {part.removeprefix("qwen3-32b-") for names in joined.values() for part in names}
    assert found.keys() == by_arm | parts | {"no-data", "paid-node-idle", "switch-off-failed"}
    assert {name for name, alarm in found.items() if not alarm.notifies} == parts
    # Silence is an alarm only while a run is on, or a node is paid.
    assert joined["no-data"] == ("qwen3-32b-run-is-on", "qwen3-32b-no-requests")
    assert joined["paid-node-idle"] == ("qwen3-32b-paid-nodes", "qwen3-32b-no-requests-for-long")
    active = metric(experiment, "run-is-on")
    assert [one.name for one in active.sources] == [RUN_ACTIVE.cloudwatch_name]
    assert active.statistic == "Minimum", "in a period in which it ended, a run is not on"
    assert metric(experiment, "error-rate-qwen-sd-vllm").expression == mean_of_the_arm("Errors")
    failed = {
        (one.namespace, one.name, *one.dimensions.values())
        for one in metric(experiment, "switch-off-failed").sources
    }
    assert failed == {("AWS/Scheduler", name, "qwen3-32b-off") for name in SCHEDULER_METRICS}, "each attempt"
    (nodes,) = metric(experiment, "paid-nodes").sources
    assert (nodes.namespace, nodes.name) == ("ContainerInsights", "cluster_node_count")


def test_p99_covers_every_cell_by_maxima_over_at_most_ten_metrics(variants: Variants) -> None:
    opened, _ = variants["opened"]
    concurrency = (1, 2, 4, 8)
    many = replace(opened, benchmark=opened.benchmark.model_copy(update={"concurrency": concurrency}))
    slow = [one for one in alarms(many) if isinstance(one, MetricAlarm) and "p99-tpot" in one.name]
    assert max(len(alarm.sources) for alarm in slow) <= 10
    assert {(alarm.expression, alarm.statistic) for alarm in slow} == {("MAX(METRICS())", "p99")}
    watched = [tuple(one.dimensions.values()) for alarm in slow for one in alarm.sources]
    arms, classes = (arm.name for arm in many.arms), many.classes
    assert watched == [("opened", *one) for one in product(arms, classes, map(str, concurrency))]
    assert len([one for one in slow if "tpot-qwen-vllm" in one.name]) == 2


def test_the_limit_of_slow_tokens_is_that_of_the_slo(experiment: Experiment) -> None:
    assert metric(experiment, "p99-tpot-qwen-vllm").threshold == 0.2
    slo = experiment.benchmark.model_copy(update={"slo": Slo(tpot_s=0.05)})
    assert metric(replace(experiment, benchmark=slo), "p99-tpot-qwen-vllm").threshold == 0.05


def after(alarm: MetricAlarm, *points: float | None, before: str = "OK") -> str:
    """What CloudWatch makes of an alarm's points, by its documentation, newest point last; None is a missing one."""
    window = points[-alarm.periods :]
    if all(point is None for point in window) and alarm.missing == "ignore":
        return before
    above = alarm.comparison == "GreaterThanThreshold"
    bad = [
        alarm.missing == "breaching"
        if point is None
        else (point > alarm.threshold if above else point < alarm.threshold)
        for point in window
    ]
    return "ALARM" if sum(bad) >= alarm.breaching else "OK"


HOUR = 12
STATES = [
    ("run-is-on", (1,), "OK", "ALARM"),
    ("run-is-on", (0,), "ALARM", "OK"),
    ("run-is-on", (None,), "ALARM", "ALARM"),  # a run that vanished without a word counts as on
    ("no-requests", (None, None, 12), "OK", "OK"),
    ("no-requests", (12, None, None), "OK", "OK"),
    ("paid-nodes", (3.0,) * HOUR, "OK", "ALARM"),
    ("paid-nodes", (float(SYSTEM_NODES),) * HOUR, "OK", "OK"),  # system nodes alone
    ("no-requests-for-long", (*(None,) * (HOUR - 1), 4), "OK", "OK"),
    ("error-rate-qwen-sd-vllm", (0.0, 0.06, 0.06), "OK", "ALARM"),
    ("error-rate-qwen-sd-vllm", (0.0, 0.0, 1.0), "OK", "OK"),
    ("error-rate-qwen-sd-vllm", (0.05, 0.05, 0.05), "OK", "OK"),
    ("switch-off-failed", (1,), "OK", "ALARM"),
    ("switch-off-failed", (0,), "OK", "OK"),
    # Nothing but silence is an alarm before the first run.
    ("no-requests", (None,) * 3, "OK", "ALARM"),
    ("no-requests-for-long", (None,) * HOUR, "OK", "ALARM"),
    *((name, (None,) * HOUR, "OK", "OK") for name in ("run-is-on", "paid-nodes", "switch-off-failed")),
    *((f"{kind}-qwen-sd-vllm", (None,) * 3, "OK", "OK") for kind in ("error-rate", "p99-tpot")),
]


@pytest.mark.parametrize(("name", "points", "before", "state"), STATES)
def test_an_alarm_goes_off_when_it_should(
    experiment: Experiment, name: str, points: tuple[float | None, ...], before: str, state: str
) -> None:
    assert after(metric(experiment, name), *points, before=before) == state


def test_what_is_deployed_is_what_was_decided(made: Deployments, experiment: Experiment) -> None:
    deployed = {
        one.properties["AlarmName"]: one
        for type_ in ("AWS::CloudWatch::Alarm", "AWS::CloudWatch::CompositeAlarm")
        for one in made.reference.resources(type_)
    }
    decided = {alarm.name: alarm for alarm in alarms(experiment)}
    assert deployed.keys() == decided.keys()
    for name, alarm in decided.items():
        said = deployed[name].properties
        assert bool(said.get("AlarmActions")) == bool(said.get("OKActions")) == alarm.notifies
        if isinstance(alarm, CompositeAlarm):
            parts = (f'ALARM("<{deployed[part].logical_id}.Arn>")' for part in alarm.parts)
            assert resolved(said["AlarmRule"]) == f"({' AND '.join(parts)})"
            assert said["AlarmDescription"] == alarm.message
            continue
        assert said["AlarmDescription"] == alarm.description
        assert (said["ComparisonOperator"], said["Threshold"]) == (alarm.comparison, alarm.threshold)
        assert (said["EvaluationPeriods"], said["DatapointsToAlarm"]) == (alarm.periods, alarm.breaching)
        assert (said["TreatMissingData"], alarm.periods * 300 <= 86_400) == (alarm.missing, True)
        one = {"MetricStat": {"Metric": said, "Stat": said.get("Statistic")}}
        returned, *hidden = said.get("Metrics", [one])
        assert returned.get("Expression", "") == alarm.expression
        stats = [each["MetricStat"] for each in (hidden if alarm.expression else [returned])]
        assert {each["Stat"] for each in stats} <= {alarm.statistic}
        for each, source in zip([each["Metric"] for each in stats], alarm.sources, strict=True):
            assert (each["Namespace"], each["MetricName"]) == (source.namespace, source.name)
            assert {d["Name"]: d["Value"] for d in each["Dimensions"]} == source.dimensions


def test_cloudwatch_may_publish_to_the_topic_under_its_key(made: Deployments) -> None:
    assert made.reference.resources("AWS::SNS::Subscription") == []
    assert made.opened.only("AWS::SNS::Subscription").properties["Endpoint"] == "team@example.com"
    topic = made.reference.only("AWS::SNS::Topic", "observability")
    assert topic.properties["KmsMasterKeyId"]
    key = made.reference.only("AWS::KMS::Key", "observability").properties["KeyPolicy"]["Statement"]
    (allowed,) = [one for one in key if one["Principal"] == {"Service": "cloudwatch.amazonaws.com"}]
    assert allowed["Action"] == ["kms:Decrypt", "kms:GenerateDataKey*"]
    assert resolved(allowed["Condition"]) == {"StringEquals": {"aws:SourceAccount": "111122223333"}}
    policy = made.reference.only("AWS::SNS::TopicPolicy", "observability")
    effects = [(one["Effect"], one["Action"]) for one in policy.properties["PolicyDocument"]["Statement"]]
    assert ("Allow", "sns:Publish") in effects
    assert any(effect == "Deny" for effect, _ in effects), "transport without TLS"
