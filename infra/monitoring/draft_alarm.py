"""Does drafting still pay in production? Tokens of a decode step of each drafting arm that serves, against the break-even of its classes as
the promoted run measured it (`serve.break_even`). Pure.

A server of vLLM's V1 engine says every ten seconds how many tokens it drafted and how many of these were accepted, in its counters and in
one line of its log (`SpecDecodingLogging.log` of vllm/v1/spec_decode/metrics.py). CloudWatch gets log lines only, inside the JSON that
Container Insights writes: a transformer of the log group takes the two numbers out, and metric filters read them
(https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/CloudWatch-Logs-Transformation.html). The engine of 0.9.1 counts nothing, so such
an arm has no alarm. Not run on AWS.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmark.metrics import PERIOD_S
from experiment import Experiment, naming
from experiment.arms import Arm
from infra.monitoring.panels import CloudWatchMetric, series

COUNTED_DRAFTS, COUNTED_ACCEPTED = (
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_accepted_tokens_total",
)
MIN_STEPS = 500
"""Steps of five minutes that are enough to know: at one request at a time an arm makes more."""
_ACCEPTED, _DRAFTED = "accepted_tokens", "drafted_tokens"
"""Fields that the transformer adds to a line of the log."""
GROK = (
    "%{DATA}SpecDecoding metrics: Mean acceptance length: %{NUMBER}, %{DATA}"
    f"Accepted: %{{INT:{_ACCEPTED}}} tokens, Drafted: %{{INT:{_DRAFTED}}} tokens%{{GREEDYDATA}}"
)


class DraftAlarm(NamedTuple):
    """One arm whose drafting is watched."""

    arm: Arm
    break_even: float
    """Tokens of a step below which plain decoding is faster."""

    @property
    def metrics(self) -> dict[str, str]:
        """CloudWatch's names of the two counts, by the field of a log line that has them."""
        return {_ACCEPTED: f"AcceptedTokens-{self.arm.name}", _DRAFTED: f"DraftedTokens-{self.arm.name}"}

    def sources(self, experiment: Experiment) -> tuple[CloudWatchMetric, ...]:
        """Accepted and drafted tokens, in this order."""
        space = naming.metrics_namespace(experiment)
        return tuple(CloudWatchMetric(space, name, {}) for name in self.metrics.values())

    def expression(self, accepted: str, drafted: str) -> str:
        """Tokens of a step in metric math; where steps are too few to know, the break-even itself, which raises no alarm."""
        k = self.arm.num_speculative_tokens
        return f"IF({drafted} >= {k * MIN_STEPS}, 1 + {k} * {accepted} / {drafted}, {self.break_even:g})"

    def promql(self, experiment: Experiment) -> str:
        """The same to Prometheus, from the counters; nothing where steps are too few."""
        accepted, drafts = (
            f"sum(increase({series(experiment, name, arm=self.arm.name)}[{PERIOD_S}s]))"
            for name in (COUNTED_ACCEPTED, COUNTED_DRAFTS)
        )
        return f"(1 + {accepted} / {drafts}) and ({drafts} >= {MIN_STEPS})"


def draft_alarms(experiment: Experiment) -> tuple[DraftAlarm, ...]:
    """The drafting arms that serve, whose break-even is known and whose engine counts."""
    limits = experiment.serve.break_even if experiment.serve else {}
    return tuple(
        DraftAlarm(arm, limits[arm.name])
        for arm in experiment.promoted_arms
        if arm.name in limits and COUNTED_DRAFTS in arm.runtime.metrics
    )


def remedy_of(experiment: Experiment, arm: Arm) -> str:
    """Which routes to change, and the commands."""
    serve = experiment.serve
    classes = [name for name, own in serve.routes.items() if own == arm.name] if serve else []
    other = next((name for name in serve.arms if name != arm.name), experiment.baseline.name) if serve else ""
    routes = f"the routes {', '.join(classes)}" if classes else "the service"
    return (
        f"Check with ./trnspec recheck; then move {routes} to {other} (serve.routes), measure again and ./trnspec promote --from "
        f"results/RUN, or ./trnspec promote {other}."
    )


def log_group(experiment: Experiment) -> str:
    """Where Container Insights writes what pods print."""
    (name,) = (
        name for name in naming.container_insights_log_groups(experiment) if name.endswith("/application")
    )
    return name


def transformer(experiment: Experiment) -> dict[str, Any]:
    """Properties of the `AWS::Logs::Transformer`: a line stays what it is, and one with counts gets two more fields."""
    numbers = [{"Key": key, "Type": "integer"} for key in (_ACCEPTED, _DRAFTED)]
    processors = [
        {"ParseJSON": {}},
        {"Grok": {"Source": "log", "Match": GROK}},
        {"TypeConverter": {"Entries": numbers}},
    ]
    return {"LogGroupIdentifier": log_group(experiment), "TransformerConfig": processors}


def _pods(experiment: Experiment, arm: Arm) -> str:
    """In a filter pattern, the pods of an arm, and not of another whose name only begins alike."""
    others = [one.name for one in experiment.promoted_arms if one.name.startswith(f"{arm.name}-")]
    pods = [
        f'$.kubernetes.pod_name = "{arm.name}-*"',
        *(f'$.kubernetes.pod_name != "{one}-*"' for one in others),
    ]
    return " && ".join(pods)


def metric_filters(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Properties of each `AWS::Logs::MetricFilter`, by its id: what the pods of an arm accepted and drafted."""
    return {
        name: {
            "LogGroupName": log_group(experiment),
            "ApplyOnTransformedLogs": True,
            "FilterPattern": (
                f'{{ $.kubernetes.namespace_name = "{naming.namespace(experiment)}" && '
                f"{_pods(experiment, one.arm)} && $.{key} = * }}"
            ),
            "MetricTransformations": [
                {
                    "MetricNamespace": naming.metrics_namespace(experiment),
                    "MetricName": name,
                    "MetricValue": f"$.{key}",
                }
            ],
        }
        for one in draft_alarms(experiment)
        for key, name in one.metrics.items()
    }
