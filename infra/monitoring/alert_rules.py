"""The alarms as alert rules of Prometheus: the same names, messages, thresholds, periods and ways with missing data.

CloudWatch judges the last periods of five minutes, each by one number. A subquery does the same: its steps lie at whole
multiples of the period (https://prometheus.io/docs/prometheus/latest/querying/examples/#subquery).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmark.metrics import PERIOD_S
from experiment import Experiment
from infra.monitoring.alarms import FORGOTTEN_S, Alarm, MetricAlarm, alarms

_BEYOND = {"GreaterThanThreshold": ">", "LessThanThreshold": "<"}


def alert_groups(experiment: Experiment) -> list[dict[str, Any]]:
    """A group of rules, as in a rules file and in a PrometheusRule: one for each alarm that notifies and that Prometheus
    can decide. That a schedule failed only CloudWatch knows."""
    found = {alarm.name: alarm for alarm in alarms(experiment)}
    return [{"name": experiment.name, "interval": "60s", "rules": list(_rules(experiment, found))}]


def _rules(experiment: Experiment, found: dict[str, Alarm]) -> Iterator[dict[str, Any]]:
    for alarm in found.values():
        parts = [found[name] for name in alarm.parts] or [alarm]
        decided = [part for part in parts if isinstance(part, MetricAlarm) and part.promql]
        if alarm.notifies and len(decided) == len(parts):
            yield {
                "alert": alarm.name,
                "expr": " and on() ".join(f"({_condition(part)})" for part in decided),
                "labels": {"severity": "warning", "experiment": experiment.name},
                "annotations": {"description": " ".join((alarm.message, *_differences(decided)))},
            }


def _condition(alarm: MetricAlarm) -> str:
    """True while so many of the last periods are beyond the threshold; without data nothing is, unless that is looked for."""
    value = f"({alarm.promql} or vector(0))" if alarm.missing == "breaching" else f"({alarm.promql})"
    judged = f"{value} {_BEYOND[alarm.comparison]} bool {alarm.threshold:g}"
    # A millisecond less than the periods: Prometheus 2 counts both ends of a range, version 3 one.
    window_ms = alarm.periods * PERIOD_S * 1000 - 1
    return f"sum_over_time(({judged})[{window_ms}ms:{PERIOD_S}s]) >= {alarm.breaching}"


def _differences(parts: list[MetricAlarm]) -> Iterator[str]:
    if any(part.missing == "ignore" for part in parts):
        yield f"Here a run that publishes nothing more is forgotten after {FORGOTTEN_S // 60} minutes."
