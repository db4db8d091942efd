"""The plan: which arms answer which prompts, how often and how many at once. Frozen; read by `plan_file`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmark.errors import PlanError

Message = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One endpoint under test."""

    name: str
    url: str
    """Base URL up to and including `/v1`, without a trailing slash."""
    speculative_tokens: int = 0
    """Draft tokens per step; 0 is plain decoding."""
    max_tokens_per_step: int = 1
    """The most tokens that one decode step of this engine can yield."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt; `messages` goes to /chat/completions, `prompt` to /completions. Exactly one is set."""

    id: str
    class_: str
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that decides which requests are sent."""

    experiment: str
    model: str
    baseline: str
    arms: tuple[Arm, ...]
    concurrency: tuple[int, ...]
    requests: int
    """Measured requests per cell."""
    warmup: int
    """Unmeasured requests per arm before the first cell."""
    seed: int
    max_tokens: int
    temperature: float
    prompts: tuple[Prompt, ...]
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Merged into each request body as it is."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Prompt classes in order of first appearance."""
        return tuple(dict.fromkeys(prompt.class_ for prompt in self.prompts))

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)

    def to_dict(self) -> dict[str, Any]:
        """The plan as its JSON file has it."""
        return {
            "schema": 1,
            "experiment": self.experiment,
            "model": self.model,
            "baseline": self.baseline,
            "arms": [vars(arm) for arm in self.arms],
            "concurrency": list(self.concurrency),
            "requests": self.requests,
            "warmup": self.warmup,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "extra_body": dict(self.extra_body),
            "prompts": [_prompt_dict(prompt) for prompt in self.prompts],
        }

    def sha256(self) -> str:
        """Identity of the plan. URLs are left out: an arm reached by another address is the same arm."""
        content = self.to_dict()
        content["arms"] = [{k: v for k, v in arm.items() if k != "url"} for arm in content["arms"]]
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """What the command line may change about a plan; None leaves the plan's value."""

    urls: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    concurrency: tuple[int, ...] | None = None
    requests: int | None = None
    warmup: int | None = None
    max_tokens: int | None = None
    """Also the ceiling of what single prompts ask for."""
    seed: int | None = None


def overridden(plan: Plan, overrides: Overrides) -> Plan:
    """The plan with `overrides` applied. Raises PlanError for an arm or a class that it does not have."""
    _known("--arm", overrides.urls, [arm.name for arm in plan.arms])
    _known("--classes", overrides.classes or (), plan.classes)
    chosen = set(overrides.classes or plan.classes)
    simple = ("concurrency", "requests", "warmup", "max_tokens", "seed")
    values = {name: value for name in simple if (value := getattr(overrides, name)) is not None}
    return replace(
        plan,
        arms=tuple(replace(arm, url=overrides.urls.get(arm.name, arm.url)) for arm in plan.arms),
        prompts=tuple(_capped(p, overrides.max_tokens) for p in plan.prompts if p.class_ in chosen),
        **values,
    )


def _capped(prompt: Prompt, limit: int | None) -> Prompt:
    if limit is None or prompt.max_tokens is None:
        return prompt
    return replace(prompt, max_tokens=min(limit, prompt.max_tokens))


def _known(option: str, given: Collection[str], names: Collection[str]) -> None:
    for name in given:
        if name not in names:
            raise PlanError(f"{option}: {name!r} is not in the plan; it has {', '.join(names)}")


def _prompt_dict(prompt: Prompt) -> dict[str, Any]:
    content: dict[str, Any] = {"id": prompt.id, "class": prompt.class_}
    if prompt.messages is not None:
        content["messages"] = [dict(message) for message in prompt.messages]
    else:
        content["prompt"] = prompt.prompt
    if prompt.max_tokens is not None:
        content["max_tokens"] = prompt.max_tokens
    return content
