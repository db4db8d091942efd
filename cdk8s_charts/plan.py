"""The plan of a benchmark, as `benchmark/plan.py` reads it, and where it is kept: in a ConfigMap, or in S3 when large."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from cdk8s_charts.serving import service_url
from experiment.cost import arm_usd_per_hour
from experiment.naming import PLANS_PREFIX

if TYPE_CHECKING:
    from experiment.arms import Experiment, Prompt

LARGEST_CONFIG_MAP = 200_000
"""Bytes of a plan that travels as a ConfigMap. Kubernetes would take 1 MiB, but `cdk deploy` hands objects to a Lambda,
whose event was limited to 256 KB for long (https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html)."""


def plan(experiment: Experiment) -> dict[str, Any]:
    """What the benchmark is told, as `benchmark/plan.py` reads it."""
    settings = experiment.benchmark
    template = {"chat_template_kwargs": {"enable_thinking": settings.thinking}}
    can_think = experiment.baseline.target.model.can_think
    return {
        "schema": 1,
        "experiment": experiment.name,
        "model": experiment.baseline.target.model.name,
        "baseline": experiment.baseline.name,
        "arms": [
            {
                "name": arm.name,
                "url": service_url(experiment, arm),
                "speculative_tokens": arm.speculation.num_speculative_tokens if arm.speculation else 0,
                "max_tokens_per_step": arm.tokens_per_step,
                "usd_per_hour": round(arm_usd_per_hour(experiment, arm), 4),
                **({"also_changes": list(arm.also_changes)} if arm.also_changes else {}),
            }
            for arm in experiment.served_arms
        ],
        "concurrency": list(settings.concurrency),
        "requests": settings.requests,
        "warmup": settings.warmup,
        "seed": settings.seed,
        "max_tokens": settings.max_tokens,
        "temperature": settings.temperature,
        "extra_body": template if can_think and settings.endpoint == "chat" else {},
        **({"slo": settings.objectives} if settings.objectives else {}),
        "prompts": [_prompt(prompt) for prompt in experiment.prompts],
    }


def plan_text(experiment: Experiment) -> str:
    """The plan as JSON."""
    return json.dumps(plan(experiment), indent=1, ensure_ascii=False)


def plan_object(experiment: Experiment) -> tuple[str, bytes] | None:
    """Key in the bucket of results and content of a plan that no ConfigMap takes; `None` for all others.

    `scripts/run` puts it there before it loads the arms; the key is its hash, so it never has to be replaced.
    """
    content = plan_text(experiment).encode()
    if len(content) <= LARGEST_CONFIG_MAP:
        return None
    return f"{PLANS_PREFIX}{hashlib.sha256(content).hexdigest()}.json", content


def _prompt(prompt: Prompt) -> dict[str, Any]:
    entry: dict[str, Any] = {"id": prompt.id, "class": prompt.class_name}
    if prompt.text is not None:
        entry["prompt"] = prompt.text
    else:
        entry["messages"] = [{"role": role, "content": content} for role, content in prompt.messages]
    if prompt.max_tokens is not None:
        entry["max_tokens"] = prompt.max_tokens
    return entry
