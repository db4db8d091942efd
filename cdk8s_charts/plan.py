"""The plan of a benchmark, and where it is kept: in a ConfigMap, or in S3 when large."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from pydantic import ValidationError

from benchmark import plan as plans
from benchmark.plan import Plan
from cdk8s_charts.serving import service_url
from experiment.cost import arm_usd_per_hour
from experiment.finding import Finding, Misuse
from experiment.naming import PLANS_PREFIX

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment, Prompt

LARGEST_CONFIG_MAP = 200_000
"""Bytes of a plan that travels as a ConfigMap. Kubernetes would take 1 MiB, but `cdk deploy` hands objects to a Lambda,
whose event was limited to 256 KB for long (https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html)."""

_REMEDY = "the benchmark would not take this plan; change it in the experiment's file"


def plan(experiment: Experiment) -> Plan:
    """What the benchmark is told. Raises `Misuse` for what it would not take."""
    try:
        return _plan(experiment)
    except ValidationError as error:
        found = (Finding(str(one["loc"][0]), one["input"], one["msg"], _REMEDY) for one in error.errors())
        raise Misuse(*found) from None


def _plan(experiment: Experiment) -> Plan:
    settings = experiment.benchmark
    can_think = experiment.baseline.target.model.can_think
    asks = {"chat_template_kwargs": {"enable_thinking": settings.thinking}}
    return Plan(
        schema=1,
        experiment=experiment.name,
        model=experiment.baseline.target.model.name,
        baseline=experiment.baseline.name,
        arms=tuple(_arm(experiment, arm) for arm in experiment.served_arms),
        concurrency=settings.concurrency,
        requests=settings.requests,
        warmup=settings.warmup,
        seed=settings.seed,
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        extra_body=asks if can_think and settings.endpoint == "chat" else {},
        slo=settings.objectives or None,
        prompts=tuple(map(_prompt, experiment.prompts)),
    )


def plan_text(experiment: Experiment) -> str:
    """The plan as JSON, without what it leaves at its default."""
    return json.dumps(plan(experiment).to_dict(exclude_unset=True), indent=1, ensure_ascii=False)


def plan_object(experiment: Experiment) -> tuple[str, bytes] | None:
    """Key in the bucket of results and content of a plan that no ConfigMap takes; `None` for all others.

    `scripts/run` puts it there before it loads the arms; the key is its hash, so it never has to be replaced.
    """
    content = plan_text(experiment).encode()
    if len(content) <= LARGEST_CONFIG_MAP:
        return None
    return f"{PLANS_PREFIX}{hashlib.sha256(content).hexdigest()}.json", content


def _arm(experiment: Experiment, arm: Arm) -> plans.Arm:
    return plans.Arm(
        name=arm.name,
        url=service_url(experiment, arm),
        speculative_tokens=arm.num_speculative_tokens,
        max_tokens_per_step=arm.tokens_per_step,
        usd_per_hour=round(arm_usd_per_hour(experiment, arm), 4),
        also_changes=arm.also_changes,
    )


def _prompt(prompt: Prompt) -> plans.Prompt:
    messages = [{"role": role, "content": content} for role, content in prompt.messages]
    return plans.Prompt.model_validate(
        {
            "id": prompt.id,
            "class": prompt.class_name,
            "prompt": prompt.text,
            "messages": messages if prompt.text is None else None,
            "max_tokens": prompt.max_tokens,
        }
    )
