"""The plan: which arms answer which prompts, how often and how many at once. Frozen; read by `plan_file`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
    usd_per_hour: float | None = None
    """What the arm's share of its node costs."""
    also_changes: tuple[str, ...] = ()
    """What is different in its engine beside the speculation, in words for the report."""

    def to_dict(self) -> dict[str, Any]:
        """As a plan file has it."""
        content = dict(vars(self))
        if not content.pop("also_changes"):
            return content
        return content | {"also_changes": list(self.also_changes)}


@dataclass(frozen=True, kw_only=True)
class Load:
    """How a cell is loaded: so many requests in flight, or arriving at a rate. Exactly one is set."""

    concurrency: int | None = None
    rate_per_s: float | None = None
    """Mean of a Poisson process."""

    def __str__(self) -> str:
        return f"c{self.concurrency}" if self.rate_per_s is None else f"{self.rate_per_s:g}/s"


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
    rate: tuple[float, ...] = ()
    """Requests per second, a cell each, open loop; where given, `concurrency` counts for nothing."""
    rounds: int = 1
    """Passes over all cells, `requests` in each."""
    duration_s: float | None = None
    """Where given, rounds are begun until this time of loading has passed."""
    simultaneous: bool = False
    """Whether the arms are loaded at once instead of in turns."""
    ignore_eos: bool = False
    """Whether answers are forced to max_tokens. What follows an answer's end is no natural text."""
    slo: Mapping[str, float] | None = None
    """Objectives for goodput: ttft_s, tpot_s, e2e_s, each optional."""

    @property
    def loads(self) -> tuple[Load, ...]:
        """What cells are loaded with, in order."""
        if self.rate:
            return tuple(Load(rate_per_s=rate) for rate in self.rate)
        return tuple(Load(concurrency=level) for level in self.concurrency)

    @property
    def classes(self) -> tuple[str, ...]:
        """Prompt classes in order of first appearance."""
        return tuple(dict.fromkeys(prompt.class_ for prompt in self.prompts))

    @property
    def prices(self) -> dict[str, float | None]:
        """By arm, dollars an hour."""
        return {arm.name: arm.usd_per_hour for arm in self.arms}

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)

    def most_tokens(self, prompt: Prompt) -> int:
        """What an answer to `prompt` may have: `extra_body` has the last word, as in the request."""
        for key in ("max_completion_tokens", "max_tokens"):
            if type(own := self.extra_body.get(key)) is int:
                return own
        return prompt.max_tokens or self.max_tokens

    def to_dict(self) -> dict[str, Any]:
        """The plan as its JSON file has it."""
        return {
            "schema": 1,
            "experiment": self.experiment,
            "model": self.model,
            "baseline": self.baseline,
            "arms": [arm.to_dict() for arm in self.arms],
            "concurrency": list(self.concurrency),
            "requests": self.requests,
            "warmup": self.warmup,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "extra_body": dict(self.extra_body),
            "rate": list(self.rate),
            "rounds": self.rounds,
            "duration_s": self.duration_s,
            "simultaneous": self.simultaneous,
            "ignore_eos": self.ignore_eos,
            "slo": None if self.slo is None else dict(self.slo),
            "prompts": [_prompt_dict(prompt) for prompt in self.prompts],
        }

    def sha256(self) -> str:
        """Identity of the plan: what is asked of whom. An arm at another address or price, or told of in other words, is
        the same arm."""
        content, aside = self.to_dict(), ("url", "usd_per_hour", "also_changes")
        content["arms"] = [{k: v for k, v in arm.items() if k not in aside} for arm in content["arms"]]
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def _prompt_dict(prompt: Prompt) -> dict[str, Any]:
    content: dict[str, Any] = {"id": prompt.id, "class": prompt.class_}
    if prompt.messages is not None:
        content["messages"] = [dict(message) for message in prompt.messages]
    else:
        content["prompt"] = prompt.prompt
    if prompt.max_tokens is not None:
        content["max_tokens"] = prompt.max_tokens
    return content
