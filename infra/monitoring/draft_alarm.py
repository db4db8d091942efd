"""The alarm that drafting no longer pays in production. It compares the tokens per decode step of each served arm that drafts with the
break-even that the promoted run measured (`serve.break_even`).

A server of vLLM's V1 engine says every ten seconds how many tokens it drafted and how many of these were accepted, in its counters and in
one line of its log (`SpecDecodingLogging.log` of vllm/v1/spec_decode/metrics.py). CloudWatch gets only the log lines, inside the JSON
that Container Insights writes: a transformer of the log group extracts the two numbers, and metric filters read them
(https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/CloudWatch-Logs-Transformation.html). The engine of 0.9.1 counts nothing, so such
an arm has no alarm. Not verified on AWS.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmark.metrics import PERIOD_S
from experiment import Experiment, naming
from experiment.arms import Arm
from experiment.catalogue.runtimes import COUNTED_DRAFTS
from infra.monitoring.panels import CloudWatchMetric, series

COUNTED_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
MIN_STEPS = 500
"""Minimum steps in five minutes for a comparison. An arm makes more with one request at a time."""
_ACCEPTED, _DRAFTED = "accepted_tokens", "drafted_tokens"
"""Fields that the transformer adds to a log line."""
GROK = (
    "%{DATA}SpecDecoding metrics: Mean acceptance length: %{NUMBER}, %{DATA}"
    f"Accepted: %{{INT:{_ACCEPTED}}} tokens, Drafted: %{{INT:{_DRAFTED}}} tokens%{{GREEDYDATA}}"
)


class DraftAlarm(NamedTuple):
    """The alarm of one arm."""

    arm: Arm
    break_even: float
    """Tokens per step below which plain decoding is faster."""

    @property
    def metrics(self) -> dict[str, str]:
        """CloudWatch's names of the two counts, by field of the log line."""
        return {_ACCEPTED: f"AcceptedTokens-{self.arm.name}", _DRAFTED: f"DraftedTokens-{self.arm.name}"}

    def sources(self, experiment: Experiment) -> tuple[CloudWatchMetric, ...]:
        """Return the metrics of accepted and drafted tokens, in this order."""
        space = naming.metrics_namespace(experiment)
        return tuple(CloudWatchMetric(space, name, {}) for name in self.metrics.values())

    def expression(self, accepted: str, drafted: str) -> str:
        """Return the tokens per step in metric math; with too few steps it is the break-even itself, which raises no alarm."""
        k = self.arm.num_speculative_tokens
        return f"IF({drafted} >= {k * MIN_STEPS}, 1 + {k} * {accepted} / {drafted}, {self.break_even:g})"

    def promql(self, experiment: Experiment) -> str:
        """Return the tokens per step in PromQL, from the counters; with too few steps the result is empty."""
        accepted, drafts = (
            f"sum(increase({series(experiment, name, arm=self.arm.name)}[{PERIOD_S}s]))"
            for name in (COUNTED_ACCEPTED, COUNTED_DRAFTS)
        )
        return f"(1 + {accepted} / {drafts}) and ({drafts} >= {MIN_STEPS})"


def draft_alarms(experiment: Experiment) -> tuple[DraftAlarm, ...]:
    """Return an alarm for each served arm that drafts, has a break-even, and has an engine that counts."""
    limits = experiment.serve.break_even if experiment.serve else {}
    return tuple(DraftAlarm(arm, limits[arm.name]) for arm in experiment.watched_arms)


def remedy_of(experiment: Experiment, arm: Arm) -> str:
    """Return which routes to change, and the commands."""
    serve = experiment.serve
    classes = [name for name, own in serve.routes.items() if own == arm.name] if serve else []
    other = next((name for name in serve.arms if name != arm.name), experiment.baseline.name) if serve else ""
    routes = f"the routes {', '.join(classes)}" if classes else "the service"
    return (
        f"Run the same plan again; then move {routes} to {other} (serve.routes) and ./trnspec promote --from "
        f"results/RUN, or ./trnspec promote {other}."
    )


def log_group(experiment: Experiment) -> str:
    """Return the log group to which Container Insights writes the output of pods."""
    (name,) = (
        name for name in naming.container_insights_log_groups(experiment) if name.endswith("/application")
    )
    return name


def transformer(experiment: Experiment) -> dict[str, Any]:
    """Return the properties of the `AWS::Logs::Transformer`. Lines are kept; a line with counts gets two more fields."""
    numbers = [{"Key": key, "Type": "integer"} for key in (_ACCEPTED, _DRAFTED)]
    processors = [
        {"ParseJSON": {}},
        {"Grok": {"Source": "log", "Match": GROK}},
        {"TypeConverter": {"Entries": numbers}},
    ]
    return {"LogGroupIdentifier": log_group(experiment), "TransformerConfig": processors}


def _pods(experiment: Experiment, arm: Arm) -> str:
    """Return the part of a filter pattern that selects the pods of an arm, and not those of an arm with a longer name."""
    others = [one.name for one in experiment.promoted_arms if one.name.startswith(f"{arm.name}-")]
    pods = [
        f'$.kubernetes.pod_name = "{arm.name}-*"',
        *(f'$.kubernetes.pod_name != "{one}-*"' for one in others),
    ]
    return " && ".join(pods)


def metric_filters(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return the properties of each `AWS::Logs::MetricFilter`, by its id: tokens that the pods of an arm accepted and drafted."""
    return {
        name: {
            "LogGroupName": log_group(experiment),
            "ApplyOnTransformedLogs": True,
            "FilterPattern": (
                f'{{ $.kubernetes.namespace_name = "{naming.namespace(experiment)}" && '
                f"{_pods(experiment, alarm.arm)} && $.{key} = * }}"
            ),
            "MetricTransformations": [
                {
                    "MetricNamespace": naming.metrics_namespace(experiment),
                    "MetricName": name,
                    "MetricValue": f"$.{key}",
                }
            ],
        }
        for alarm in draft_alarms(experiment)
        for key, name in alarm.metrics.items()
    }
